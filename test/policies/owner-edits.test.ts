/** Limits of an owner while the policies of the owner change. */
import test from 'ava';
import { AppError } from '../../src/base/errors.ts';
import { uuidv7 } from '../../src/base/ids.ts';
import { createChanges } from '../../src/db/changes.ts';
import { createNameSearch } from '../../src/policies/limits/limits.ts';
import { createOwnerEdits } from '../../src/policies/owner-edits.ts';
import { policyStore } from '../../src/policies/policy-store.ts';
import { ADMIN, ALL_RIGHTS } from '../support/authority.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { NO_INVARIANTS, policy } from './policies.ts';

eachEngine(
  test.serial,
  'names outside of new limits are searched before the transaction, also if policies change meanwhile',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const changes = await createChanges(database, Date.now);
    let isOpen = false;
    let always = false;
    const asked: (string | null)[][] = [];
    const search = createNameSearch();
    const brings = async (pattern: string): Promise<void> => {
      const after = policy(uuidv7(), { managed_as: `a/${pattern}.yaml`, resource_pattern: `^read_${pattern}$` });
      await changes.change({ id: 'm', email: 'm@example.com', request_id: 'r' }, async (trx) => {
        await policyStore(trx).change([{ before: null, after }]);
        return { result: null, changes: [{ action: 'policy.create', object_id: after.id, before: null, after }] };
      });
    };
    const owners = createOwnerEdits({
      database,
      administer: (_caller, _rights, work) =>
        changes.change({ id: 'admin', email: 'a@example.com', request_id: 'r' }, async (trx) => {
          isOpen = true;
          try {
            return await work(trx, ALL_RIGHTS);
          } finally {
            isOpen = false;
          }
        }),
      targetExists: async () => true,
      checkPattern: () => null,
      async findNames(outside) {
        t.false(isOpen, 'a transaction is open');
        asked.push(outside.map(({ pattern }) => pattern));
        if (asked.length === 1 || always) await brings(`new_${asked.length}`);
        return search(outside);
      },
      settle: NO_INVARIANTS.settle,
      now: Date.now,
    });
    await brings('first');
    const put = (resource_patterns: string[]) => owners.put(ADMIN, 'a', { limits: { resource_patterns } }, undefined);
    t.true((await put(['^read_'])).created);
    t.deepEqual(asked, [['^read_first$'], ['^read_new_1$']], 'what was found before is not searched again');
    always = true;
    const error = await t.throwsAsync<AppError>(put(['^read_', '^list_']), { instanceOf: AppError });
    t.is(error?.code, 'retry');
    t.deepEqual((await database.knex('owners').first('limits')).limits.includes('list'), false);
    always = false;
    t.is((await t.throwsAsync<AppError>(put(['^read_first$'])))?.code, 'outside_limits');
  },
);

eachEngine(test.serial, 'a removal waits for the turns of changes that are checked again', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const order: string[] = [];
  const owners = createOwnerEdits({
    database,
    administer: (_caller, _rights, work) => {
      order.push('stored');
      return changes.change({ id: 'admin', email: 'a@example.com', request_id: 'r' }, (trx) => work(trx, ALL_RIGHTS));
    },
    targetExists: async () => true,
    checkPattern: () => null,
    findNames: createNameSearch(),
    settle: (_caller, work) => work(async () => void order.push('calm'), false),
    now: Date.now,
  });
  await owners.put(ADMIN, 'a', { limits: {} }, undefined);
  order.length = 0;
  await owners.remove(ADMIN, 'a', undefined);
  t.deepEqual(order, ['calm', 'stored']);
  t.is((await t.throwsAsync<AppError>(owners.remove(ADMIN, 'a', undefined)))?.code, 'not_found');
});

eachEngine(test.serial, 'the limits of all owners together have a limited length', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const changes = await createChanges(database, Date.now);
  const owners = createOwnerEdits({
    database,
    administer: (_caller, _rights, work) =>
      changes.change({ id: 'admin', email: 'a@example.com', request_id: 'r' }, (trx) => work(trx, ALL_RIGHTS)),
    targetExists: async () => true,
    checkPattern: () => null,
    findNames: createNameSearch(),
    settle: (_caller, work) => work(async () => undefined, false),
    now: Date.now,
  });
  const put = (name: string, count: number) => {
    const subjects = Array.from({ length: count }, (_, n) => ({
      subject_type: 'group' as const,
      subject_value: `${n}`.padEnd(256, 'x'),
    }));
    return owners.put(ADMIN, name, { limits: { subjects } }, undefined);
  };
  for (let n = 0; n < 6; n++) await put(`o${n}`, 1_000);
  t.is((await t.throwsAsync<AppError>(put('more', 1_000)))?.code, 'limit_reached');
  await put('small', 100);
  t.is((await t.throwsAsync<AppError>(put('small', 1_000)))?.code, 'limit_reached', 'of all others, and of this one');
  await database
    .knex('owners')
    .where({ name: 'small' })
    .update({ limits: JSON.stringify({ x: 'x'.repeat(3_000_000) }) });
  await put('small', 500);
  t.false((await put('o1', 999)).created, 'what is above the limit can become less');
});
