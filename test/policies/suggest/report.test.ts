import test from 'ava';
import { countHolder, holdersOf, suggestedJson } from '../../../src/policies/suggest/report.ts';

test('users who get access are counted for the targets that they reach', (t) => {
  const place = (target_id: string) => ({ subject_type: 'role' as const, subject_value: 'dev', target_id });
  const [a, b] = [place('a'), place('b')];
  const holders = holdersOf([a, b]);
  const count = (id: string, reach: readonly string[] | null, role = 'dev'): void =>
    countHolder(holders, { user: { id, email: null, role, groups: [] } as never, reach }, new Set(['asked']));
  count('asked', null);
  count('everywhere', null);
  count('at a', ['a', 'c']);
  count('nowhere', []);
  count('other', null, 'other');
  const toJson = suggestedJson({ targets: [], policies: [] } as never, [], {} as never, holders);
  const shown = [a, b].map((each) => toJson({ ...each, needs: [] } as never));
  t.deepEqual(
    shown.map(({ holders: found, other_holders }) => [found, other_holders]),
    [
      [3, ['everywhere', 'at a']],
      [2, ['everywhere']],
    ],
  );
});
