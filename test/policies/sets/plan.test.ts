import test from 'ava';
import fc from 'fast-check';
import type { StoredPolicy } from '../../../src/engine/compile/policy.ts';
import { DEFAULT_OWNER, FILE_NAME, fileNames, fileOf, managedFile } from '../../../src/policies/files/file.ts';
import {
  describePolicyFileError,
  formatPolicyFile,
  type ParsedPolicyFile,
  parsePolicyFile,
} from '../../../src/policies/files/yaml.ts';
import { changesBetween, planFiles, planFilesInSteps } from '../../../src/policies/sets/plan.ts';
import { policy } from '../policies.ts';

const parse = (text: string, name: string): ParsedPolicyFile => {
  const parsed = parsePolicyFile(text, name);
  if ('errors' in parsed) throw new Error(parsed.errors.map(describePolicyFileError).join('\n'));
  return parsed;
};
const filesOf = (policies: readonly StoredPolicy[]): Map<string, ParsedPolicyFile> => {
  const names = fileNames(policies, DEFAULT_OWNER);
  return new Map(
    policies.flatMap((one) => {
      const name = names.get(one.id);
      return name === undefined ? [] : [[name, parse(formatPolicyFile(fileOf(one, () => undefined)), name)]];
    }),
  );
};
const texts = (policies: readonly StoredPolicy[]): Record<string, unknown> =>
  Object.fromEntries([...filesOf(policies)].map(([file, { policy }]) => [file, policy]).sort());
const plan = (files: ReadonlyMap<string, ParsedPolicyFile>, policies: readonly StoredPolicy[], over: object = {}) => {
  const ids = new Map<string, string>();
  const planned = planFiles(
    { files, owner: DEFAULT_OWNER, prune: false, adopt: false, ...over },
    {
      policies,
      targets: [],
      idFor: (what) => {
        const id = ids.get(what) ?? `new-${ids.size}`;
        ids.set(what, id);
        return id;
      },
      time: 9,
    },
  );
  if ('errors' in planned) throw new Error(planned.errors.map(describePolicyFileError).join('\n'));
  return planned;
};

const id = fc.uuid();
/** Names that lead to the same file name, or to the file name of another policy with its id. */
const name = fc.constantFrom(
  'a',
  'A',
  'a!',
  'ä',
  'a-00000001',
  'a 00000001',
  'con',
  'policy con',
  '☃',
  'policy',
  'x'.repeat(200),
);
const stored: fc.Arbitrary<StoredPolicy> = fc
  .record({
    id: fc.oneof(id, fc.constantFrom('01900000-0000-7000-8000-000000000001', '01910000-0000-7000-8000-000000000001')),
    name,
    priority: fc.integer({ min: 0, max: 3 }),
    managed_as: fc.option(fc.constantFrom('default/a', 'default/policy', 'default/a-00000001', 'other/a', 'other/b')),
  })
  .map(({ id, ...over }) => policy(id, over));
const set = fc
  .uniqueArray(stored, { selector: (one) => one.id, maxLength: 12 })
  .map((policies) =>
    policies.filter((one, i) => one.managed_as === null || policies.findIndex((p) => p.managed_as === one.managed_as) === i),
  );

test('each policy gets its own file, with a name that is valid on every file system and independent of the order', (t) => {
  fc.assert(
    fc.property(set, (policies) => {
      const names = fileNames(policies, DEFAULT_OWNER);
      t.is(new Set(names.values()).size, names.size);
      for (const file of names.values()) t.regex(file, FILE_NAME);
      for (const one of policies) t.is(names.has(one.id), one.managed_as === null || one.managed_as.startsWith('default/'));
      t.deepEqual([...fileNames(policies.toReversed(), DEFAULT_OWNER)].sort(), [...names].sort());
    }),
    { numRuns: 300 },
  );
  t.is(managedFile(policy('a', { managed_as: 'default/a' }), 'def'), null);
});

test('applying an export changes nothing, and adopting it only makes the policies belong to the files', (t) => {
  fc.assert(
    fc.property(set, (policies) => {
      const files = filesOf(policies);
      const first = plan(files, policies, { prune: true });
      t.deepEqual([first.changes, first.unchanged], [[], files.size]);
      t.is(first.unmanaged, policies.filter(({ managed_as }) => managed_as === null).length);
      t.deepEqual(
        first.candidate.map((one) => one.id),
        policies.map((one) => one.id).sort(),
      );
      const adopted = plan(files, policies, { adopt: true }).candidate;
      t.true(adopted.every(({ managed_as }) => managed_as !== null));
      t.deepEqual(plan(files, adopted, { prune: true, adopt: true }).changes, []);
      t.deepEqual(texts(adopted), texts(policies.filter((one) => !one.managed_as?.startsWith('other/'))));
    }),
    { numRuns: 300 },
  );
});

test('files from another set claim no policy twice, and remove only policies of the owner', (t) => {
  fc.assert(
    fc.property(set, set, (mine, theirs) => {
      const files = filesOf(theirs);
      let planned: ReturnType<typeof plan>;
      try {
        planned = plan(files, mine, { adopt: true, prune: true });
      } catch (error) {
        t.regex(String(error), /matches \d+ policies/);
        return;
      }
      const touched = planned.changes.flatMap(({ before }) => (before === null ? [] : [before.id]));
      t.is(new Set(touched).size, touched.length);
      t.is(new Set(planned.candidate.map((one) => one.id)).size, planned.candidate.length);
      for (const { action, before } of planned.changes) {
        if (action === 'delete') t.true(before?.managed_as?.startsWith('default/'));
        if (action === 'adopt') t.is(before?.managed_as, null);
      }
      t.is(planned.unchanged + planned.changes.filter(({ action }) => action !== 'delete').length, files.size);
      // Policies of other owners, or without an owner, stay unchanged unless a file adopts them.
      for (const one of mine) {
        if (one.managed_as?.startsWith('other/')) t.true(planned.candidate.includes(one));
      }
      t.deepEqual(plan(files, planned.candidate, { adopt: true, prune: true }).changes, []);
    }),
    { numRuns: 500 },
  );
});

test('the changes between two sets turn one into the other', (t) => {
  fc.assert(
    fc.property(set, set, (from, to) => {
      const now = new Map(from.map((one) => [one.id, one]));
      for (const { action, before, after } of changesBetween(from, to)) {
        t.is(action, before === null ? 'create' : after === null ? 'delete' : 'update');
        if (before !== null) t.true(now.delete(before.id));
        if (after !== null) now.set(after.id, after);
      }
      const ids = (policies: Iterable<StoredPolicy>) => [...policies].map((one) => JSON.stringify(one)).sort();
      t.deepEqual(ids(now.values()), ids(to));
      t.deepEqual(changesBetween(to, to), []);
    }),
  );
});

test('if two files match one policy, the first gets it and the other makes a new one', (t) => {
  const one = policy('01900000-0000-7000-8000-000000000001', { name: 'a' });
  const text = formatPolicyFile(fileOf(one, () => undefined));
  const files = new Map(['a-00000001.yaml', `a-${one.id}.yaml`].map((file) => [file, parse(text, file)]));
  for (const ordered of [files, new Map([...files].toReversed())]) {
    const { changes, candidate } = plan(ordered, [one], { adopt: true });
    t.deepEqual(
      changes.map(({ action, file }) => [action, file]),
      [
        ['adopt', 'a-00000001.yaml'],
        ['create', `a-${one.id}.yaml`],
      ],
    );
    t.is(candidate.length, 2);
  }
});

test('a plan of many files is made in short steps', (t) => {
  const policies = Array.from({ length: 300 }, (_, n) => policy(`p${n}`, { name: `Policy ${n}` }));
  const request = { files: filesOf(policies), owner: DEFAULT_OWNER, prune: false, adopt: false };
  const steps = [...planFilesInSteps(request, { policies, targets: [], idFor: (what) => what, time: 9 })];
  t.true(steps.length >= 2 * policies.length);
});
