import test from 'ava';
import { insertRows } from '../../src/db/rows.ts';
import { inReadingOrder } from '../../src/engine/compile/compile.ts';
import { type OrderFilter, policyStore } from '../../src/policies/policy-store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { policy } from './policies.ts';

eachEngine(test.serial, 'stored policies are read back, each with its own subjects', async (t, at) => {
  const store = policyStore((await openTestDatabase(t, at)).knex);
  const full = policy('b', {
    name: 'Ä "quoted" \\ \u{1f600}',
    description: 'd'.repeat(4096),
    target_id: 't',
    resource_type: 'all',
    resource_pattern: '^é\\d+$',
    effect: 'deny',
    priority: -2147483648,
    enabled: false,
    subjects: [
      { id: 's1', subject_type: 'everyone', subject_value: null },
      { id: 's2', subject_type: 'role', subject_value: 'admin' },
      { id: 's3', subject_type: 'role', subject_value: 'Admin' },
      { id: 's4', subject_type: 'role', subject_value: 'admin ' },
      { id: 's5', subject_type: 'group', subject_value: 'admin' },
    ],
  });
  const bare = policy('a', { priority: 2147483647 });
  await store.change([{ before: null, after: full }]);
  await store.change([{ before: null, after: bare }]);
  t.deepEqual(await store.all(), [bare, full]);
  t.deepEqual(await store.find('b'), full);
  t.is(await store.find('B'), null);
  t.deepEqual(await store.page(1, null), [bare]);
  t.deepEqual(await store.page(5, 'a'), [full]);
  t.deepEqual(await store.page(null, 'a'), [full]);
  t.deepEqual(await store.page(5, 'b'), []);
  t.true(await store.namesTarget('t'));
  t.false(await store.namesTarget('T'));
});

eachEngine(test.serial, 'every policy is read in batches of limited size, from the start or after a given id', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = policyStore(knex);
  const ids = Array.from({ length: 1_100 }, (_, i) => String(1_000 + i));
  await store.change(ids.map((id) => ({ before: null, after: policy(id) })));
  const read: number[] = [];
  const note = (rows: unknown, query: { sql: string }): void => {
    if (query.sql.startsWith('select')) read.push((rows as unknown[]).length);
  };
  knex.on('query-response', note);
  const whole = await store.page(null, null);
  const rest = await store.page(null, '1004');
  knex.off('query-response', note);
  t.deepEqual(
    whole.map(({ id }) => id),
    ids,
  );
  t.deepEqual(
    rest.map(({ id }) => id),
    ids.slice(5),
  );
  // A first part shows how many rows a policy has.
  t.is(read.length, 8);
  t.true(Math.max(...read) <= 500, read.join());
});

eachEngine(test.serial, 'an update keeps unchanged subjects, and a deletion leaves no rows', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = policyStore(knex);
  const other = policy('z', { subjects: [{ id: 'o', subject_type: 'role', subject_value: 'x' }] });
  const before = policy('a', {
    subjects: [
      { id: '1', subject_type: 'role', subject_value: 'x' },
      { id: '2', subject_type: 'role', subject_value: 'y' },
    ],
  });
  await store.change([{ before: null, after: other }]);
  await store.change([{ before: null, after: before }]);
  const after = policy('a', {
    name: 'changed',
    updated_at: 9,
    subjects: [
      { id: '2', subject_type: 'role', subject_value: 'y' },
      { id: '3', subject_type: 'group', subject_value: 'z' },
    ],
  });
  await store.change([{ before, after }]);
  t.deepEqual(await store.all(), [after, other]);
  await store.change([{ before: after, after: null }]);
  t.deepEqual(await store.all(), [other]);
  t.is((await knex('policy_subjects')).length, 1);
});

eachEngine(test.serial, 'a policy with a thousand subjects is stored and read back', async (t, at) => {
  const store = policyStore((await openTestDatabase(t, at)).knex);
  const subjects = Array.from({ length: 1000 }, (_, i) => ({
    id: String(i).padStart(4, '0'),
    subject_type: 'group' as const,
    subject_value: `g${i}`,
  }));
  await store.change([{ before: null, after: policy('a', { subjects }) }]);
  t.deepEqual((await store.find('a'))?.subjects, subjects);
});

eachEngine(test.serial, 'thousands of changes are made in few statements of limited size', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = policyStore(knex);
  const many = 1_500;
  const id = (i: number): string => String(i).padStart(4, '0');
  const subject = (i: number, kind: string, value: string) => ({
    id: `${kind}${id(i)}`,
    subject_type: 'group' as const,
    subject_value: value,
  });
  const made = Array.from({ length: many }, (_, i) =>
    policy(id(i), { description: "'\u20ac".repeat(i < 900 ? 1_000 : 1), subjects: [subject(i, 'a', 'x'), subject(i, 'b', 'y')] }),
  );
  const sizes: number[] = [];
  const run = knex.client._query;
  knex.client._query = (connection: unknown, query: { sql: string; bindings?: unknown[] }) => {
    const values = (query.bindings ?? []).reduce((sum: number, value) => sum + Buffer.byteLength(String(value)), 0);
    if (!/^select/.test(query.sql)) sizes.push(Buffer.byteLength(query.sql) + values);
    return run.call(knex.client, connection, query);
  };
  await store.change(made.map((after) => ({ before: null, after })));
  t.deepEqual(await store.all(), made);

  // One third is deleted, one third stays, and one third changes, with one subject replacing another.
  const changes = made.map((before, i) => {
    if (i % 3 === 0) return { before, after: null };
    if (i % 3 === 1) return { before, after: before };
    return {
      before,
      after: { ...before, name: 'changed', priority: -i, subjects: [subject(i, 'b', 'y'), subject(i, 'c', 'x')] },
    };
  });
  const asked = sizes.length;
  await store.change(changes);
  t.deepEqual(
    await store.all(),
    changes.flatMap(({ after }) => (after === null ? [] : [after])),
  );
  t.is((await knex('policy_subjects')).length, 2 * ((many * 2) / 3));
  t.true(Math.max(...sizes) <= 1_000_000, `${Math.max(...sizes)} bytes`);
  t.true(asked < 40 && sizes.length - asked < 40, `${asked} and ${sizes.length - asked} statements`);
  await t.throwsAsync(store.change([{ before: null, after: policy(id(1)) }]), undefined, 'what is there is not made again');
});

eachEngine(test.serial, 'an impossible row stops the load', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  await policyStore(knex).change([{ before: null, after: policy('a') }]);
  const written = { effect: 'allow', enabled: true };
  for (const damage of [{ effect: 'Allow' }, { enabled: 2 }]) {
    await knex('policies')
      .where('id', 'a')
      .update({ ...written, ...damage });
    await t.throwsAsync(policyStore(knex).all(), { message: /contains an invalid row/ }, JSON.stringify(damage));
  }
});

eachEngine(
  test.serial,
  'a page of owners has exactly their policies, also if a name is the beginning of another',
  async (t, at) => {
    const { knex } = await openTestDatabase(t, at);
    const store = policyStore(knex);
    const owners = ['a', 'ab', 'a-b', 'a.b', 'a_b', 'axb'];
    const policies = [null, ...owners].map((owner, n) => policy(`p${n}`, { managed_as: owner && `${owner}/x` }));
    await store.change(policies.map((after) => ({ before: null, after })));
    const page = async (of: string[], limit: number | null = null): Promise<(string | null)[]> =>
      (await store.page(limit, null, new Set(of))).map(({ managed_as }) => managed_as);
    for (const owner of owners) t.deepEqual(await page([owner]), [`${owner}/x`]);
    t.deepEqual(await page(['a', 'axb', 'none']), ['a/x', 'axb/x']);
    t.deepEqual(await page(['a', 'axb'], 1), ['a/x']);
    t.deepEqual(await page([]), []);
    t.is((await store.page(null, null)).length, 7);
  },
);

eachEngine(test.serial, 'policies come in the order of evaluation, page by page, with every filter', async (t, at) => {
  const store = policyStore((await openTestDatabase(t, at)).knex);
  const all = Array.from({ length: 120 }, (_, i) =>
    policy(`00000000-0000-7000-8000-${String((i * 7919) % 1_000).padStart(12, '0')}`, {
      name: ['Ann', 'bob', 'ÄRGER', '50%', 'a_b', "o'x"][i % 6] ?? '',
      priority: [5, -3, 2 ** 31 - 1, -(2 ** 31)][i % 4] ?? 0,
      effect: i % 3 === 0 ? 'deny' : 'allow',
      enabled: i % 5 !== 0,
      target_id: i % 2 === 0 ? null : `t${i % 7}`,
      resource_pattern: i % 11 === 0 ? null : `^x${i % 13}$`,
      managed_as: i % 3 === 0 ? null : `team${i % 2}/p${i}`,
    }),
  );
  await store.change(all.map((after) => ({ before: null, after })));
  const ordered = [...all].sort(inReadingOrder).map((each, i) => ({ position: i + 1, policy: each }));
  const filters: OrderFilter[] = [
    {},
    { effect: 'deny' },
    { effect: 'allow', enabled: false },
    { enabled: true, target_id: 't3' },
  ];
  for (const text of ['ANN', 'ÄRGER', '%', '_', "'", 'X1', all[3]?.id ?? '']) filters.push({ text });
  for (const owners of [null, new Set(['team1']), new Set(['default', 'team0']), new Set<string>()]) {
    for (const filter of filters) {
      const { text, ...exact } = filter;
      const wanted = ordered.filter(
        ({ policy: each }) =>
          Object.entries(exact).every(([name, value]) => each[name as keyof typeof each] === value) &&
          (owners === null || owners.has(each.managed_as?.split('/')[0] ?? '')) &&
          (text === undefined ||
            each.id === text ||
            [each.name, each.resource_pattern ?? ''].some((its) => its.toLowerCase().includes(text.toLowerCase()))),
      );
      const found = [];
      for (let more = true; more; ) {
        const page = await store.inOrder(filter, 7, found.at(-1)?.policy ?? null, owners);
        found.push(...page);
        more = page.length === 7;
      }
      t.deepEqual(found, wanted, JSON.stringify({ filter, owners: owners && [...owners] }));
    }
  }
});

eachEngine(
  test.serial,
  'of an owner, a limited number of policies that were deleted outside of their files is remembered',
  async (t, at) => {
    const { knex } = await openTestDatabase(t, at);
    const store = policyStore(knex);
    const rows = Array.from({ length: 10_000 }, (_, i) => ({ managed_as: `a/${i}`, drift_since: 1 + i }));
    await insertRows(knex, 'deleted_policies', [
      ...rows,
      { managed_as: 'a-b/1', drift_since: 1 },
      { managed_as: 'aa/1', drift_since: 2 },
    ]);
    const some = [policy('1', { managed_as: 'a/x' }), policy('2', { managed_as: 'a/y' }), policy('3', { managed_as: 'aa/x' })];
    await store.change(some.map((after) => ({ before: null, after })));
    await store.change(
      some.map((before) => ({ before, after: null })),
      20_000,
    );
    const left = await store.deletedOf('a');
    t.is(left.size, 10_000);
    t.deepEqual([left.get('a/1'), left.get('a/2'), left.get('a/x'), left.get('a/y')], [undefined, 3, 20_000, 20_000]);
    t.deepEqual([...(await store.deletedOf('aa'))].sort(), [
      ['aa/1', 2],
      ['aa/x', 20_000],
    ]);
    t.deepEqual([...(await store.deletedOf('a-b'))], [['a-b/1', 1]]);
    t.is(
      await knex('deleted_policies')
        .pluck('managed_as')
        .then(({ length }) => length),
      10_003,
    );
  },
);
