/**
 * Pages of the legacy part of the audit log: version 1, whose tables hold whole rows. Older gateways wrote it. The gateway reads it until
 * retention has removed the last row.
 */
import { pause } from '../../base/turns/slices.ts';
import type { Connection } from '../../db/database.ts';
import type { DecisionRecord } from '../records/records.ts';
import { type AuditEntry, type AuditPage, type EntryRow, entryOf } from './entries.ts';
import { ALL, boundsOf, type Condition, type Driver, driversOf, type LogFilter, unindexedOf } from './filter.ts';

/** How many rows one page may search if no single index answers the whole filter. */
export const LOOKED_AT = 20_000;

const RECORD_COLUMNS = [
  'id',
  'created_at',
  'issuer',
  'user_id',
  'user_email',
  'user_role',
  'user_groups',
  'target_id',
  'target_name',
  'method',
  'resource_type',
  'resource_name',
  'effect',
  'reason',
  'policy_id',
  'policy_name',
  'policy_priority',
  'revision',
  'data_hash',
  'engine_hash',
  'arguments',
] as const satisfies (keyof DecisionRecord)[];
export function legacyStore(db: Connection) {
  const isMysql = db.client.dialect === 'mysql';
  // Select the ids first: with whole rows, a server would write a temporary table to disk.
  const read = (ids: ReturnType<Connection>): Promise<EntryRow[]> =>
    db
      .from(ids.as('k'))
      .join('audit_decisions as d', 'd.id', 'k.id')
      .leftJoin('audit_shown as s', 's.decision_id', 'd.id')
      .leftJoin('audit_sets as n', 'n.hash', 's.set_hash')
      .leftJoin('audit_outcomes as o', 'o.decision_id', 'd.id')
      .select(...[...RECORD_COLUMNS, 'chain_id', 'chain_seq'].map((column) => `d.${column}`))
      .select('s.shown', 's.hidden', 'n.names', 'o.outcome', 'o.duration_ms')
      .orderBy('k.id', 'desc');

  /** Names the index. If the query planner guessed wrong which condition matches few rows, it could sort millions of rows. */
  const hinted = (alias: string, index: string | null): string =>
    isMysql
      ? `audit_decisions as ${alias} force index (${index ?? 'primary'})`
      : `audit_decisions as ${alias} indexed by ${index ?? 'sqlite_autoindex_audit_decisions_1'}`;

  /**
   * Selects the ids that the index of `driver` yields and that the indexes of `others` also have, in the order of `driver`. The
   * rows themselves are not read, because they are far apart on disk.
   */
  function led(driver: Driver, others: readonly Driver[]): ReturnType<Connection> {
    const joined = others.map(({ index, conditions }, i) => {
      const alias = `o${i}`;
      const on = conditions.map(([column, operator]) => ` and ${alias}.${column} ${operator} ?`);
      return ` ${isMysql ? 'straight_join' : 'cross join'} ${hinted(alias, index)} on ${alias}.id = a.id${on.join('')}`;
    });
    const values = others.flatMap(({ conditions }) => conditions.map(([, , value]) => value));
    return held(db.from(db.raw(`${hinted('a', driver.index)}${joined.join('')}`, values)).select('a.id'), driver.conditions);
  }

  function held(query: ReturnType<Connection>, conditions: readonly Condition[]): ReturnType<Connection> {
    for (const [column, operator, value] of conditions) query.where(`a.${column}`, operator, value);
    return query;
  }

  /** Returns the id at position `many`; null: there are fewer ids. */
  async function lastOf(ids: ReturnType<Connection>, many: number): Promise<string | null> {
    return (await ids.offset(many - 1).first<{ id: string } | undefined>())?.id ?? null;
  }

  return {
    hasRows: async (): Promise<boolean> => (await db('audit_decisions').first('id')) !== undefined,

    /**
     * Returns the newest decisions before `cursor` (a decision id). One page searches at most LOOKED_AT rows, even if matches are
     * rare. So a page may have fewer than `limit` entries, or none, and still have a next page.
     */
    async page(filter: LogFilter, limit: number, cursor: string | null): Promise<AuditPage> {
      const within = (ids: ReturnType<Connection>, floor: string | null = null): ReturnType<Connection> => {
        const { low, high } = boundsOf(filter, floor, cursor);
        if (low !== null) ids.where('a.id', '>=', low);
        if (high !== null) ids.where('a.id', '<', high);
        return ids.orderBy('a.id', 'desc');
      };
      const pageOf = async (ids: ReturnType<Connection>, floor: string | null): Promise<AuditPage> => {
        const rows = await read(within(ids, floor).limit(limit + 1));
        const entries: AuditEntry[] = [];
        for (const row of rows.slice(0, limit)) {
          await pause();
          entries.push(entryOf(row));
        }
        return { entries, next: rows.length > limit ? (entries.at(-1)?.id ?? null) : floor };
      };

      const drivers = driversOf(filter);
      const unindexed = unindexedOf(filter);
      const [first = ALL] = drivers;
      if (filter.id !== undefined) {
        const asked = [...drivers.flatMap(({ conditions }) => conditions), ...unindexed];
        return pageOf(held(led(ALL, []), asked), null);
      }
      if (drivers.length <= 1 && unindexed.length === 0) return pageOf(led(first, []), null);
      // It is unknown which condition matches few rows, and that can differ along the log. So take the index whose LOOKED_AT ids reach
      // furthest back.
      let best = first;
      let floor = await lastOf(within(led(first, [])), LOOKED_AT);
      for (const driver of drivers.slice(1)) {
        if (floor === null) break;
        const reached = await lastOf(within(led(driver, [])), LOOKED_AT);
        if (reached !== null && reached >= floor) continue;
        best = driver;
        floor = reached;
      }
      const others = drivers.filter((driver) => driver !== best);
      if (unindexed.length === 0) return pageOf(led(best, others), floor);
      if (best === ALL) return pageOf(held(led(ALL, []), unindexed), floor);
      // The conditions without an index come last, because they read the row.
      return pageOf(led(best, [...others, { index: null, conditions: unindexed }]), floor);
    },

    async find(id: string): Promise<AuditEntry | null> {
      const [row] = await read(held(led(ALL, []), [['id', '=', id]]));
      return row ? entryOf(row) : null;
    },
  };
}
