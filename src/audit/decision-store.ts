/** The audit tables. A row is written once, only an erasure changes it, and it is only removed by age. */
import { createHash } from 'node:crypto';
import { batches, bytesOfRow, MAX_STATEMENT_BYTES, MAX_STATEMENT_ROWS } from '../db/batches.ts';
import type { Connection } from '../db/database.ts';
import { literalOf, statement, type Value } from '../db/statement.ts';
import type { CapturedArguments } from './arguments.ts';
import { newSalt, personHash, resourceKey, type Stamp } from './chain/chain.ts';
import { ALL, type Condition, type Driver, driversOf, type LogFilter, unindexedOf } from './filter.ts';
import type { DecisionRecord, Outcome, OutcomeRecord, ShownRecord } from './records.ts';

/** The row of a record, and about how many bytes it takes in a statement. Escapes at most double them. */
export interface Stored<R> {
  readonly row: R;
  readonly bytes: number;
}

/** A record with its position in the chain, which is stored in columns of the same table. */
export interface Chained<R> extends Stored<R> {
  readonly stamp: Stamp;
}

export interface DecisionRow extends Omit<DecisionRecord, 'user_groups'> {
  readonly user_groups: string;
  /** null after personal data was erased. */
  readonly salt: string | null;
  readonly person_hash: string;
  readonly resource_key: string | null;
}

/** `names` is canonical JSON. It is sorted, so that the same items in a different order make the same set. */
export interface ShownRow {
  readonly decision_id: string;
  readonly resource_type: string;
  readonly shown: number;
  readonly hidden: number;
  readonly set_hash: string;
  readonly names: string;
}

export interface OutcomeRow extends OutcomeRecord {
  readonly created_at: number;
}

/** A larger set of names is stored without its last names. `shown` still counts them. */
export const MAX_SET_BYTES = 256 * 1024;

const SUSPICIOUS = /[\0\ud800-\udfff]/;

/** Returns the text as a database can store it, because the MAC covers the stored text: no lone surrogate, and no NUL. */
function storable<T extends string | null>(text: T): T {
  if (text === null || !SUSPICIOUS.test(text)) return text;
  return text.toWellFormed().replaceAll('\0', '\ufffd') as T;
}

export function storedDecision(record: DecisionRecord): Stored<DecisionRow> {
  const user_email = storable(record.user_email);
  const user_groups = JSON.stringify(record.user_groups);
  const resource_name = storable(record.resource_name);
  const salt = newSalt();
  // The members are named one by one, because a spread of so many is slow.
  return stored({
    id: record.id,
    created_at: record.created_at,
    issuer: record.issuer,
    user_id: storable(record.user_id),
    user_email,
    user_role: storable(record.user_role),
    user_groups,
    target_id: record.target_id,
    target_name: storable(record.target_name),
    method: storable(record.method),
    resource_type: record.resource_type,
    resource_name,
    arguments: record.arguments,
    effect: record.effect,
    reason: record.reason,
    policy_id: record.policy_id,
    policy_name: record.policy_name,
    policy_priority: record.policy_priority,
    revision: record.revision,
    data_hash: record.data_hash,
    engine_hash: record.engine_hash,
    salt,
    person_hash: personHash(salt, user_email, user_groups, record.arguments),
    resource_key: resourceKey(resource_name),
  });
}

export function storedShown(record: ShownRecord): Stored<ShownRow> {
  const sorted = record.names.toSorted();
  let names = JSON.stringify(sorted);
  if (Buffer.byteLength(names) > MAX_SET_BYTES) {
    const kept: string[] = [];
    let size = 2;
    for (const name of sorted) {
      size += Buffer.byteLength(JSON.stringify(name)) + 1;
      if (size > MAX_SET_BYTES) break;
      kept.push(name);
    }
    names = JSON.stringify(kept);
  }
  return stored({
    decision_id: record.decision_id,
    resource_type: record.resource_type,
    shown: record.names.length,
    hidden: record.hidden,
    set_hash: createHash('sha256').update(names).digest('hex'),
    names,
  });
}

export function storedOutcome(record: OutcomeRecord, now: number): Stored<OutcomeRow> {
  return stored({ decision_id: record.decision_id, outcome: record.outcome, duration_ms: record.duration_ms, created_at: now });
}

/** Bytes that the columns of the chain add to each row. */
const STAMP_BYTES = 120;

function stored<R extends object>(row: R): Stored<R> {
  return { row, bytes: STAMP_BYTES + bytesOfRow(row) };
}

/** A decision with its list and its outcome. */
export interface AuditEntry extends Omit<DecisionRecord, 'arguments'> {
  readonly arguments: CapturedArguments | null;
  /** The position in the chain; null if the decision is older than the first chain. */
  readonly chain_id: string | null;
  readonly chain_seq: number | null;
  readonly shown: { readonly count: number; readonly hidden: number; readonly names: readonly string[] } | null;
  readonly outcome: Outcome | null;
  readonly duration_ms: number | null;
}

/** One page of decisions. */
export interface AuditPage {
  readonly entries: readonly AuditEntry[];
  /** The next page begins before this id; null: this is the last page. */
  readonly next: string | null;
}

export type AuditStore = ReturnType<typeof auditStore>;

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
] as const satisfies (keyof DecisionRecord)[];
/** A further column, which is inserted only if a row has arguments. */
const ARGUMENTS = 'arguments' satisfies keyof DecisionRecord;

const STAMP_COLUMNS = ['chain_id', 'chain_seq', 'mac'] as const satisfies (keyof Stamp)[];
const DECISION_COLUMNS = [...RECORD_COLUMNS, 'salt', 'person_hash', 'resource_key'] as const satisfies (keyof DecisionRow)[];
const SHOWN_COLUMNS = ['decision_id', 'resource_type', 'shown', 'hidden', 'set_hash'] as const satisfies (keyof ShownRow)[];
const OUTCOME_COLUMNS = ['decision_id', 'outcome', 'duration_ms', 'created_at'] as const satisfies (keyof OutcomeRow)[];

/** Whether one statement can insert all rows. Such a statement is atomic without a transaction. */
export function fitsOneStatement(rows: readonly Stored<DecisionRow>[]): boolean {
  return rows.length <= MAX_STATEMENT_ROWS && rows.reduce((sum, { bytes }) => sum + bytes, 0) <= MAX_STATEMENT_BYTES;
}

interface EntryRow extends Omit<AuditEntry, 'user_groups' | 'arguments' | 'shown'> {
  readonly user_groups: string;
  readonly arguments: string | null;
  readonly shown: number | null;
  readonly hidden: number;
  readonly names: string | null;
}

function entryOf({ shown, hidden, names, ...row }: EntryRow): AuditEntry {
  return {
    ...row,
    user_groups: JSON.parse(row.user_groups),
    arguments: row.arguments === null ? null : JSON.parse(row.arguments),
    shown: shown === null ? null : { count: shown, hidden, names: JSON.parse(names ?? '[]') },
  };
}

export function auditStore(db: Connection) {
  const isMysql = db.client.dialect === 'mysql';
  const literal = literalOf(db);

  async function insert<R extends object>(
    table: string,
    columns: readonly (keyof R & string)[],
    records: readonly Chained<R>[],
  ): Promise<void> {
    for (const batch of batches(records, ({ bytes }) => bytes)) {
      let values = '';
      for (const { row, stamp } of batch) {
        values += values === '' ? '(' : '),(';
        for (const column of columns) values += `${literal(row[column] as Value)},`;
        values += `${literal(stamp.chain_id)},${literal(stamp.chain_seq)},${literal(stamp.mac)}`;
      }
      await statement(db, `insert into ${table} (${[...columns, ...STAMP_COLUMNS].join()}) values ${values})`);
    }
  }

  async function insertSets(rows: readonly Stored<ShownRow>[]): Promise<void> {
    const sets = new Map(rows.map(({ row }) => [row.set_hash, row.names]));
    // Lock existing sets until the commit, so that retention cannot remove one before this row refers to it.
    const there = await db('audit_sets')
      .whereIn('hash', [...sets.keys()])
      .forShare()
      .select<{ hash: string }[]>('hash');
    for (const { hash } of there) sets.delete(hash);
    // Sort, so that replicas which store the same sets at once lock them in the same order. `merge` is used because `ignore`
    // hides every error in MySQL.
    for (const hash of [...sets.keys()].sort()) {
      await db('audit_sets')
        .insert({ hash, names: sets.get(hash) })
        .onConflict('hash')
        .merge(['hash']);
    }
  }

  // Select the ids first: with whole rows, a server would write a temporary table to disk.
  const read = (ids: ReturnType<Connection>): Promise<EntryRow[]> =>
    db
      .from(ids.as('k'))
      .join('audit_decisions as d', 'd.id', 'k.id')
      .leftJoin('audit_shown as s', 's.decision_id', 'd.id')
      .leftJoin('audit_sets as n', 'n.hash', 's.set_hash')
      .leftJoin('audit_outcomes as o', 'o.decision_id', 'd.id')
      .select(...[...RECORD_COLUMNS, ARGUMENTS, 'chain_id', 'chain_seq'].map((column) => `d.${column}`))
      .select('s.shown', 's.hidden', 'n.names', 'o.outcome', 'o.duration_ms')
      .orderBy('k.id', 'desc');

  /** Names the index, because a query planner that guesses wrong which condition is rare may sort millions of rows. */
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

  async function holds(table: string, key: 'id' | 'decision_id', id: string, { mac }: Stamp): Promise<boolean> {
    const there = await db(table).where(key, id).first<{ mac: string | null } | undefined>('mac');
    return there?.mac === mac;
  }

  return {
    /** Each insert may take several statements. Outside a transaction a failure can leave only the first of them stored. */
    insertDecisions(rows: readonly Chained<DecisionRow>[]): Promise<void> {
      const some = rows.some(({ row }) => row.arguments !== null);
      return insert('audit_decisions', some ? [...DECISION_COLUMNS, ARGUMENTS] : DECISION_COLUMNS, rows);
    },

    async insertShown(rows: readonly Chained<ShownRow>[]): Promise<void> {
      if (rows.length === 0) return;
      await insertSets(rows);
      await insert('audit_shown', SHOWN_COLUMNS, rows);
    },

    insertOutcomes: (rows: readonly Chained<OutcomeRow>[]): Promise<void> => insert('audit_outcomes', OUTCOME_COLUMNS, rows),

    /** Whether the table has exactly this row. The MAC shows it, because it covers the whole row. */
    holdsDecision: ({ row, stamp }: Chained<DecisionRow>): Promise<boolean> => holds('audit_decisions', 'id', row.id, stamp),
    holdsShown: ({ row, stamp }: Chained<ShownRow>): Promise<boolean> =>
      holds('audit_shown', 'decision_id', row.decision_id, stamp),
    holdsOutcome: ({ row, stamp }: Chained<OutcomeRow>): Promise<boolean> =>
      holds('audit_outcomes', 'decision_id', row.decision_id, stamp),

    /**
     * Returns the newest decisions before `cursor` (a decision id). One page searches at most LOOKED_AT rows, even if matches are
     * rare. So a page may have fewer than `limit` entries, or none, and still have a next page.
     */
    async page(filter: LogFilter, limit: number, cursor: string | null): Promise<AuditPage> {
      const within = (ids: ReturnType<Connection>): ReturnType<Connection> => {
        if (filter.before !== undefined) ids.where('a.id', '<', filter.before);
        if (filter.since !== undefined) ids.where('a.id', '>=', filter.since);
        if (cursor !== null) ids.where('a.id', '<', cursor);
        return ids.orderBy('a.id', 'desc');
      };
      const pageOf = async (ids: ReturnType<Connection>, floor: string | null): Promise<AuditPage> => {
        if (floor !== null) ids.where('a.id', '>=', floor);
        const rows = await read(within(ids).limit(limit + 1));
        const entries = rows.slice(0, limit).map(entryOf);
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
      // Which condition is rare is unknown, and can differ along the log. Take the index whose LOOKED_AT ids reach furthest back.
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
