/** The audit tables: written once, never changed. */
import { createHash } from 'node:crypto';
import type { Connection } from '../db/database.ts';
import type { DecisionRecord, Outcome, OutcomeRecord, ShownRecord } from './event.ts';

/** A record as its table has it, and about how many bytes it is in a statement. */
export interface Stored<R> {
  readonly row: R;
  readonly bytes: number;
}

export interface DecisionRow extends Omit<DecisionRecord, 'user_groups'> {
  readonly user_groups: string;
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

export function storedDecision(record: DecisionRecord): Stored<DecisionRow> {
  return stored({ ...record, user_groups: JSON.stringify(record.user_groups) });
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

function stored<R extends object>(row: R): Stored<R> {
  let bytes = 0;
  for (const value of Object.values(row)) bytes += typeof value === 'string' ? Buffer.byteLength(value) + 3 : 20;
  return { row, bytes };
}

/** A decision with what became of it. */
export interface AuditEntry extends DecisionRecord {
  readonly shown: { readonly count: number; readonly hidden: number; readonly names: readonly string[] } | null;
  readonly outcome: Outcome | null;
  readonly duration_ms: number | null;
}

export interface AuditStore {
  /** Each may take several statements; outside a transaction, the first of them can be stored alone. */
  insertDecisions(rows: readonly Stored<DecisionRow>[]): Promise<void>;
  insertShown(rows: readonly Stored<ShownRow>[]): Promise<void>;
  /** A second outcome of the same decision is ignored. */
  insertOutcomes(rows: readonly Stored<OutcomeRow>[]): Promise<void>;
  /** Whether the table holds exactly this row. */
  holdsDecision(row: DecisionRow): Promise<boolean>;
  holdsShown(row: ShownRow): Promise<boolean>;
  /** Newest first, from before `cursor` (a decision id). */
  list(limit: number, cursor: string | null): Promise<AuditEntry[]>;
  find(id: string): Promise<AuditEntry | null>;
}

const DECISION_COLUMNS = [
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
] as const satisfies (keyof DecisionRow)[];

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

interface EntryRow extends DecisionRow {
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
    const there = await db('audit_sets')
      .whereIn('hash', [...sets.keys()])
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

  const read = (narrow: (query: ReturnType<Connection>) => ReturnType<Connection>) =>
    db
      .from(narrow(db('audit_decisions')).as('d'))
      .leftJoin('audit_shown as s', 's.decision_id', 'd.id')
      .leftJoin('audit_sets as n', 'n.hash', 's.set_hash')
      .leftJoin('audit_outcomes as o', 'o.decision_id', 'd.id')
      .select('d.*', 's.shown', 's.hidden', 'n.names', 'o.outcome', 'o.duration_ms')
      .orderBy('d.id', 'desc');

  return {
    insertDecisions: (rows) => insert('audit_decisions', DECISION_COLUMNS, rows),

    async insertShown(rows) {
      if (rows.length === 0) return;
      await insertSets(rows);
      await insert('audit_shown', ['decision_id', 'resource_type', 'shown', 'hidden', 'set_hash'], rows);
    },

    async insertOutcomes(rows) {
      for (const batch of statements(rows)) {
        await db('audit_outcomes').insert(batch).onConflict('decision_id').merge(['decision_id']);
      }
    },

    async holdsDecision(row) {
      const there = await db('audit_decisions').where('id', row.id).first<DecisionRow | undefined>();
      return there !== undefined && DECISION_COLUMNS.every((column) => there[column] === row[column]);
    },

    async holdsShown(row) {
      const there = await db('audit_shown').where('decision_id', row.decision_id).first<ShownRow | undefined>();
      return there?.set_hash === row.set_hash && there.shown === row.shown && there.hidden === row.hidden;
    },

    async list(limit, cursor) {
      const rows: EntryRow[] = await read((query) => {
        const earlier = cursor === null ? query : query.where('id', '<', cursor);
        return earlier.orderBy('id', 'desc').limit(limit);
      });
      return rows.map(entryOf);
    },

    async find(id) {
      const [row]: EntryRow[] = await read((query) => query.where({ id }));
      return row ? entryOf(row) : null;
    },
  };
}
