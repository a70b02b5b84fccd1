/** Recorded decisions with the facts that they are based on, oldest first, so that a different policy set can decide them again. */
import type { Knex } from 'knex';
import { inSlices, pause, sortedInSteps } from '../../base/turns/slices.ts';
import type { Connection } from '../../db/database.ts';
import type { ResourceType } from '../../engine/compile/policy.ts';
import { KEY_BYTES } from '../chain/facts.ts';
import { type ChainedRecord, flatOf } from '../chain/known-facts.ts';
import { chainStore } from '../chain/tables/chain-store.ts';
import { logReader, type StoredRecord } from '../chain/tables/log-reader.ts';
import { hexOfBytes, literalBytes, literalId } from '../chain/tables/log-tables.ts';
import type { StoredRecord as DecisionRow } from '../records/fact-book.ts';

/** After an erasure `user_email` is empty, and `user_groups` no longer has the groups that the decision is based on. */
const DECISION_COLUMNS = [
  ...['id', 'created_at', 'user_id', 'user_email', 'user_role', 'user_groups', 'target_id', 'target_name'],
  ...['resource_type', 'resource_name', 'effect', 'reason', 'policy_id', 'policy_name'],
] as const satisfies (keyof DecisionRow)[];
export type RecordedDecision = Pick<DecisionRow, (typeof DECISION_COLUMNS)[number]>;

/** The list that belongs to a decision. */
export interface RecordedList {
  readonly decision: RecordedDecision;
  readonly resource_type: ResourceType;
  readonly shown: number;
  readonly hidden: number;
  readonly set_hash: string;
}

/** A part of the log. */
export interface RecordedPage {
  readonly decisions: readonly RecordedDecision[];
  readonly lists: readonly RecordedList[];
  /** How many decisions are left out, because their facts are missing from a damaged log. `audit verify` reports them. */
  readonly damaged: number;
}

export interface RangePage extends RecordedPage {
  /** The id of the last decision that was read, also if it is damaged; null: there was none. */
  readonly last: string | null;
}

/** The last number that was read from each chain, by chain id. */
export type ChainPositions = Readonly<Record<string, number>>;

export interface Following extends RecordedPage {
  readonly positions: ChainPositions;
  /** Whether a chain may have further records. */
  readonly more: boolean;
}

const LIST_COLUMNS = ['decision_id', 'resource_type', 'shown', 'hidden', 'set_hash'] as const;
type ListRow = Omit<RecordedList, 'decision'> & { readonly decision_id: string };

/** Joins lists with their decisions. Leaves out a list whose decision was removed by age. */
function listsOf(rows: readonly ListRow[], decisions: Iterable<RecordedDecision>): RecordedList[] {
  const byId = new Map([...decisions].map((decision) => [decision.id, decision]));
  return rows.flatMap(({ decision_id, resource_type, shown, hidden, set_hash }) => {
    const decision = byId.get(decision_id);
    return decision === undefined ? [] : [{ decision, resource_type, shown, hidden, set_hash }];
  });
}

const isDamaged = ({ facts }: ChainedRecord): boolean => facts?.includes(null) ?? false;
const decisionOf = (record: ChainedRecord): RecordedDecision => flatOf(record) as unknown as RecordedDecision;
const decisionsOf = (records: readonly ChainedRecord[]): RecordedDecision[] =>
  records.filter((record) => !isDamaged(record)).map(decisionOf);
/** In version 2, the key of the names stands for their hash, because names are found by it. */
const listRowsOf = (records: readonly StoredRecord[]): ListRow[] =>
  records.map(({ row, keys }) => ({
    ...(row as unknown as ListRow),
    ...(keys === undefined ? {} : { set_hash: String(keys[0]) }),
  }));

/** Returns the texts in the JSON text of an array; null: it is something else, so the log was changed. */
export function textsIn(json: string | null): readonly string[] | null {
  try {
    const value: unknown = JSON.parse(json ?? 'null');
    return Array.isArray(value) && value.every((item) => typeof item === 'string') ? value : null;
  } catch {
    return null;
  }
}

const literals = (ids: readonly string[]): string => ids.map(literalId).join();

export function recordedStore(db: Connection) {
  const reader = logReader(db, false);

  async function find(ids: readonly string[]): Promise<RecordedDecision[]> {
    if (ids.length === 0) return [];
    const found = await reader.read('decision', (query) => query.whereRaw(`t.id in (${literals(ids)})`));
    const legacy: RecordedDecision[] = await db('audit_decisions')
      .whereIn('id', ids)
      .select(...DECISION_COLUMNS);
    return [...decisionsOf(found), ...legacy];
  }

  return {
    find,

    /** Returns the first decisions with ids in [`since`, `before`), at most `limit`, with their lists. */
    async page(since: string, before: string, limit: number): Promise<RangePage> {
      const legacy: RecordedDecision[] = await db('audit_decisions')
        .where('id', '>=', since)
        .andWhere('id', '<', before)
        .orderBy('id')
        .limit(limit)
        .select(...DECISION_COLUMNS);
      const found = await reader.read('decision', (query) =>
        query
          .whereRaw(`t.id >= ${literalId(since)} and t.id < ${literalId(before)}`)
          .orderBy('t.id')
          .limit(limit),
      );
      // Damaged ones count, too: otherwise a page with one of them would look like the last.
      const read = [
        ...legacy.map((decision) => ({ decision, isWhole: true })),
        ...found.map((record) => ({ decision: decisionOf(record), isWhole: !isDamaged(record) })),
      ]
        .sort((a, b) => (a.decision.id < b.decision.id ? -1 : 1))
        .slice(0, limit);
      const last = read.at(-1)?.decision.id ?? null;
      const decisions = read.filter(({ isWhole }) => isWhole).map(({ decision }) => decision);
      const damaged = read.length - decisions.length;
      if (last === null) return { decisions, lists: [], damaged, last };
      const lists: ListRow[] = await db('audit_shown')
        .where('decision_id', '>=', since)
        .andWhere('decision_id', '<=', last)
        .orderBy('decision_id')
        .select(...LIST_COLUMNS);
      const logLists = await reader.stored('shown', (query) =>
        query.whereRaw(`t.id >= ${literalId(since)} and t.id <= ${literalId(last)}`).orderBy('t.id'),
      );
      return { decisions, lists: listsOf([...lists, ...listRowsOf(logLists)], decisions), damaged, last };
    },

    /** Returns the listed names, by the hash of the set. A set that was too long lacks its last names. */
    async sets(hashes: readonly string[]): Promise<Map<string, readonly string[]>> {
      if (hashes.length === 0) return new Map();
      // The hash of an altered list can be anything.
      const keys = hashes.filter((hash) => hash.length === 2 * KEY_BYTES && /^[0-9a-f]+$/.test(hash));
      const legacy: { hash: string; names: string }[] = await db('audit_sets').whereIn('hash', hashes).select('hash', 'names');
      const found: { id: unknown; names: string }[] =
        keys.length === 0
          ? []
          : await db('log_names')
              .whereRaw(`id in (${keys.map((key) => `x'${key}'`).join()})`)
              .select('id', 'names');
      const rows = [...legacy, ...found.map(({ id, names }) => ({ hash: hexOfBytes(id), names }))];
      return new Map(rows.map(({ hash, names }) => [hash, textsIn(names) ?? []]));
    },

    /** Returns the last number of each chain. */
    async positions(): Promise<ChainPositions> {
      return Object.fromEntries((await chainStore(db).extents()).map(({ chain_id, last }) => [chain_id, last]));
    },

    /**
     * Returns the decisions and lists among the next `limit` records of each chain after `positions`, and the new positions. No record of a
     * chain is skipped, however late it became durable. `db` must be a snapshot.
     */
    async following(positions: ChainPositions, limit: number): Promise<Following> {
      const decisions: RecordedDecision[] = [];
      const lists: ListRow[] = [];
      const reached: Record<string, number> = { ...positions };
      let [more, damaged] = [false, 0];
      const store = chainStore(db, false);
      for (const { chain_id, last, hasLegacy } of await store.extents()) {
        const after = positions[chain_id] ?? 0;
        if (last <= after) continue;
        const { records, upTo } = await store.part(chain_id, after, last, limit, hasLegacy);
        reached[chain_id] = upTo;
        more ||= upTo < last;
        const found = await store.whole(records.filter(({ kind }) => kind === 'decision'));
        const whole = decisionsOf(found);
        damaged += found.length - whole.length;
        decisions.push(...whole);
        lists.push(...listRowsOf(records.filter(({ kind }) => kind === 'shown')));
      }
      const known = new Set(decisions.map(({ id }) => id));
      const earlier = await find([...new Set(lists.map((list) => list.decision_id).filter((id) => !known.has(id)))]);
      return { decisions, lists: listsOf(lists, [...decisions, ...earlier]), damaged, positions: reached, more };
    },
  };
}

export interface SeenObject {
  readonly target_id: string;
  readonly resource_type: ResourceType;
  readonly resource_name: string;
}

/** How many of the newest decisions are searched for names. */
const LOOKED_AT = 20_000;
/** How many of them one statement searches: on SQLite, all other statements wait for it. */
const LOOKED_AT_ONCE = 1_000;

/**
 * Returns the requested objects, some of them several times; `inOrder` orders them. They serve as a catalogue of the targets' objects, which the
 * gateway does not have. A target may lack some of these objects. `db` should be no transaction: on SQLite, all changes would wait for it.
 */
export async function seenObjects(db: Connection, atOnce = LOOKED_AT_ONCE): Promise<SeenObject[]> {
  const legacy = await fromNewest<SeenObject>(
    db('audit_decisions').select('target_id', 'resource_type', 'resource_name'),
    atOnce,
    (id) => db.raw('?', [id as string]),
    (some) => db.from(some.as('t')).distinct('*').whereNotNull('resource_name').whereNotNull('target_id'),
  );
  const found = await fromNewest<SeenObject>(
    db('log_decisions').select('object', 'name'),
    atOnce,
    (id) => db.raw(literalBytes(hexOfBytes(id), 16)),
    (some) =>
      db
        .from(some.as('t'))
        .join('log_objects as o', 'o.id', 't.object')
        .distinct('o.target_id', 'o.resource_type', db.raw('coalesce(t.name, o.resource_name) as resource_name'))
        .whereNotNull('o.target_id')
        .whereRaw('coalesce(t.name, o.resource_name) is not null'),
  );
  return [...legacy, ...found];
}

/** Reads from the newest LOOKED_AT of the rows, `atOnce` in each statement. `literal`: an id as a part of a statement. */
async function fromNewest<T>(
  rows: Knex.QueryBuilder,
  atOnce: number,
  literal: (id: unknown) => Knex.Raw,
  read: (some: Knex.QueryBuilder) => Knex.QueryBuilder,
): Promise<T[]> {
  const found: T[] = [];
  let rest = rows;
  for (let left = LOOKED_AT; left > 0; left -= atOnce) {
    const beginning = rest.clone().clearSelect().select('id').orderBy('id', 'desc');
    const [last]: { readonly id: unknown }[] = await beginning.offset(atOnce - 1).limit(1);
    const some = last === undefined ? rest : rest.clone().where('id', '>=', literal(last.id));
    for (const row of (await read(some)) as T[]) found.push(row);
    if (last === undefined) break;
    rest = rows.clone().where('id', '<', literal(last.id));
  }
  return found;
}

/** Returns each object once, ordered by target, type and name. In slices: callers choose how long these names are. */
export async function inOrder<T extends SeenObject>(objects: readonly T[]): Promise<T[]> {
  const rows = new Map<string, T>();
  for (const object of objects) {
    await pause();
    rows.set(`${object.target_id} ${object.resource_type} ${object.resource_name}`, object);
  }
  return (await inSlices(sortedInSteps([...rows], ([a], [b]) => a < b))).map(([, object]) => object);
}
