/** Rows of version 1 of the log and their inserts, as older gateways had them. */
import { createHash } from 'node:crypto';
import { newSalt, personHash, resourceKey, type Stamp } from '../../src/audit/chain/chain.ts';
import { type Chained, namesJson, type Stored, storable } from '../../src/audit/records/log-rows.ts';
import type { DecisionRecord, OutcomeRecord, ShownRecord } from '../../src/audit/records/records.ts';
import { legacyStore as firstPages } from '../../src/audit/search/legacy-store.ts';
import { batches, bytesOfRow } from '../../src/db/batches.ts';
import type { Connection } from '../../src/db/database.ts';
import { literalOf, statement, type Value } from '../../src/db/statement.ts';

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

export interface LegacyRows {
  readonly decisions: readonly Chained<DecisionRow>[];
  readonly shown: readonly Chained<ShownRow>[];
  readonly outcomes: readonly Chained<OutcomeRow>[];
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
  const names = namesJson(record.names);
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

/** The pages of version 1, and the inserts. */
export function legacyStore(db: Connection) {
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

  async function holds(table: string, key: 'id' | 'decision_id', id: string, { mac }: Stamp): Promise<boolean> {
    const there = await db(table).where(key, id).first<{ mac: string | null } | undefined>('mac');
    return there?.mac === mac;
  }

  return {
    ...firstPages(db),

    /** Takes several statements. Outside a transaction a failure can leave only the first of them stored. */
    async insert({ decisions = [], shown = [], outcomes = [] }: Partial<LegacyRows>): Promise<void> {
      const some = decisions.some(({ row }) => row.arguments !== null);
      await insert('audit_decisions', some ? [...DECISION_COLUMNS, ARGUMENTS] : DECISION_COLUMNS, decisions);
      if (shown.length > 0) await insertSets(shown);
      await insert('audit_shown', SHOWN_COLUMNS, shown);
      await insert('audit_outcomes', OUTCOME_COLUMNS, outcomes);
    },

    /** Whether the table has exactly this row. The MAC shows it, because it covers the whole row. */
    holdsDecision: ({ row, stamp }: Chained<DecisionRow>): Promise<boolean> => holds('audit_decisions', 'id', row.id, stamp),
    holdsShown: ({ row, stamp }: Chained<ShownRow>): Promise<boolean> =>
      holds('audit_shown', 'decision_id', row.decision_id, stamp),
    holdsOutcomes: ({ row, stamp }: Chained<OutcomeRow>): Promise<boolean> =>
      holds('audit_outcomes', 'decision_id', row.decision_id, stamp),
  };
}
