/** Pages of version 2 of the log. A search reads only the segments that the index names. */
import { pause } from '../../base/turns/slices.ts';
import { furtherRows } from '../../db/batches.ts';
import type { Connection } from '../../db/database.ts';
import { type Ended, OUTCOME_BYTES, OUTCOMES_SPAN_MS, outcomesIn } from '../chain/binary-form.ts';
import { HIGHEST_ID, idAfter, timeOf } from '../chain/chain.ts';
import { SEARCHED, type SearchedMember, termOf } from '../chain/facts.ts';
import type { ChainedRecord } from '../chain/known-facts.ts';
import { type LogReader, logReader, type StoredRecord } from '../chain/tables/log-reader.ts';
import { literalId } from '../chain/tables/log-tables.ts';
import { type Range, segmentStore } from '../chain/tables/segment-store.ts';
import { type AuditEntry, type AuditPage, type EntryRow, entryOf } from './entries.ts';
import { above, boundsOf, type LogFilter } from './filter.ts';

type Query = ReturnType<Connection>;

/** How many rows one page may search, in segments that have all terms of the filter. */
const SEARCHED_ROWS = 100_000;

/**
 * Decisions that a filter found share one search for their outcomes if they are this close to each other. The search looks at the outcomes
 * of all decisions between them. With a longer time, a page with a few decisions of one user would read the outcomes of all users.
 */
const NEAR_MS = 20;
/** SQLite takes no condition with more than a thousand parts. */
const ASKED_AT_ONCE = 200;
/** How many decisions get their lists at first: a list can have 256 KiB of names. */
const FIRST = 10;
/** A page ends after this many characters of names, arguments and groups. */
const PAGE_CHARACTERS = 1024 * 1024;

/** The column of each member of a filter. */
const SEARCHED_COLUMNS = {
  user_id: 'p.user_id',
  target_id: 'o.target_id',
  target_name: 'o.target_name',
  method: 'o.method',
  resource_type: 'o.resource_type',
  resource_name: 'coalesce(t.name, o.resource_name)',
  effect: 'v.effect',
  reason: 'v.reason',
  policy_id: 'v.policy_id',
} as const satisfies Record<SearchedMember, string>;
const FACTS = [
  ['p', 'log_principals', 'principal'],
  ['o', 'log_objects', 'object'],
  ['v', 'log_verdicts', 'verdict'],
] as const;

/** A search by segments. The next page continues it, so that an export does not ask for the segments with each page. */
interface Going {
  readonly filter: LogFilter;
  /** The id before which the next page begins; null: this page is the last one. */
  cursor: string | null;
  readonly ranges: AsyncGenerator<Range, undefined>;
  /** The range that is not read to its end; null: the next one. */
  range: Range | null;
  /** Everything above this id was searched; null: nothing was. */
  floor: string | null;
}

/** Keeps facts that it has read, also after an erasure. So it must not live longer than the request that it reads for. */
export function logSearch(db: Connection) {
  const isMysql = db.client.dialect === 'mysql';
  let made: LogReader | null = null;
  let going: Going | null = null;
  const reader = (): LogReader => {
    made ??= logReader(db);
    return made;
  };

  /**
   * Returns the outcomes of these decisions, which are in the order of their ids, and of some others. If a decision has two, the first
   * comes first.
   */
  async function outcomesNear(ids: readonly string[], isFiltered: boolean): Promise<Ended[]> {
    const nearMs = isFiltered ? NEAR_MS : OUTCOMES_SPAN_MS;
    const groups: string[][] = [];
    for (const id of ids) {
      // Somebody has altered the id. It has no outcomes.
      if (Number.isNaN(timeOf(id))) continue;
      const last = groups.at(-1);
      if (last !== undefined && timeOf(id) - timeOf(last.at(-1) ?? '') < nearMs) last.push(id);
      else groups.push([id]);
    }
    const conditions = groups.map((group) => {
      const [low = '', high = ''] = [group[0], group.at(-1)];
      // Outcomes that come late are in many records, whose first and last decisions are far apart. So a filter looks for the ids
      // themselves. A page without a filter needs nearly all records there, and does not pay for that.
      const has = group.map((id) => `instr(t.outcomes, ${literalId(id)}) > 0`);
      return (
        `t.since > ${timeOf(low) - OUTCOMES_SPAN_MS} and t.since <= ${timeOf(high)}` +
        ` and substr(t.outcomes, 1, 16) <= ${literalId(high)} and substr(t.outcomes, -${OUTCOME_BYTES}, 16) >= ${literalId(low)}` +
        (isFiltered ? ` and (${has.join(' or ')})` : '')
      );
    });
    if (groups.length === 0) return [];
    const records = await reader().stored('outcome', (query) =>
      query
        .whereRaw(`((${conditions.join(') or (')}))`)
        .orderBy('t.created_at')
        .orderBy('t.seq'),
    );
    return records.flatMap(({ outcomes }) => {
      const ends = outcomesIn(outcomes ?? Buffer.alloc(0));
      const since = timeOf(ends[0]?.decision_id ?? '');
      // A verification from a checkpoint relies on this: no record counts for a decision that is outside of its span.
      return ends.filter(({ decision_id }) => timeOf(decision_id) >= since && timeOf(decision_id) < since + OUTCOMES_SPAN_MS);
    });
  }

  /** Returns the outcome of each of these decisions by id. If a decision has two, also in one record, the first one counts. */
  async function outcomesOf(ids: readonly string[], isFiltered: boolean): Promise<ReadonlyMap<unknown, Ended>> {
    const found = new Map<unknown, Ended>();
    const sorted = ids.toSorted();
    for (let at = 0; at < sorted.length; at += ASKED_AT_ONCE) {
      const asked = new Set(sorted.slice(at, at + ASKED_AT_ONCE));
      for (const one of await outcomesNear([...asked], isFiltered)) {
        if (asked.has(one.decision_id) && !found.has(one.decision_id)) found.set(one.decision_id, one);
      }
    }
    return found;
  }

  /** Returns the decisions with their lists and outcomes. */
  async function entries(
    found: readonly StoredRecord[],
    isFiltered: boolean,
  ): Promise<{ readonly made: readonly AuditEntry[]; readonly characters: number }> {
    let characters = 0;
    const literals = found.map(({ row }) => literalId(String(row['id']))).join();
    const among = (query: Query): Query => query.whereRaw(`t.id in (${literals})`);
    const decisions = await reader().whole(found);
    const lists = new Map<unknown, ChainedRecord>(
      (await reader().read('shown', among)).map((list) => [list.row['decision_id'], list]),
    );
    const outcomes = await outcomesOf(
      found.map(({ row }) => String(row['id'])),
      isFiltered,
    );
    const made: AuditEntry[] = [];
    for (const { row, facts = [] } of decisions) {
      await pause();
      const [principal, object, verdict] = facts.map((fact): Readonly<Record<string, unknown>> => fact?.row ?? {});
      const [list, outcome] = [lists.get(row['id'] ?? null), outcomes.get(row['id'])];
      // The members are named one by one, because a spread of so many is slow. Those of a missing fact are null.
      const entry: Readonly<Record<keyof EntryRow, unknown>> = {
        id: row['id'],
        created_at: row['created_at'],
        issuer: principal?.['issuer'] ?? null,
        user_id: principal?.['user_id'] ?? null,
        user_email: principal?.['user_email'] ?? null,
        user_role: principal?.['user_role'] ?? null,
        user_groups: principal?.['user_groups'] ?? '[]',
        target_id: object?.['target_id'] ?? null,
        target_name: object?.['target_name'] ?? null,
        method: object?.['method'] ?? null,
        resource_type: object?.['resource_type'] ?? null,
        resource_name: row['resource_name'],
        arguments: row['arguments'],
        effect: verdict?.['effect'] ?? null,
        reason: verdict?.['reason'] ?? null,
        policy_id: verdict?.['policy_id'] ?? null,
        policy_name: verdict?.['policy_name'] ?? null,
        policy_priority: verdict?.['policy_priority'] ?? null,
        revision: verdict?.['revision'] ?? null,
        data_hash: verdict?.['data_hash'] ?? null,
        engine_hash: verdict?.['engine_hash'] ?? null,
        chain_id: row.chain_id,
        chain_seq: row.chain_seq,
        shown: list?.row['shown'] ?? null,
        hidden: list?.row['hidden'] ?? null,
        names: list?.facts?.[0]?.row['names'] ?? null,
        outcome: outcome?.outcome || null,
        duration_ms: outcome?.duration_ms ?? null,
      };
      for (const text of [entry.names, entry.arguments, entry.user_groups]) characters += String(text ?? '').length;
      made.push(entryOf(entry as unknown as EntryRow));
    }
    return { made, characters };
  }

  /** Returns as many of the decisions, from the first, as a page has room for. */
  async function entriesOfPage(found: readonly StoredRecord[], isFiltered: boolean): Promise<AuditEntry[]> {
    const page: AuditEntry[] = [];
    let characters = 0;
    for (let wanted = FIRST; page.length < found.length && characters < PAGE_CHARACTERS; ) {
      const part = await entries(found.slice(page.length, page.length + wanted), isFiltered);
      page.push(...part.made);
      characters += part.characters;
      wanted = furtherRows(PAGE_CHARACTERS - characters, characters, page.length);
    }
    return page;
  }

  /**
   * Returns the decisions with ids in [`floor`, `cursor`) that meet the conditions, newest first, at most `limit`. The query forces the
   * query planner to read them in this order.
   */
  async function search(
    filter: LogFilter,
    floor: string | null,
    cursor: string | null,
    limit: number,
  ): Promise<readonly StoredRecord[]> {
    const asked = SEARCHED.filter((member) => filter[member] !== undefined);
    const prefix = filter.resource_name_prefix;
    const columns = asked
      .map((member) => SEARCHED_COLUMNS[member])
      .concat(prefix === undefined ? [] : [SEARCHED_COLUMNS.resource_name]);
    const joins = FACTS.filter(([alias]) => columns.some((column) => column.includes(`${alias}.`))).map(
      ([alias, table, member]) =>
        ` ${isMysql ? `straight_join ${table} as ${alias} force index (primary)` : `cross join ${table} as ${alias}`}` +
        ` on ${alias}.id = t.${member}`,
    );
    return reader().stored('decision', (query) => {
      query.from(db.raw(`log_decisions as t${isMysql ? ' force index (primary)' : ''}${joins.join('')}`));
      for (const member of asked) query.whereRaw(`${SEARCHED_COLUMNS[member]} = ?`, [filter[member] as string]);
      if (prefix !== undefined) {
        query.whereRaw(`${SEARCHED_COLUMNS.resource_name} >= ?`, [prefix]);
        query.whereRaw(`${SEARCHED_COLUMNS.resource_name} < ?`, [above(prefix)]);
      }
      if (filter.id !== undefined) query.whereRaw(`t.id = ${literalId(filter.id)}`);
      const { low, high } = boundsOf(filter, floor, cursor);
      if (low !== null) query.whereRaw(`t.id >= ${literalId(low)}`);
      if (high !== null) query.whereRaw(`t.id < ${literalId(high)}`);
      return query.orderBy('t.id', 'desc').limit(limit);
    });
  }

  /**
   * Returns up to `wanted` decisions that meet the filter, newest first, and the id down to which everything was searched (null: the
   * end). It reads only segments that have every term of the filter.
   */
  async function searched(
    filter: LogFilter,
    wanted: number,
    cursor: string | null,
  ): Promise<{ found: readonly StoredRecord[]; floor: string | null; at: Going | null }> {
    const { since = null, before = null } = filter;
    const terms = SEARCHED.flatMap((member) => (filter[member] === undefined ? [] : [termOf(member, filter[member])]));
    const isScan = terms.length === 0 && filter.resource_name_prefix === undefined;
    if (isScan || filter.id !== undefined) return { found: await search(filter, null, cursor, wanted), floor: null, at: null };
    const upper = cursor !== null && (before === null || cursor < before) ? cursor : before;
    const found: StoredRecord[] = [];
    let looked = 0;
    const isNext = going?.filter === filter && cursor !== null && going.cursor === cursor;
    const ranges = () => segmentStore(db).ranges(terms, since, upper);
    const at: Going = isNext && going !== null ? going : { filter, cursor, floor: null, range: null, ranges: ranges() };
    // Two pages at the same time must not share it.
    going = null;
    // The ranges with the highest ids come first. Rows below `floor` have not been read yet.
    for (;;) {
      at.range ??= (await at.ranges.next()).value ?? null;
      if (at.range === null) return { found, floor: null, at };
      const { low, high, size }: Range = at.range;
      if (at.floor === null || low < at.floor) {
        if (looked >= SEARCHED_ROWS) return { found, floor: at.floor, at };
        const end = high === HIGHEST_ID ? null : idAfter(high);
        // Nothing at or above the lowest of these is left to read.
        const [top = null] = [at.floor, end, upper].filter((bound) => bound !== null).sort();
        found.push(...(await search(filter, low, top, wanted - found.length)));
        looked += size;
        // The next page begins in this range.
        if (found.length === wanted) return { found, floor: null, at };
        at.floor = low;
      }
      at.range = null;
    }
  }

  return {
    /** Returns the newest decisions before `cursor`. One page searches about SEARCHED_ROWS rows at most. */
    async page(filter: LogFilter, limit: number, cursor: string | null): Promise<AuditPage> {
      const { found, floor, at } = await searched(filter, limit + 1, cursor);
      const page = await entriesOfPage(found.slice(0, limit), at !== null || filter.id !== undefined);
      const next = found.length > page.length ? (page.at(-1)?.id ?? null) : floor;
      // The search has gone beyond the end of a page that had no room for all of it.
      going = page.length < Math.min(limit, found.length) ? null : at && { ...at, cursor: next };
      return { entries: page, next };
    },

    async find(id: string): Promise<AuditEntry | null> {
      return (await entriesOfPage(await search({ id }, null, null, 1), true))[0] ?? null;
    },
  };
}
