/** Recorded decisions with the facts that they are based on, oldest first, for a different policy set to decide again. */
import type { Connection } from '../db/database.ts';
import type { ResourceType } from '../engine/compile/policy.ts';
import { chainStore } from './chain/chain-store.ts';
import type { DecisionRow } from './decision-store.ts';

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

type InChain<R> = R & { readonly chain_seq: number };

/** Joins lists with their decisions. Leaves out a list whose decision was removed by age. */
function listsOf(rows: readonly ListRow[], decisions: Iterable<RecordedDecision>): RecordedList[] {
  const byId = new Map([...decisions].map((decision) => [decision.id, decision]));
  return rows.flatMap(({ decision_id, resource_type, shown, hidden, set_hash }) => {
    const decision = byId.get(decision_id);
    return decision === undefined ? [] : [{ decision, resource_type, shown, hidden, set_hash }];
  });
}

export function recordedStore(db: Connection) {
  const find = async (ids: readonly string[]): Promise<RecordedDecision[]> =>
    ids.length === 0
      ? []
      : db('audit_decisions')
          .whereIn('id', ids)
          .select(...DECISION_COLUMNS);

  return {
    find,

    /** Returns the first decisions with ids in [`since`, `before`), at most `limit`, with their lists. */
    async page(since: string, before: string, limit: number): Promise<RecordedPage> {
      const decisions: RecordedDecision[] = await db('audit_decisions')
        .where('id', '>=', since)
        .andWhere('id', '<', before)
        .orderBy('id')
        .limit(limit)
        .select(...DECISION_COLUMNS);
      const last = decisions.at(-1);
      if (last === undefined) return { decisions, lists: [] };
      const lists: ListRow[] = await db('audit_shown')
        .where('decision_id', '>=', since)
        .andWhere('decision_id', '<=', last.id)
        .orderBy('decision_id')
        .select(...LIST_COLUMNS);
      return { decisions, lists: listsOf(lists, decisions) };
    },

    /** Returns the listed names, by the hash of the set. A set that was too long lacks its last names. */
    async sets(hashes: readonly string[]): Promise<Map<string, readonly string[]>> {
      if (hashes.length === 0) return new Map();
      const rows: { hash: string; names: string }[] = await db('audit_sets').whereIn('hash', hashes).select('hash', 'names');
      return new Map(rows.map(({ hash, names }) => [hash, JSON.parse(names)]));
    },

    /** Returns the last number of each chain. */
    async positions(): Promise<ChainPositions> {
      return Object.fromEntries((await chainStore(db).extents()).map(({ chain_id, last }) => [chain_id, last]));
    },

    /**
     * Returns the records after `positions`, at most `limit` decisions and lists per chain, and the new positions. No record of a
     * chain is skipped, however late it became durable. `db` must be a snapshot.
     */
    async following(positions: ChainPositions, limit: number): Promise<Following> {
      const decisions: RecordedDecision[] = [];
      const lists: ListRow[] = [];
      const reached: Record<string, number> = { ...positions };
      let more = false;
      for (const { chain_id, last } of await chainStore(db).extents()) {
        const after = positions[chain_id] ?? 0;
        if (last <= after) continue;
        const among = (table: string, columns: readonly string[]) =>
          db(table)
            .where({ chain_id })
            .andWhere('chain_seq', '>', after)
            .andWhere('chain_seq', '<=', last)
            .orderBy('chain_seq')
            .limit(limit)
            .select(...columns, 'chain_seq');
        const found: readonly [InChain<RecordedDecision>[], InChain<ListRow>[]] = [
          await among('audit_decisions', DECISION_COLUMNS),
          await among('audit_shown', LIST_COLUMNS),
        ];
        // If one table has further rows, no row beyond its last one is used. Numbers of records removed by age are skipped.
        const ends = found.map((rows) => (rows.length < limit ? last : (rows.at(-1)?.chain_seq ?? last)));
        const end = Math.min(...ends);
        more ||= end < last;
        reached[chain_id] = end;
        for (const row of found[0]) if (row.chain_seq <= end) decisions.push(row);
        for (const row of found[1]) if (row.chain_seq <= end) lists.push(row);
      }
      const there = new Set(decisions.map(({ id }) => id));
      const earlier = await find([...new Set(lists.map((list) => list.decision_id).filter((id) => !there.has(id)))]);
      return { decisions, lists: listsOf(lists, [...decisions, ...earlier]), positions: reached, more };
    },
  };
}

export interface SeenObject {
  readonly target_id: string;
  readonly resource_type: ResourceType;
  readonly resource_name: string;
}

/** How many of the newest decisions are searched for names. */
export const LOOKED_AT = 20_000;

/**
 * Returns each requested object once, ordered by target, type and name, in place of a catalogue of the targets' objects, which
 * does not exist. The target may not have it.
 */
export async function seenObjects(db: Connection): Promise<SeenObject[]> {
  const newest = db('audit_decisions')
    .select('target_id', 'resource_type', 'resource_name')
    .orderBy('id', 'desc')
    .limit(LOOKED_AT)
    .as('newest');
  const rows: SeenObject[] = await db.from(newest).distinct('*').whereNotNull('resource_name').whereNotNull('target_id');
  const key = ({ target_id, resource_type, resource_name }: SeenObject): string =>
    `${target_id} ${resource_type} ${resource_name}`;
  return rows.sort((a, b) => (key(a) < key(b) ? -1 : 1));
}
