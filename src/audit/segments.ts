/**
 * The index of the log. A segment is a part of one chain, of at most ten minutes and some thousand records. For each closed segment,
 * the index has the terms of its records: a search reads only the segments that have all terms of its filter. This costs a fraction
 * of what an index of each member costs, because a term is stored once per segment and not once per record.
 */
import { entered } from '../base/kept.ts';
import type { Connection, Database } from '../db/database.ts';
import { firstIdOf, timeOf } from './chain/chain.ts';
import { factTerms, SEARCHED, type SearchedMember, termOf } from './chain/facts.ts';
import type { ChainedRecord } from './chain/known-facts.ts';
import { logReader } from './chain/tables/log-reader.ts';
import { type AbandonedRow, type SegmentRow, segmentKey, segmentStore } from './chain/tables/segment-store.ts';
import type { Chained, LogDecision } from './records/log-rows.ts';

const MAX_RECORDS = 4_096;
/** Decisions whose ids lie within this time share a segment. */
export const SPAN_MS = 10 * 60_000;
/** A record can be this much older than the first record of its segment. */
const SLACK_MS = 60_000;
/** How many closed segments may wait for the database. Upkeep closes the others. */
const MAX_WAITING = 8;
const TERMS_KEPT = 20_000;

interface Open {
  readonly row: SegmentRow;
  readonly terms: Set<string>;
  /** The facts whose terms are known to be in `terms`. */
  readonly facts: Set<string>;
  count: number;
  lastSeq: number;
  low: string;
  high: string;
}

export function createSegments({ database }: { readonly database: Database }) {
  const known = new Map<string, string>();
  let open: Open | null = null;
  let waiting: Open[] = [];
  let closing: Promise<void> | null = null;

  const term = (member: SearchedMember, value: string): string =>
    entered(known, `${member} ${value}`, () => termOf(member, value), TERMS_KEPT);

  function add(to: Open, { row, stamp }: Chained<LogDecision>): void {
    to.count++;
    to.lastSeq = Math.max(to.lastSeq, stamp.chain_seq);
    if (row.id < to.low) to.low = row.id;
    if (row.id > to.high) to.high = row.id;
    for (const fact of [row.principal, row.object, row.verdict]) {
      if (to.facts.has(fact.key)) continue;
      to.facts.add(fact.key);
      const values = fact.row as Readonly<Partial<Record<SearchedMember, unknown>>>;
      for (const member of SEARCHED) {
        const value = values[member];
        if (typeof value === 'string') to.terms.add(term(member, value));
      }
    }
    // Such a name is rarely used again, so its term is not kept.
    if (row.ownName !== null) to.terms.add(termOf('resource_name', row.ownName));
  }

  /** Writes the terms of closed segments. A failure leaves them for the next time, or for upkeep. */
  async function closeWaiting(): Promise<void> {
    while (waiting.length > 0) {
      const [next] = waiting;
      if (next === undefined) return;
      const { row, low, high, lastSeq, terms } = next;
      const key = segmentKey(row.chain_id, row.first_seq);
      await segmentStore(database.knex).close({ key, low, high }, lastSeq, terms);
      waiting = waiting.filter((segment) => segment !== next);
    }
  }

  function close(): Promise<void> {
    if (open !== null) waiting = [...waiting.slice(1 - MAX_WAITING), open];
    open = null;
    closing ??= closeWaiting()
      // The segment stays open, so a search reads all of it. The next close, or upkeep, tries again.
      .catch(() => {})
      .finally(() => {
        closing = null;
      });
    return closing;
  }

  const accepts = (to: Open, { row: { id }, stamp: { chain_id } }: Chained<LogDecision>): boolean =>
    to.row.chain_id === chain_id && to.row.low <= id && id < to.row.high;

  return {
    /** Returns the segment that a commit with these decisions must begin; null: they belong to the open one. */
    next(decisions: readonly Chained<LogDecision>[]): SegmentRow | null {
      const [first] = decisions;
      if (first === undefined) return null;
      if (open !== null && open.count < MAX_RECORDS && decisions.every((decision) => accepts(open as Open, decision)))
        return null;
      const ids = decisions.map(({ row }) => row.id).sort();
      const [oldest = '', newest = ''] = [ids[0], ids.at(-1)];
      return {
        chain_id: first.stamp.chain_id,
        first_seq: first.stamp.chain_seq,
        low: firstIdOf(timeOf(oldest) - SLACK_MS),
        high: firstIdOf(Math.max(timeOf(oldest) + SPAN_MS, timeOf(newest) + 1)),
      };
    },

    /** Call this when the commit is durable. `begun` is what `next` returned for it. */
    stored(begun: SegmentRow | null, decisions: readonly Chained<LogDecision>[]): void {
      if (begun !== null) {
        void close();
        open = { row: begun, terms: new Set(), facts: new Set(), count: 0, lastSeq: 0, low: begun.high, high: begun.low };
      }
      for (const decision of decisions) if (open !== null) add(open, decision);
    },

    /**
     * Call this when it is not known whether a commit is durable. Its decisions may belong to the open segment, whose terms would lack theirs.
     * So the segment stays open in the database, and upkeep reads what is stored.
     */
    leave(): void {
      open = null;
    },

    /** Closes the open segment, and waits until it is indexed or has failed. */
    async close(): Promise<void> {
      await closing;
      await close();
    },
  };
}

/** An open segment counts as abandoned if all of its ids are older than this, because no such id can come later. */
const ABANDONED_MS = 60 * 60_000;
/** And if this process first saw it so long ago. Clocks can be wrong, and its own process closes a segment by its ids, within `SPAN_MS`. */
const SEEN_MS = 2 * SPAN_MS;
const PAGE = 1_000;

/**
 * Returns the function that indexes segments that their processes did not close, because they were killed. `elapsed`: milliseconds, from a
 * monotonic clock.
 */
export function createCloseAbandoned({ knex }: Pick<Database, 'knex'>, now: () => number, elapsed = () => performance.now()) {
  let seen = new Map<string, number>();
  return async (): Promise<void> => {
    const rows = await segmentStore(knex).abandoned(firstIdOf(now() - ABANDONED_MS));
    const at = elapsed();
    seen = new Map(rows.map(({ key }) => [key, seen.get(key) ?? at]));
    for (const row of rows) if (at - (seen.get(row.key) ?? at) >= SEEN_MS) await closeOne(knex, row);
  };
}

async function closeOne(db: Connection, { key, tail, first_seq, next_seq }: AbandonedRow): Promise<void> {
  const store = segmentStore(db);
  const reader = logReader(db);
  const terms = new Set<string>();
  const ids: string[] = [];
  let after = first_seq - 1;
  for (let more = true; more; ) {
    const page = await reader.read('decision', (query) => {
      query.whereRaw(`t.chain = x'${tail}'`).andWhere('t.seq', '>', after).orderBy('t.seq').limit(PAGE);
      return next_seq === null ? query : query.andWhere('t.seq', '<', next_seq);
    });
    for (const record of page) for (const term of termsOf(record)) terms.add(term);
    ids.push(...page.map(({ row }) => String(row['id'])));
    after = page.at(-1)?.row.chain_seq ?? after;
    more = page.length === PAGE;
  }
  const [low, high] = [ids.reduce((a, b) => (a < b ? a : b), ids[0] ?? ''), ids.reduce((a, b) => (a > b ? a : b), '')];
  if (ids.length === 0) await store.remove(key);
  else await store.close({ key, low, high }, after, terms);
}

/** Returns the terms of a decision. */
export function termsOf({ row, facts = [] }: ChainedRecord): string[] {
  const own = row['named'] === 1 ? factTerms({ resource_name: row['resource_name'] }) : [];
  return [...own, ...facts.flatMap((fact) => fact?.terms ?? [])];
}
