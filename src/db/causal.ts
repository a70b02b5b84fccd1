/**
 * Reads that see every commit which was answered before they began, wherever in a cluster it was made (law 4). A single
 * server gives that by itself; each kind of cluster has a setting for it, which belongs to a connection.
 */

/** Variables by which a server shows what it is part of, and what makes its reads causal. */
const SETTINGS: readonly { readonly variable: string; readonly is: (value: string) => boolean; readonly sql: string }[] = [
  // Galera: a read waits until this node has applied what the cluster had committed when it began.
  { variable: 'wsrep_on', is: (value) => value === 'ON', sql: 'set session wsrep_sync_wait = 1' },
  // Group Replication and InnoDB Cluster: the same, and a member that is not in the group refuses.
  { variable: 'group_replication_consistency', is: () => true, sql: "set session group_replication_consistency = 'BEFORE'" },
  // TiDB reads the newest commit unless a session has been told to be content with less.
  { variable: 'tidb_replica_read', is: () => true, sql: "set session tidb_replica_read = 'leader'" },
  { variable: 'tidb_read_staleness', is: () => true, sql: 'set session tidb_read_staleness = 0' },
];

export const CAUSAL_VARIABLES = `show variables where variable_name in (${SETTINGS.map(({ variable }) => `'${variable}'`).join()})`;

/** What to tell a connection, given the answer to `CAUSAL_VARIABLES`. */
export function causalSettings(rows: readonly { readonly Variable_name: string; readonly Value: string }[]): string[] {
  const values = new Map(rows.map((row) => [row.Variable_name.toLowerCase(), row.Value]));
  return SETTINGS.filter(({ variable, is }) => {
    const value = values.get(variable);
    return value !== undefined && is(value);
  }).map(({ sql }) => sql);
}
