/** The audit tables: written once, never changed but by erasure, and removed by age alone. */
import { createHash } from 'node:crypto';
import type { Connection } from '../db/database.ts';
import { newSalt, personHash, resourceKey, type Stamp } from './chain.ts';
import type { DecisionRecord, Outcome, OutcomeRecord, ShownRecord } from './event.ts';
import { driverOf, type LogFilter, remainder } from './filter.ts';

/** A record as its table has it, and about how many bytes it is in a statement. */
export interface Stored<R> {
  readonly row: R;
  readonly bytes: number;
}

export interface DecisionRow extends Omit<DecisionRecord, 'user_groups'> {
  readonly user_groups: string;
  /** null once e-mail and groups are erased. */
  readonly salt: string | null;
  readonly person_hash: string;
  readonly resource_key: string | null;
}

/** `names` is canonical JSON: sorted, so that the same items in another order are the same set. */
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

/** A set of names is stored up to this size. Beyond, it lacks its last ones, and `shown` still counts them. */
export const MAX_SET_BYTES = 256 * 1024;

/** A MAC is over what is stored: databases keep neither half a surrogate pair nor what follows a NUL. */
const storable = <T extends string | null>(text: T): T => (text?.toWellFormed().replaceAll('\0', '\ufffd') ?? null) as T;

export function storedDecision(record: DecisionRecord): Stored<DecisionRow> {
  const user_email = storable(record.user_email);
  const user_groups = JSON.stringify(record.user_groups);
  const resource_name = storable(record.resource_name);
  const salt = newSalt();
  return stored({
    ...record,
    user_id: storable(record.user_id),
    user_email,
    user_role: storable(record.user_role),
    user_groups,
    target_name: storable(record.target_name),
    method: storable(record.method),
    resource_name,
    salt,
    person_hash: personHash(salt, user_email, user_groups),
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
  return stored({ ...record, created_at: now });
}

/** What the chain adds to each row. */
const STAMP_BYTES = 120;

function stored<R extends object>(row: R): Stored<R> {
  let bytes = STAMP_BYTES;
  for (const value of Object.values(row)) bytes += typeof value === 'string' ? Buffer.byteLength(value) + 3 : 20;
  return { row, bytes };
}

/** A decision with what became of it. */
export interface AuditEntry extends DecisionRecord {
  /** Its place in the chain; null for what is from before there were chains. */
  readonly chain_id: string | null;
  readonly chain_seq: number | null;
  readonly shown: { readonly count: number; readonly hidden: number; readonly names: readonly string[] } | null;
  readonly outcome: Outcome | null;
  readonly duration_ms: number | null;
}

/** Part of a list of decisions. */
export interface AuditPage {
  readonly entries: readonly AuditEntry[];
  /** Id from before which the next page goes on; null: there is no more. */
  readonly next: string | null;
}

export interface AuditStore {
  /** Each may take several statements; outside a transaction, the first of them can be stored alone. */
  insertDecisions(rows: readonly Stored<DecisionRow & Stamp>[]): Promise<void>;
  insertShown(rows: readonly Stored<ShownRow & Stamp>[]): Promise<void>;
  insertOutcomes(rows: readonly Stored<OutcomeRow & Stamp>[]): Promise<void>;
  /** Whether the table holds exactly this row: its MAC is over all that the row says. */
  holdsDecision(row: DecisionRow & Stamp): Promise<boolean>;
  holdsShown(row: ShownRow & Stamp): Promise<boolean>;
  holdsOutcome(row: OutcomeRow & Stamp): Promise<boolean>;
  /**
   * Newest first, from before `cursor` (a decision id). However rare what the filter asks for is, one page looks at no more
   * than LOOKED_AT rows, so it may have fewer than `limit` entries, or none, and still a next one.
   */
  page(filter: LogFilter, limit: number, cursor: string | null): Promise<AuditPage>;
  find(id: string): Promise<AuditEntry | null>;
}

/** Rows that one page may look at when no index finds those that are wanted. */
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

const STAMP_COLUMNS = ['chain_id', 'chain_seq', 'mac'] as const satisfies (keyof Stamp)[];
const DECISION_COLUMNS = [...RECORD_COLUMNS, 'salt', 'person_hash', 'resource_key', ...STAMP_COLUMNS] as const;
const SHOWN_COLUMNS = ['decision_id', 'resource_type', 'shown', 'hidden', 'set_hash', ...STAMP_COLUMNS] as const;
const OUTCOME_COLUMNS = ['decision_id', 'outcome', 'duration_ms', 'created_at', ...STAMP_COLUMNS] as const;

/** Servers refuse packets over max_allowed_packet, 4 MiB where it was lowered least. */
const MAX_STATEMENT_BYTES = 1024 * 1024;
/** SQLite takes at most 500 rows in the form in which knex inserts them. */
const MAX_STATEMENT_ROWS = 500;

/** One statement is atomic by itself. */
export function fitsOneStatement(rows: readonly Stored<DecisionRow>[]): boolean {
  return rows.length <= MAX_STATEMENT_ROWS && rows.reduce((sum, { bytes }) => sum + bytes, 0) <= MAX_STATEMENT_BYTES;
}

function* statements<R>(rows: readonly Stored<R>[]): Generator<R[]> {
  let batch: R[] = [];
  let size = 0;
  for (const { row, bytes } of rows) {
    if (batch.length > 0 && (size + bytes > MAX_STATEMENT_BYTES || batch.length === MAX_STATEMENT_ROWS)) {
      yield batch;
      batch = [];
      size = 0;
    }
    batch.push(row);
    size += bytes;
  }
  if (batch.length > 0) yield batch;
}

interface EntryRow extends Omit<DecisionRecord, 'user_groups'> {
  readonly user_groups: string;
  readonly chain_id: string | null;
  readonly chain_seq: number | null;
  readonly shown: number | null;
  readonly hidden: number;
  readonly names: string | null;
  readonly outcome: Outcome | null;
  readonly duration_ms: number | null;
}

function entryOf({ shown, hidden, names, ...row }: EntryRow): AuditEntry {
  return {
    ...row,
    user_groups: JSON.parse(row.user_groups),
    shown: shown === null ? null : { count: shown, hidden, names: JSON.parse(names ?? '[]') },
  };
}

export function auditStore(db: Connection): AuditStore {
  const isMysql = db.client.dialect === 'mysql';

  // knex builds inserts of many rows slowly.
  async function insert<R extends object>(
    table: string,
    columns: readonly (keyof R & string)[],
    rows: readonly Stored<R>[],
  ): Promise<void> {
    const tuple = `(${columns.map(() => '?').join(',')})`;
    for (const batch of statements(rows)) {
      const values = batch.map(() => tuple).join(',');
      const bindings = batch.flatMap((row) => columns.map((column) => row[column] as string | number | null));
      await db.raw(`insert into ${table} (${columns.join(',')}) values ${values}`, bindings);
    }
  }

  async function insertSets(rows: readonly Stored<ShownRow>[]): Promise<void> {
    const sets = new Map(rows.map(({ row }) => [row.set_hash, row.names]));
    // Held until the commit: a set that is there must not be removed by age before this row refers to it.
    const there = await db('audit_sets')
      .whereIn('hash', [...sets.keys()])
      .forShare()
      .select<{ hash: string }[]>('hash');
    for (const { hash } of there) sets.delete(hash);
    // Replicas that store the same sets at one moment lock them in one order. A merge and not `ignore`, which in MySQL forgives every fault.
    for (const hash of [...sets.keys()].sort()) {
      await db('audit_sets')
        .insert({ hash, names: sets.get(hash) })
        .onConflict('hash')
        .merge(['hash']);
    }
  }

  const read = (narrow: (query: ReturnType<Connection>) => ReturnType<Connection>, index: string | null) =>
    db
      .from(narrow(db.from(hinted(index))).as('d'))
      .leftJoin('audit_shown as s', 's.decision_id', 'd.id')
      .leftJoin('audit_sets as n', 'n.hash', 's.set_hash')
      .leftJoin('audit_outcomes as o', 'o.decision_id', 'd.id')
      .select(...[...RECORD_COLUMNS, 'chain_id', 'chain_seq'].map((column) => `d.${column}`))
      .select('s.shown', 's.hidden', 'n.names', 'o.outcome', 'o.duration_ms')
      .orderBy('d.id', 'desc');

  /** Planners guess which of several filters is the rare one, and may sort millions of rows where they guess wrong. */
  const hinted = (index: string | null) => {
    if (!isMysql) return db.raw(index === null ? 'audit_decisions' : `audit_decisions indexed by ${index}`);
    return db.raw(`audit_decisions force index (${index ?? 'primary'})`);
  };

  async function holds(table: string, key: 'id' | 'decision_id', id: string, { mac }: Stamp): Promise<boolean> {
    const there = await db(table).where(key, id).first<{ mac: string | null } | undefined>('mac');
    return there?.mac === mac;
  }

  return {
    insertDecisions: (rows) => insert('audit_decisions', DECISION_COLUMNS, rows),

    async insertShown(rows) {
      if (rows.length === 0) return;
      await insertSets(rows);
      await insert('audit_shown', SHOWN_COLUMNS, rows);
    },

    insertOutcomes: (rows) => insert('audit_outcomes', OUTCOME_COLUMNS, rows),

    holdsDecision: (row) => holds('audit_decisions', 'id', row.id, row),
    holdsShown: (row) => holds('audit_shown', 'decision_id', row.decision_id, row),
    holdsOutcome: (row) => holds('audit_outcomes', 'decision_id', row.decision_id, row),

    async page(filter, limit, cursor) {
      const driver = driverOf(filter);
      const rest = remainder(filter, driver);
      const among = (query: ReturnType<Connection>): ReturnType<Connection> => {
        if (driver !== null) query.where(driver.where);
        if (filter.before !== undefined) query.where('id', '<', filter.before);
        if (filter.since !== undefined) query.where('id', '>=', filter.since);
        return cursor === null ? query : query.where('id', '<', cursor);
      };
      const index = driver?.index ?? null;
      let floor: string | null = null;
      if (rest.length > 0) {
        const looked = among(db.from(hinted(index)))
          .orderBy('id', 'desc')
          .offset(LOOKED_AT - 1);
        floor = (await looked.first<{ id: string } | undefined>('id'))?.id ?? null;
      }
      const rows: EntryRow[] = await read((query) => {
        among(query);
        if (floor !== null) query.where('id', '>=', floor);
        for (const condition of rest) query.where(...condition);
        return query.orderBy('id', 'desc').limit(limit + 1);
      }, index);
      const entries = rows.slice(0, limit).map(entryOf);
      return { entries, next: rows.length > limit ? (entries.at(-1)?.id ?? null) : floor };
    },

    async find(id) {
      const [row]: EntryRow[] = await read((query) => query.where({ id }), null);
      return row ? entryOf(row) : null;
    },
  };
}
