/**
 * Makes reads causal: they see every commit that was acknowledged before they began, on any member of a cluster (law 4). A single
 * server does that by itself. Each kind of cluster has its own setting for it, per connection.
 */
import { AppError } from '../base/errors.ts';

/** Runs a statement on the connection that is being prepared and resolves with its rows. */
export type Ask = (sql: string) => Promise<unknown>;

interface Setting {
  /** The server is of this kind if it has this variable with a value that is not in `not`. */
  readonly variable: string;
  readonly not: readonly string[];
  readonly sql: string;
}

const SETTINGS: readonly Setting[] = [
  // Galera: a read, and the start of a transaction, wait until this node has applied all commits of the cluster so far.
  { variable: 'wsrep_on', not: ['OFF'], sql: 'set session wsrep_sync_wait = 1' },
  // Otherwise a node that has lost the others would answer from its old state without waiting.
  { variable: 'wsrep_on', not: ['OFF'], sql: 'set session wsrep_dirty_reads = OFF' },
  // Group Replication and InnoDB Cluster: the first statement of a transaction waits, as in Galera.
  { variable: 'group_replication_consistency', not: [], sql: "set session group_replication_consistency = 'BEFORE'" },
  // TiDB reads the newest commit unless the session is configured for less.
  { variable: 'tidb_replica_read', not: [], sql: "set session tidb_replica_read = 'leader'" },
  { variable: 'tidb_read_staleness', not: [], sql: 'set session tidb_read_staleness = 0' },
  { variable: 'tidb_low_resolution_tso', not: [], sql: 'set session tidb_low_resolution_tso = OFF' },
  { variable: 'tidb_enable_external_ts_read', not: [], sql: 'set session tidb_enable_external_ts_read = OFF' },
];

/** On a server that has left its group these settings have no effect: it knows only its own commits. */
const GROUP = 'group_replication_group_name';
const MEMBER_STATE =
  'select member_state as state from performance_schema.replication_group_members where member_id = @@global.server_uuid';

const asked = [...new Set([...SETTINGS.map(({ variable }) => variable), GROUP])];
const VARIABLES = `show variables where variable_name in (${asked.map((name) => `'${name}'`).join()})`;

/**
 * Makes the reads of a connection causal. Throws AppError `unavailable` if the server is not an online member of the group that
 * it is configured for.
 */
export async function makeCausal(ask: Ask): Promise<void> {
  const rows = (await ask(VARIABLES)) as { Variable_name: string; Value: string }[];
  const values = new Map(rows.map((row) => [row.Variable_name.toLowerCase(), row.Value]));
  if ((values.get(GROUP) ?? '') !== '') {
    const state = await memberState(ask);
    if (state !== 'ONLINE') {
      const detail = `The database server is ${state} in its replication group, so it may not have the newest state. It must be ONLINE.`;
      throw new AppError('unavailable', detail, { retryAfter: 1 });
    }
  }
  for (const { variable, not, sql } of SETTINGS) {
    const value = values.get(variable);
    if (value !== undefined && !not.includes(value)) await ask(sql);
  }
}

async function memberState(ask: Ask): Promise<string> {
  try {
    const [member] = (await ask(MEMBER_STATE)) as { state: string }[];
    return member?.state ?? 'OFFLINE';
  } catch (cause) {
    if ((cause as { code?: string }).code !== 'ER_TABLEACCESS_DENIED_ERROR') throw cause;
    const grant = 'grant select on performance_schema.replication_group_members';
    throw new AppError(
      'unavailable',
      `The gateway cannot check that the database server is a member of its group: ${grant} to the gateway's database user.`,
      {
        cause,
      },
    );
  }
}
