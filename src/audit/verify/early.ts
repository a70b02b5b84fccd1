/**
 * Finds records that a walk from a checkpoint does not reach, although the log shows them as later ones: their numbers are those of
 * records that the checkpoint saw. Only a forger makes such records, or a process whose clock is ahead, so there are few.
 */
import type { Connection } from '../../db/database.ts';
import { hexOf, OUTCOMES_SPAN_MS, outcomesIn } from '../chain/binary-form.ts';
import { timeOf } from '../chain/chain.ts';
import type { ChainedRecord } from '../chain/known-facts.ts';
import { chainStore } from '../chain/tables/chain-store.ts';
import { type LogReader, logReader, type StoredRecord } from '../chain/tables/log-reader.ts';
import { KINDS, LEGACY_TABLES, LOG_TABLES, literalBytes, literalId, TAIL_BYTES } from '../chain/tables/log-tables.ts';

/** What a verification from a checkpoint leaves out. */
export interface Skipping {
  /** Returns how many records of the chain need not be read. Call it after the verification got the lines of all chains. */
  skips(chain: string): number;
  /** Returns the number of the chain's last record at the checkpoint; 0: the chain began later. Call it when `skips` may be called. */
  start(chain: string): number;
  /** Returns the highest number that `start` returns for any chain. */
  highest(): number;
  /** Returns the lowest id of a later decision; null: everything is read. Call it after the verification got all later records. */
  floor(): string | null;
}

/** A record with a number up to the one that its chain had at the checkpoint. */
export interface EarlyRecord {
  readonly kind: 'early';
  /** Its `chain_id` is null if it belongs to no chain. */
  readonly record: ChainedRecord;
  /** The MACs of the records that have the number before it. A genuine record continues one of them. */
  readonly before: readonly string[];
}

type Query = ReturnType<Connection>;
type Store = ReturnType<typeof chainStore>;
/** Which records to read: about decisions with ids from `low` on, with numbers up to `highest`, `size` rows at a time. */
interface Claims {
  readonly low: string;
  readonly highest: number;
  readonly size: number;
}

type Pages = AsyncGenerator<readonly StoredRecord[]>;

/** Rows per read. */
const PAGE = 4_000;
/** Records of a chain share one read if their numbers are this close to each other. */
const NEAR = 32;
/** The numbers that one read of a chain has, so that few records are in memory. */
const READ_AT_ONCE = 1_000;

/** Yields the records that a walk from the checkpoint does not reach, although they are about decisions after it. `size`: rows per read. */
export async function* earlyRecords(
  db: Connection,
  { start, highest, floor }: Skipping,
  size = PAGE,
): AsyncGenerator<EarlyRecord> {
  const low = floor();
  if (low === null) return;
  const store = chainStore(db);
  const reader = logReader(db, false);
  // Most later records have higher numbers. The database leaves them out, because each row that it returns costs as much as a MAC.
  const claims: Claims = { low, highest: highest(), size };
  const sources = [
    ...(['decision', 'shown'] as const).map((kind) => logPages(db, reader, kind, claims)),
    outcomePages(db, reader, claims),
    ...KINDS.map((kind) => legacyPages(db, kind, low, size)),
  ];
  for (const pages of sources) {
    for await (const page of pages) {
      const suspects = new Map<string, StoredRecord[]>();
      for (const found of page) {
        const { chain_id, chain_seq, mac } = found.row;
        // The order of the chains finds the others: those of a chain that began later, and those of a chain without a header.
        const last = chain_id === null ? null : start(chain_id);
        if (last !== null && (last === 0 || chain_seq > last)) continue;
        const ofChain = suspects.get(chain_id);
        if (last === null || mac === '' || !Number.isSafeInteger(chain_seq)) yield unprovenOf(found);
        else if (ofChain === undefined) suspects.set(chain_id, [found]);
        else ofChain.push(found);
      }
      for (const [chain, ofChain] of suspects) for (const run of runsOf(ofChain)) yield* withBefore(store, chain, run);
    }
  }
}

/** Returns a record that nothing can prove, so that its facts are not needed. */
const unprovenOf = (record: ChainedRecord): EarlyRecord => ({ kind: 'early', record: { ...record, facts: [] }, before: [] });

const nameOf = ({ kind, row }: ChainedRecord): string => `${kind} ${row.chain_seq}`;

/** Returns records of a chain in the order of their numbers, in runs that one read can cover. */
function runsOf(records: readonly StoredRecord[]): StoredRecord[][] {
  const runs: StoredRecord[][] = [];
  let [first, last] = [0, Number.NEGATIVE_INFINITY];
  for (const record of records.toSorted((a, b) => a.row.chain_seq - b.row.chain_seq)) {
    const { chain_seq } = record.row;
    const run = runs.at(-1);
    if (run !== undefined && chain_seq - last <= NEAR && chain_seq - first < READ_AT_ONCE) run.push(record);
    else {
      runs.push([record]);
      first = chain_seq;
    }
    last = chain_seq;
  }
  return runs;
}

/** Yields the records of a run as they are now, with their facts and with the MACs before them. */
async function* withBefore(store: Store, chain: string, run: readonly StoredRecord[]): AsyncGenerator<EarlyRecord> {
  const [first = 0, last = 0] = [run[0]?.row.chain_seq, run.at(-1)?.row.chain_seq];
  const after = Math.max(0, first - 2);
  const { records } = await store.part(chain, after, last, last - after);
  // Read it after the records: it then covers each record that was removed before or during that read.
  const removal = await store.retention(chain);
  const macs = new Map<number, string[]>();
  for (const { chain_seq, mac } of [
    ...records.map(({ row }) => row),
    ...(removal === null ? [] : [{ chain_seq: removal.seq, mac: removal.mac }]),
  ]) {
    macs.set(chain_seq, [...(macs.get(chain_seq) ?? []), mac]);
  }
  const wanted = new Set(run.map(nameOf));
  for await (const some of store.filled(records.filter((record) => wanted.has(nameOf(record))))) {
    for (const record of some) {
      const { chain_seq } = record.row;
      const before = macs.get(chain_seq - 1) ?? [];
      const isWhole = before.length > 0 && !record.facts?.includes(null);
      if (isWhole || !(await isRemoved(store, chain, chain_seq))) yield { kind: 'early', record, before };
    }
  }
  // If there are more records than numbers, the read may have ended before some of the run. Otherwise those were removed by age.
  if (records.length <= last - after) return;
  const read = new Set(records.map(nameOf));
  for (const record of run) if (!read.has(nameOf(record))) yield unprovenOf(record);
}

/** Whether the record was removed by age. A forged record is still there after the removal of the number that it claims. */
async function isRemoved(store: Store, chain: string, seq: number): Promise<boolean> {
  const removal = await store.retention(chain);
  if (removal === null || removal.seq < seq) return false;
  return (await store.part(chain, seq - 1, seq, 1)).records.length === 0;
}

/** Yields decisions or lists of version 2 with ids from `low` on. */
async function* logPages(db: Connection, reader: LogReader, kind: 'decision' | 'shown', { low, highest, size }: Claims): Pages {
  const isMysql = db.client.dialect === 'mysql';
  for (let from = `>= ${literalId(low)}`; ; ) {
    const page = await reader.stored(kind, (query) =>
      query
        .from(db.raw(`${LOG_TABLES[kind]} as t${isMysql ? ' force index (primary)' : ''}`))
        .whereRaw(`t.id ${from} and t.seq <= ${highest}`)
        .orderBy('t.id')
        .limit(size),
    );
    yield page;
    const last = page.at(-1)?.row[kind === 'decision' ? 'id' : 'decision_id'];
    // SQLite accepts bytes that are no id. Such a record fits no MAC, so that it is reported wherever it is.
    if (page.length < size || hexOf(last) === null) return;
    from = `> ${literalId(String(last))}`;
  }
}

/** The position of a record of outcomes in their index. */
interface OutcomeKey {
  readonly since: number;
  readonly chain: string;
  readonly seq: number;
}

/** Yields records of outcomes of version 2 that name a decision with an id from `low` on, and those that name nothing valid. */
async function* outcomePages(db: Connection, reader: LogReader, { low, highest, size }: Claims): Pages {
  const isMysql = db.client.dialect === 'mysql';
  const table = db.raw(`log_outcomes as t${isMysql ? ' force index (log_outcomes_since)' : ''}`);
  const chainOf = ({ chain }: OutcomeKey): string => literalBytes(chain.toLowerCase(), TAIL_BYTES);
  const within = (query: Query, after: OutcomeKey | null, upTo: OutcomeKey | null): Query => {
    query.from(table).whereRaw(`t.since > ${timeOf(low) - OUTCOMES_SPAN_MS} and t.seq <= ${highest}`);
    // SQLite accepts other types. Pages do not show outcomes with a different `since`, and the order of the chains finds the others.
    if (!isMysql)
      query.whereRaw(
        `typeof(t.since) = 'integer' and typeof(t.chain) = 'blob' and length(t.chain) = ${TAIL_BYTES} and typeof(t.seq) in ('integer', 'real')`,
      );
    if (after !== null) query.whereRaw(`t.since >= ${after.since} and (${beyond(after, '>')})`);
    if (upTo !== null) query.whereRaw(`t.since <= ${upTo.since} and (${beyond(upTo, '<')} or ${isAt(upTo)})`);
    return query;
  };
  const beyond = (key: OutcomeKey, sign: '<' | '>'): string =>
    `t.since ${sign} ${key.since} or t.chain ${sign} ${chainOf(key)} or (t.chain = ${chainOf(key)} and t.seq ${sign} ${key.seq})`;
  const isAt = (key: OutcomeKey): string => `(t.chain = ${chainOf(key)} and t.seq = ${key.seq})`;
  for (let after: OutcomeKey | null = null; ; ) {
    // The end of the page is read first, because rows that are added meanwhile must not move it past others.
    const ends: OutcomeKey[] = await within(db.queryBuilder(), after, null)
      .orderBy(['t.since', 't.chain', 't.seq'])
      .limit(1)
      .offset(size - 1)
      .select('t.since', db.raw('hex(t.chain) as chain'), 't.seq');
    const end = ends[0] ?? null;
    const page = await reader.stored('outcome', (query) => within(query, after, end));
    yield page.filter(({ outcomes }) => !outcomes || outcomesIn(outcomes).some(({ decision_id }) => decision_id >= low));
    if (end === null) return;
    after = end;
  }
}

/** Yields records of version 1 of decisions with ids from `low` on. */
async function* legacyPages(db: Connection, kind: (typeof KINDS)[number], low: string, size: number): Pages {
  const key = kind === 'decision' ? 'id' : 'decision_id';
  // The driver of SQLite ends a text at a NUL.
  const nul = db.raw(db.client.dialect === 'mysql' ? '0 as nul' : `instr(concat(${key}, chain_id), char(0)) as nul`);
  for (let [from, sign] = [low, '>=']; ; sign = '>') {
    const rows: (StoredRecord['row'] & { readonly nul: number })[] = await db(LEGACY_TABLES[kind])
      .where(key, sign, from)
      .orderBy(key)
      .limit(size)
      .select(key, 'chain_id', 'chain_seq', 'mac', nul);
    yield rows.map(({ nul, ...row }) => ({ kind, row: nul === 0 ? row : { ...row, mac: '' } }));
    const last = rows.at(-1);
    // The next page cannot begin after such a row. It is reported itself, because the gateway writes none.
    if (last === undefined || rows.length < size || last.nul !== 0 || typeof last[key] !== 'string') return;
    from = last[key];
  }
}
