/** Which settings a connection gets for the variables of its server. `npm run test:cluster` tests real servers. */
import test from 'ava';
import { AppError } from '../../src/base/errors.ts';
import { makeCausal } from '../../src/db/causal.ts';
import { transact } from '../../src/db/transact.ts';

/** Returns the statements that follow the questions to the server. `state` null: the group has no such member. */
async function told(variables: Record<string, string>, state: string | Error | null = null): Promise<string[]> {
  const statements: string[] = [];
  await makeCausal(async (sql) => {
    if (sql.startsWith('show variables'))
      return Object.entries(variables).map(([Variable_name, Value]) => ({ Variable_name, Value }));
    if (sql.includes('replication_group_members')) {
      if (state instanceof Error) throw state;
      return state === null ? [] : [{ state }];
    }
    statements.push(sql);
    return [];
  });
  return statements;
}

test('a single server gets no settings, and neither does a server with Galera that is not in a cluster', async (t) => {
  t.deepEqual(await told({}), []);
  t.deepEqual(await told({ wsrep_on: 'OFF' }), []);
});

test('a Galera node is set to wait for the commits of the cluster, and to answer nothing without a majority', async (t) => {
  t.deepEqual(await told({ wsrep_on: 'ON' }), ['set session wsrep_sync_wait = 1', 'set session wsrep_dirty_reads = OFF']);
});

test('a member of a group gets the setting of its cluster; a server that has left its group is refused', async (t) => {
  const member = { group_replication_consistency: 'EVENTUAL', group_replication_group_name: 'a group' };
  t.deepEqual(await told(member, 'ONLINE'), ["set session group_replication_consistency = 'BEFORE'"]);
  for (const state of ['OFFLINE', 'RECOVERING', 'ERROR', 'UNREACHABLE', null]) {
    const error = await t.throwsAsync(told(member, state), { instanceOf: AppError });
    t.is(error.code, 'unavailable', String(state));
  }
  const denied = Object.assign(new Error('denied'), { code: 'ER_TABLEACCESS_DENIED_ERROR' });
  await t.throwsAsync(told(member, denied), {
    instanceOf: AppError,
    message: /grant select on performance_schema\.replication_group_members/,
  });
});

test('a server with the plugin and without a group is a server by itself', async (t) => {
  const plain = { group_replication_consistency: 'EVENTUAL', group_replication_group_name: '' };
  t.deepEqual(await told(plain, 'OFFLINE'), ["set session group_replication_consistency = 'BEFORE'"]);
});

/** Returns how often `transact` runs the work if the first attempt fails with this error. */
async function attempts(error: Error): Promise<number> {
  let tried = 0;
  const transaction = async (): Promise<void> => {
    if (++tried === 1) throw error;
  };
  await transact({ knex: { transaction } as never }, async () => {});
  return tried;
}

test('a transaction that a cluster rolled back is retried, and no other one is', async (t) => {
  const coded = (code: string, message = code): Error => Object.assign(new Error(message), { code });
  for (const code of ['ER_LOCK_DEADLOCK', 'ER_TRANSACTION_ROLLBACK_DURING_COMMIT', 'ER_CHECKREAD'])
    t.is(await attempts(coded(code)), 2);
  const commit = (text: string): Error => coded('ER_ERROR_DURING_COMMIT', `Got error ${text} during COMMIT`);
  t.is(await attempts(commit("149 - 'Lock deadlock; Retry transaction'")), 2);
  await t.throwsAsync(attempts(commit("28 - 'No space left on device'")), { code: 'ER_ERROR_DURING_COMMIT' });
  await t.throwsAsync(attempts(coded('PROTOCOL_CONNECTION_LOST')), { code: 'PROTOCOL_CONNECTION_LOST' });
});
