/** Policies in the database. Written only inside administrative transactions, which run one at a time. */
import type { Knex } from 'knex';
import type { Connection } from '../db/database.ts';
import { EFFECTS, type PolicySubject, RESOURCE_TYPES, type StoredPolicy, SUBJECT_TYPES } from './document.ts';

export interface PolicyStore {
  /** Every policy, by id, each with its subjects by id, all of one moment. */
  all(): Promise<StoredPolicy[]>;
  /** As `all`: at most `limit` policies (null: every one) whose ids come after `after` (null: from the first). */
  page(limit: number | null, after: string | null): Promise<StoredPolicy[]>;
  find(id: string): Promise<StoredPolicy | null>;
  insert(policy: StoredPolicy): Promise<void>;
  /** Makes the stored policy with this id equal to `policy`, of which `before` is the stored state. */
  update(before: StoredPolicy, policy: StoredPolicy): Promise<void>;
  delete(id: string): Promise<void>;
  /** Whether a policy names this target. */
  namesTarget(targetId: string): Promise<boolean>;
}

interface Row extends Omit<StoredPolicy, 'enabled' | 'subjects'> {
  readonly enabled: number | boolean;
}

interface JoinedRow extends Row {
  readonly subject_id: string | null;
  readonly subject_type: PolicySubject['subject_type'];
  readonly subject_value: string;
}

/** What no edit can have stored stops the load (law 6): nothing is decided with a policy that is not understood. */
function check(row: JoinedRow): void {
  const known =
    EFFECTS.includes(row.effect) &&
    ['all', ...RESOURCE_TYPES].includes(row.resource_type) &&
    (row.subject_id === null || SUBJECT_TYPES.includes(row.subject_type)) &&
    Number.isInteger(row.priority);
  if (!known) throw new Error(`The table policies holds a row that no edit can have made (${row.id})`);
}

function assemble(rows: readonly JoinedRow[]): StoredPolicy[] {
  const policies = new Map<string, StoredPolicy & { subjects: PolicySubject[] }>();
  for (const row of rows) {
    check(row);
    const { subject_id, subject_type, subject_value, ...columns } = row;
    let policy = policies.get(row.id);
    if (!policy) {
      policy = { ...columns, enabled: Boolean(columns.enabled), subjects: [] };
      policies.set(row.id, policy);
    }
    if (subject_id !== null) {
      const value = subject_type === 'everyone' ? null : subject_value;
      policy.subjects.push({ id: subject_id, subject_type, subject_value: value });
    }
  }
  return [...policies.values()];
}

const columnsOf = ({ subjects: _, ...columns }: StoredPolicy): Omit<StoredPolicy, 'subjects'> => columns;
const subjectRow = (policyId: string, { id, subject_type, subject_value }: PolicySubject) => ({
  id,
  policy_id: policyId,
  subject_type,
  subject_value: subject_value ?? '',
});

const ROWS_PER_STATEMENT = 200;

export function policyStore(db: Connection): PolicyStore {
  // One statement, because two would read two moments outside a snapshot.
  const read = async (narrow: (policies: Knex.QueryBuilder) => Knex.QueryBuilder): Promise<StoredPolicy[]> => {
    const rows: JoinedRow[] = await db
      .from(narrow(db('policies')).as('p'))
      .leftJoin('policy_subjects as s', 's.policy_id', 'p.id')
      .select('p.*', 's.id as subject_id', 's.subject_type', 's.subject_value')
      .orderBy([{ column: 'p.id' }, { column: 's.id' }]);
    return assemble(rows);
  };
  const insertSubjects = async (policyId: string, subjects: readonly PolicySubject[]): Promise<void> => {
    for (let start = 0; start < subjects.length; start += ROWS_PER_STATEMENT) {
      const rows = subjects.slice(start, start + ROWS_PER_STATEMENT).map((subject) => subjectRow(policyId, subject));
      await db('policy_subjects').insert(rows);
    }
  };

  return {
    all: () => read((policies) => policies),
    page: (limit, after) =>
      read((policies) => {
        const later = after === null ? policies : policies.where('id', '>', after);
        return limit === null ? later : later.orderBy('id').limit(limit);
      }),
    find: async (id) => (await read((policies) => policies.where({ id })))[0] ?? null,

    async insert(policy) {
      await db('policies').insert(columnsOf(policy));
      await insertSubjects(policy.id, policy.subjects);
    },

    async update(before, policy) {
      const { id, ...columns } = columnsOf(policy);
      await db('policies').where({ id }).update(columns);
      const kept = new Set(policy.subjects.map((subject) => subject.id));
      const known = new Set(before.subjects.map((subject) => subject.id));
      const gone = before.subjects.filter((subject) => !kept.has(subject.id)).map((subject) => subject.id);
      if (gone.length > 0) await db('policy_subjects').whereIn('id', gone).delete();
      await insertSubjects(
        id,
        policy.subjects.filter((subject) => !known.has(subject.id)),
      );
    },

    async delete(id) {
      await db('policy_subjects').where('policy_id', id).delete();
      await db('policies').where({ id }).delete();
    },

    namesTarget: async (targetId) => (await db('policies').where('target_id', targetId).first('id')) !== undefined,
  };
}
