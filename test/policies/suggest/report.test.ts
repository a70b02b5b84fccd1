import test from 'ava';
import { addHolder, holdersOf, removeHolder, suggestedJson } from '../../../src/policies/suggest/report.ts';

test('users who get access are counted for the targets that they reach', (t) => {
  const place = (target_id: string) => ({ subject_type: 'role' as const, subject_value: 'dev', target_id });
  const [a, b] = [place('a'), place('b')];
  const holders = holdersOf([a, b]);
  const count = (
    id: string,
    reach: readonly string[] | null,
    role = 'dev',
    asked: ReadonlySet<string> | null = new Set(['asked']),
  ) => addHolder(holders, { user: { id, email: null, role, groups: [] } as never, reach }, asked);
  count('asked', null);
  count('everywhere', null);
  count('at a', ['a', 'c']);
  count('nowhere', []);
  count('other', null, 'other');
  const toJson = suggestedJson({ targets: [], policies: [] } as never, [], {} as never, holders);
  const shown = () =>
    [a, b].map((each) => {
      const { holders: found, other_holders } = toJson({ ...each, needs: [] } as never);
      return [found, other_holders];
    });
  t.deepEqual(shown(), [
    [3, ['everywhere', 'at a']],
    [2, ['everywhere']],
  ]);
  removeHolder(holders, 'everywhere');
  count('unknown whether asked', ['b'], 'dev', null);
  t.deepEqual(shown(), [
    [2, ['at a']],
    [2, []],
  ]);
});
