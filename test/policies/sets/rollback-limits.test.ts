import test from 'ava';
import { inSlices } from '../../../src/base/turns/slices.ts';
import { loadPolicyModule } from '../../../src/engine/engine.ts';
import { createNameSearch } from '../../../src/policies/limits/limits.ts';
import { madeForRequest, planRollback, type SetState } from '../../../src/policies/sets/planning.ts';
import { createSetCheck } from '../../../src/policies/sets/set-check.ts';
import { policy } from '../policies.ts';

const { checkPattern } = await loadPolicyModule();

test('a rollback is not refused for what other owners have above the limits, but for what it brings back', async (t) => {
  const subjects = Array.from({ length: 1_000 }, (_, n) => ({
    id: `s${n}`,
    subject_type: 'role' as const,
    subject_value: `r${n}`,
  }));
  const large = ['a', 'b', 'c', 'd'].map((id) =>
    policy(id, { managed_as: `large/${id}`, resource_pattern: `^${id}[a-p]`, subjects }),
  );
  const small = (pattern: string) => policy('small', { managed_as: 'small/small', resource_pattern: pattern });
  const state: SetState = {
    position: { sequence: 2, nonce: 'n', revision: 2 },
    policies: [...large, small('^after$')],
    targets: [],
    limits: new Map(),
    history: { revision: 2, deleted: new Map() },
  };
  const made = {
    ...madeForRequest({ newId: () => 'new', now: () => 3 }),
    run: inSlices,
    checkSet: createSetCheck(checkPattern),
    findNames: createNameSearch(),
  };
  const back = (pattern: string) =>
    planRollback(state, [...large, small(pattern)], { revision: 1, owner: 'small', expectedRevision: null }, made);
  t.deepEqual(
    (await back('^before$')).changes.map(({ after }) => after?.resource_pattern),
    ['^before$'],
  );
  // A change that brings so many new patterns with many states is refused. These were stored before, for example before a start.
  const many = Array.from({ length: 150 }, (_, n) =>
    policy(`many${n}`, {
      managed_as: `small/m${n}`,
      resource_pattern: `^back${n}_.*a[ab]{8}c`,
      subjects: subjects.slice(n, n + 1),
    }),
  );
  const restored = await planRollback(state, [...large, ...many], { revision: 1, owner: 'small', expectedRevision: null }, made);
  t.is(restored.changes.length, 151);
  await t.throwsAsync(back('a[ab]{50}h'), { code: 'invalid_request', message: /too many states/ });
});
