/** Policies in the database. Only administrative transactions write them, and these run one at a time. */
import type { Knex } from 'knex';
import type { Owners } from '../auth/rights.ts';
import { pause } from '../base/turns/slices.ts';
import { furtherRows } from '../db/batches.ts';
import type { Connection } from '../db/database.ts';
import { deleteRows, insertRows } from '../db/rows.ts';
import {
  EFFECTS,
  type Effect,
  type PolicySubject,
  RESOURCE_TYPES,
  type StoredPolicy,
  SUBJECT_TYPES,
} from '../engine/compile/policy.ts';

export type PolicyStore = ReturnType<typeof policyStore>;

export interface StoredChange {
  /** The stored state; null: the policy does not exist yet. */
  readonly before: StoredPolicy | null;
  /** null: delete the policy. */
  readonly after: StoredPolicy | null;
}

/** Which policies of the order of evaluation to return. Absent members narrow nothing. */
export interface OrderFilter {
  readonly id?: string;
  /** A part of the name or of the pattern, without regard to case (SQLite: that of ASCII letters), or the whole id. */
  readonly text?: string;
  readonly effect?: Effect;
  readonly enabled?: boolean;
  readonly target_id?: string;
}

/** A policy, and its position in the order of evaluation of all policies, from 1. Policies that are not enabled count, too. */
export interface OrderedPolicy {
  readonly position: number;
  readonly policy: StoredPolicy;
}

interface Row extends Omit<StoredPolicy, 'enabled' | 'subjects'> {
  readonly enabled: number | boolean;
}

interface SubjectRow {
  readonly subject_id: string;
  readonly subject_type: PolicySubject['subject_type'];
  readonly subject_value: string;
}

type JoinedRow = Row & (SubjectRow | { readonly subject_id: null });
type Assembled = StoredPolicy & { readonly subjects: PolicySubject[] };

/**
 * Returns the policy, without its subjects. Throws on a row that no edit can have stored, which stops the load (law 6): the gateway decides
 * nothing with a policy that it does not understand.
 */
function withoutSubjects(row: Row): Assembled {
  const known =
    EFFECTS.includes(row.effect) &&
    ['all', ...RESOURCE_TYPES].includes(row.resource_type) &&
    Number.isInteger(row.priority) &&
    [0, 1, false, true].includes(row.enabled);
  if (!known) throw invalidRow(row.id);
  return { ...row, enabled: Boolean(row.enabled), subjects: [] };
}

function addSubject({ id, subjects }: Assembled, { subject_id, subject_type, subject_value }: SubjectRow): void {
  if (!SUBJECT_TYPES.includes(subject_type)) throw invalidRow(id);
  subjects.push({ id: subject_id, subject_type, subject_value: subject_type === 'everyone' ? null : subject_value });
}

const invalidRow = (id: string): Error =>
  new Error(`The table policies contains an invalid row, which the gateway did not write (${id})`);

function assemble(rows: readonly JoinedRow[]): StoredPolicy[] {
  const policies = new Map<string, Assembled>();
  for (const row of rows) {
    const { subject_id, subject_type, subject_value, ...columns } = row as Row & SubjectRow;
    const policy = policies.get(row.id) ?? withoutSubjects(columns);
    policies.set(row.id, policy);
    if (row.subject_id !== null) addSubject(policy, row);
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

/**
 * A query of several policies blocks the event loop while its result is read. A policy has a row for each subject, up to a thousand.
 */
const FIRST = 4;
const AT_ONCE = 500;
const ROWS_AT_ONCE = 2_000;

/** Reads up to `limit` policies (null: all) in parts that have about ROWS_AT_ONCE rows. `last`: the last policy of the part before. */
async function inParts<T>(
  limit: number | null,
  read: (limit: number, last: T | undefined) => Promise<T[]>,
  policyOf: (one: T) => StoredPolicy,
): Promise<T[]> {
  const found: T[] = [];
  let rows = 0;
  for (let wanted = FIRST; ; ) {
    const asked = Math.min(wanted, (limit ?? Number.POSITIVE_INFINITY) - found.length);
    const some = asked === 0 ? [] : await read(asked, found.at(-1));
    for (const one of some) {
      found.push(one);
      rows += Math.max(1, policyOf(one).subjects.length);
    }
    if (some.length < asked || asked === 0) return found;
    wanted = Math.min(AT_ONCE, furtherRows(ROWS_AT_ONCE, rows, found.length));
  }
}

/**
 * How many policies of an owner that were deleted outside of their files are remembered. A manager can make and delete them without end, and each
 * plan of the owner reads all.
 */
const DELETED_KEPT = 10_000;

/** `managed_as` begins with the owner and a slash, and no owner contains one. */
function ofOwners(policies: Knex.QueryBuilder, owners: readonly string[]): void {
  if (owners.length === 0) policies.whereRaw('1 = 0');
  else policies.whereRaw(`substr(managed_as, 1, instr(managed_as, '/') - 1) in (${owners.map(() => '?').join()})`, owners);
}

export function policyStore(db: Connection) {
  // Use one statement: outside a snapshot, two would read two different states.
  const read = async (narrow: (policies: Knex.QueryBuilder) => Knex.QueryBuilder): Promise<StoredPolicy[]> => {
    const rows: JoinedRow[] = await db
      .from(narrow(db('policies')).as('p'))
      .leftJoin('policy_subjects as s', 's.policy_id', 'p.id')
      .select('p.*', 's.id as subject_id', 's.subject_type', 's.subject_value')
      .orderBy([{ column: 'p.id' }, { column: 's.id' }]);
    return assemble(rows);
  };
  /** Like `read`, in a snapshot. The other columns of a policy with a thousand subjects are not read a thousand times. */
  const readInSnapshot = async (narrow: (policies: Knex.QueryBuilder) => Knex.QueryBuilder): Promise<StoredPolicy[]> => {
    const rows: Row[] = await narrow(db('policies')).select('*');
    const policies = new Map(rows.map((row) => [row.id, withoutSubjects(row)]));
    const subjects: (SubjectRow & { readonly policy_id: string })[] = await db('policy_subjects')
      .whereIn('policy_id', [...policies.keys()])
      .orderBy('id')
      .select('policy_id', 'id as subject_id', 'subject_type', 'subject_value');
    for (const row of subjects) {
      const policy = policies.get(row.policy_id);
      if (policy !== undefined) addSubject(policy, row);
    }
    return [...policies.values()];
  };
  const narrowed =
    (limit: number, after: string | null, owners: Owners) =>
    (policies: Knex.QueryBuilder): Knex.QueryBuilder =>
      policies
        .modify((query) => {
          if (after !== null) query.where('id', '>', after);
          if (owners !== null) query.andWhere((own) => ofOwners(own, [...owners]));
        })
        .orderBy('id')
        .limit(limit);
  const page = (limit: number | null, after: string | null, owners: Owners = null): Promise<StoredPolicy[]> =>
    inParts<StoredPolicy>(
      limit,
      (some, last) => read(narrowed(some, last?.id ?? after, owners)),
      (policy) => policy,
    );
  /** Returns the ids and positions of at most `limit` policies of the order of evaluation. Without other columns: ordering these takes long. */
  async function placesInOrder(
    { id, text, effect, enabled, target_id }: OrderFilter,
    limit: number,
    after: Pick<StoredPolicy, 'priority' | 'effect' | 'id'> | null,
    owners: Owners,
  ): Promise<{ readonly id: string; readonly place: number }[]> {
    // `inReadingOrder` of the compiler. In it, deny comes before allow.
    const order = [{ column: 'priority', order: 'desc' }, { column: 'effect', order: 'desc' }, { column: 'id' }];
    const searched = text === undefined ? [] : ['name', 'resource_pattern'];
    const ranked = db('policies')
      .select('id', 'priority', 'effect', 'enabled', 'target_id', 'managed_as', ...searched)
      .rowNumber('place', (over) => over.orderBy(order));
    return db
      .from(ranked.as('ranked'))
      .modify((query) => {
        if (owners !== null) query.andWhere((own) => ofOwners(own, [...owners]));
        if (id !== undefined) query.where({ id });
        if (effect !== undefined) query.where({ effect });
        if (enabled !== undefined) query.where({ enabled });
        if (target_id !== undefined) query.where({ target_id });
        if (text !== undefined)
          query.whereRaw(
            "(id = ? or instr(lower(name), lower(?)) > 0 or instr(lower(coalesce(resource_pattern, '')), lower(?)) > 0)",
            [text, text, text],
          );
        if (after !== null)
          query.whereRaw('(priority < ? or (priority = ? and (effect < ? or (effect = ? and id > ?))))', [
            ...[after.priority, after.priority],
            ...[after.effect, after.effect, after.id],
          ]);
      })
      .select('id', 'place')
      .orderBy('place')
      .limit(limit);
  }

  /** Those of the owner that were deleted last, up to DELETED_KEPT. In the order of characters, 0 follows the slash. */
  const lastDeletedOf = (owner: string) =>
    db('deleted_policies')
      .where('managed_as', '>', `${owner}/`)
      .andWhere('managed_as', '<', `${owner}0`)
      .orderBy([{ column: 'drift_since', order: 'desc' }, { column: 'managed_as' }])
      .limit(DELETED_KEPT);

  return {
    /**
     * Returns every policy, sorted by id, each with its subjects sorted by id. The result is consistent if `db` is a snapshot or
     * holds the counter.
     */
    all: (): Promise<StoredPolicy[]> =>
      inParts<StoredPolicy>(
        null,
        (some, last) => readInSnapshot(narrowed(some, last?.id ?? null, null)),
        (policy) => policy,
      ),
    /**
     * Like `all`, but returns at most `limit` policies (null: all) whose ids come after `after` (null: from the first), and only those of
     * these owners.
     */
    page,
    /** Returns those of these policies that exist, in no order. `db` must be as for `all`. */
    async some(ids: readonly string[]): Promise<StoredPolicy[]> {
      const left = [...ids];
      const found: StoredPolicy[] = [];
      let rows = 0;
      for (let wanted = FIRST; left.length > 0; wanted = Math.min(AT_ONCE, furtherRows(ROWS_AT_ONCE, rows, found.length))) {
        const part = left.splice(0, wanted);
        const some = await readInSnapshot((policies) => policies.whereIn('id', part));
        for (const policy of some) rows += Math.max(1, policy.subjects.length);
        found.push(...some);
      }
      return found;
    },
    /**
     * Returns at most `limit` of these policies in the order of evaluation, and only those after `after` (null: from the first). `db` must be a
     * snapshot.
     */
    async inOrder(
      filter: OrderFilter,
      limit: number,
      after: Pick<StoredPolicy, 'priority' | 'effect' | 'id'> | null,
      owners: Owners,
    ): Promise<OrderedPolicy[]> {
      const places = [...(await placesInOrder(filter, limit, after, owners))];
      return inParts<OrderedPolicy>(
        limit,
        async (most) => {
          const some = places.splice(0, most);
          const ids = some.map(({ id }) => id);
          const found = await read((policies) => policies.whereIn('id', ids));
          const byId = new Map(found.map((policy) => [policy.id, policy]));
          return some.flatMap(({ id, place }) => {
            const policy = byId.get(id);
            return policy === undefined ? [] : [{ position: Number(place), policy }];
          });
        },
        ({ policy }) => policy,
      );
    },
    find: async (id: string): Promise<StoredPolicy | null> => (await read((policies) => policies.where({ id })))[0] ?? null,

    /**
     * Returns `drift_since` of the policies of this owner that were deleted outside of their files and that no file has created again, by
     * `managed_as`: of those that were deleted last.
     */
    async deletedOf(owner: string): Promise<Map<string, number>> {
      const rows: { managed_as: string; drift_since: number }[] = await lastDeletedOf(owner);
      return new Map(rows.map(({ managed_as, drift_since }) => [managed_as, drift_since]));
    },

    /**
     * Writes many changes in few statements. It does not keep the order of two changes to the same policy. `outsideAt`: the revision of
     * changes that are not made by files.
     */
    async change(changes: readonly StoredChange[], outsideAt: number | null = null): Promise<void> {
      const files = new Set<string>();
      /** By file. In a database that was restored in part, two policies can have the same one. */
      const missing = new Map<string, { managed_as: string; drift_since: number }>();
      const gone: string[] = [];
      const made: StoredPolicy[] = [];
      const changed: StoredPolicy[] = [];
      const subjectsGone: string[] = [];
      const subjectsMade: ReturnType<typeof subjectRow>[] = [];
      for (const { before, after } of changes) {
        await pause();
        for (const policy of [before, after]) if (policy !== null && policy.managed_as !== null) files.add(policy.managed_as);
        if (after === null) {
          if (before !== null) gone.push(before.id);
          if (before !== null && before.managed_as !== null && outsideAt !== null) {
            const { managed_as } = before;
            missing.set(managed_as, { managed_as, drift_since: before.drift_since ?? outsideAt });
          }
          continue;
        }
        (before === null ? made : changed).push(after);
        const known = before?.subjects ?? [];
        const kept = new Set(after.subjects.map(({ id }) => id));
        for (const { id } of known) if (!kept.has(id)) subjectsGone.push(id);
        const there = new Set(known.map(({ id }) => id));
        for (const subject of after.subjects) if (!there.has(subject.id)) subjectsMade.push(subjectRow(after.id, subject));
      }
      await deleteRows(db, 'policy_subjects', 'policy_id', gone);
      await deleteRows(db, 'policies', 'id', gone);
      await insertRows(db, 'policies', made.map(columnsOf));
      await insertRows(db, 'policies', changed.map(columnsOf), 'id');
      // Delete first, because another subject may take the place of a deleted one.
      await deleteRows(db, 'policy_subjects', 'id', subjectsGone);
      await insertRows(db, 'policy_subjects', subjectsMade);
      await deleteRows(db, 'deleted_policies', 'managed_as', files);
      await insertRows(db, 'deleted_policies', [...missing.values()]);
      for (const owner of new Set([...missing.keys()].map((file) => file.slice(0, file.indexOf('/')))))
        await deleteRows(
          db,
          'deleted_policies',
          'managed_as',
          await lastDeletedOf(owner).offset(DELETED_KEPT).pluck('managed_as'),
        );
    },

    /** Returns whether a policy names this target. */
    namesTarget: async (targetId: string): Promise<boolean> =>
      (await db('policies').where('target_id', targetId).first('id')) !== undefined,
  };
}
