/** The tables of the index: segments, and their terms. */
import { batches } from '../../../db/batches.ts';
import type { Connection } from '../../../db/database.ts';
import { statement } from '../../../db/statement.ts';
import { idOf } from '../binary-form.ts';
import { HIGHEST_ID, LOWEST_ID } from '../chain.ts';
import { hexOfBytes, literalId, TAIL_BYTES, tailOf } from './log-tables.ts';

/** A segment as it begins, with its first decision. The ids of its decisions are in [`low`, `high`). */
export interface SegmentRow {
  readonly chain_id: string;
  readonly first_seq: number;
  readonly low: string;
  readonly high: string;
}

/** An open segment whose process no longer writes. `next_seq`: where the next segment of the chain begins. */
export interface AbandonedRow {
  readonly key: string;
  readonly tail: string;
  readonly first_seq: number;
  readonly next_seq: number | null;
}

/** A segment as the index has it. `last_seq` null: it is open. */
export interface IndexedSegment {
  readonly key: string;
  readonly first_seq: number;
  readonly last_seq: number | null;
  /** null: the bytes are not an id, so somebody has forged them. */
  readonly low: string | null;
  readonly high: string | null;
}

const SEQ_BYTES = 4;
const ID_BYTES = 16;

/** Returns the key of a segment in hexadecimal digits: the tail of the id of its chain, and its first number. */
export const segmentKey = (chainId: string, firstSeq: number): string =>
  tailOf(chainId) + firstSeq.toString(16).padStart(2 * SEQ_BYTES, '0');
const tailIn = (key: string): string => key.slice(0, 2 * TAIL_BYTES);
const firstSeqIn = (key: string): number => Number.parseInt(key.slice(2 * TAIL_BYTES), 16);

/** A range of ids, both ends included, and about how many records it has at most. */
export interface Range {
  readonly low: string;
  readonly high: string;
  readonly size: number;
}

/** Up to this many segments of a term are read at once. */
const FEW = 1_000;
/** How many segments the first read and each later read get: most pages are full after the first read. */
const FIRST_READ = 50;
const READ = 1_000;
/** How many records an open segment counts as. */
const OPEN_SIZE = 2_048;

type Query = ReturnType<Connection>;
type Raw = Readonly<Record<'id' | 'low' | 'high', unknown>> & { readonly last_seq: number | null };

function segmentOf({ id, low, high, last_seq }: Raw): IndexedSegment {
  const key = hexOfBytes(id);
  const boundOf = (value: unknown): string | null => {
    const hex = hexOfBytes(value);
    return hex.length === 2 * ID_BYTES ? idOf(hex) : null;
  };
  return { key, first_seq: firstSeqIn(key), last_seq, low: boundOf(low), high: boundOf(high) };
}

/** If a bound of the segment is forged, the range is open on that side, so that the segment cannot hide records from a search. */
function rangeOf(row: Raw): Range {
  const { low, high, first_seq, last_seq } = segmentOf(row);
  const size = last_seq === null ? OPEN_SIZE : last_seq - first_seq + 1;
  return { low: low ?? LOWEST_ID, high: high ?? HIGHEST_ID, size: size > 0 ? size : OPEN_SIZE };
}

export function segmentStore(db: Connection) {
  const isMysql = db.client.dialect === 'mysql';

  /** Returns the segments of the rarest term; null: every term is in more than FEW segments. */
  async function fewest(terms: readonly string[]): Promise<string[] | null> {
    let rarest: string[] | null = null;
    for (const term of terms) {
      const rows: { segment: unknown }[] = await db('log_terms')
        .whereRaw(`term = x'${term}'`)
        .limit(FEW + 1)
        .select('segment');
      if (rows.length <= FEW && rows.length < (rarest?.length ?? FEW + 1))
        rarest = rows.map(({ segment }) => hexOfBytes(segment));
    }
    return rarest;
  }

  const ofChain = (chainId: string): Query =>
    db('log_segments').whereRaw(
      `id between x'${segmentKey(chainId, 0)}' and x'${segmentKey(chainId, 2 ** (8 * SEQ_BYTES) - 1)}'`,
    );

  async function remove(key: string): Promise<void> {
    await db('log_terms').whereRaw(`segment = x'${key}'`).delete();
    await db('log_segments').whereRaw(`id = x'${key}'`).delete();
  }

  return {
    async begin({ chain_id, first_seq, low, high }: SegmentRow): Promise<void> {
      const values = [`x'${segmentKey(chain_id, first_seq)}'`, literalId(low), literalId(high)];
      await statement(db, `insert into log_segments (id, low, high) values (${values.join()})`);
    },

    /** Stores the terms of a segment, and that it is complete. It may run again without harm. */
    async close(
      { key, low, high }: Pick<IndexedSegment, 'key'> & Pick<SegmentRow, 'low' | 'high'>,
      lastSeq: number,
      terms: ReadonlySet<string>,
    ): Promise<void> {
      await db.transaction(async (trx) => {
        for (const batch of batches([...terms].sort(), () => 64)) {
          const values = batch.map((term) => `x'${term}',x'${key}'`).join('),(');
          const end = isMysql ? 'on duplicate key update term = term' : 'on conflict do nothing';
          await statement(trx, `insert into log_terms (term, segment) values (${values}) ${end}`);
        }
        await statement(
          trx,
          `update log_segments set last_seq = ${lastSeq}, low = ${literalId(low)}, high = ${literalId(high)}
           where id = x'${key}'`,
        );
      });
    },

    /**
     * Yields the ranges of ids of segments that have all of these terms, and of open segments, those with the highest ids first. If a term
     * is in few segments, only these are read; otherwise segments are read one after the other.
     */
    async *ranges(terms: readonly string[], since: string | null, before: string | null): AsyncGenerator<Range, undefined> {
      const among = (query: Query): Query => {
        if (since !== null) query.whereRaw(`s.high >= ${literalId(since)}`);
        if (before !== null) query.whereRaw(`s.low < ${literalId(before)}`);
        return query.orderBy('s.high', 'desc').orderBy('s.id', 'desc').select('s.id', 's.low', 's.high', 's.last_seq');
      };
      const all = terms.map((term) => `exists (select 1 from log_terms as t where t.term = x'${term}' and t.segment = s.id)`);
      // Read first: a segment that is closed meanwhile has its terms by then.
      const open: Raw[] = await among(db('log_segments as s').whereNull('s.last_seq'));
      const few = await fewest(terms);
      if (few !== null) {
        const keys = few.map((key) => `x'${key}'`).join();
        const closed: Raw[] =
          few.length === 0
            ? []
            : await among(
                db('log_segments as s').whereRaw(`s.id in (${keys}) and s.last_seq is not null and ${all.join(' and ')}`),
              );
        yield* [...open, ...closed].map(rangeOf).sort((a, b) => (a.high < b.high ? 1 : -1));
        return;
      }
      for (let last: Raw | undefined, many = FIRST_READ; ; many = READ) {
        const query = among(db('log_segments as s')).limit(many);
        if (all.length > 0) query.whereRaw(`(s.last_seq is null or (${all.join(' and ')}))`);
        if (last !== undefined) {
          const [high, id] = [hexOfBytes(last.high), hexOfBytes(last.id)];
          query.whereRaw(`s.high <= x'${high}' and (s.high < x'${high}' or s.id < x'${id}')`);
        }
        const rows: Raw[] = await query;
        yield* rows.map(rangeOf);
        last = rows.at(-1);
        if (rows.length < many) return;
      }
    },

    /** Returns open segments that can get no further decisions because all of their ids are below `before`. */
    async abandoned(before: string): Promise<AbandonedRow[]> {
      const following = db('log_segments as n').where('n.id', '>', db.ref('s.id')).orderBy('n.id').limit(1).select('n.id');
      const rows: { id: unknown; next: unknown }[] = await db('log_segments as s')
        .whereNull('s.last_seq')
        .whereRaw(`s.high < ${literalId(before)}`)
        .select('s.id', following.as('next'));
      return rows.map((row) => {
        const [key, next] = [hexOfBytes(row.id), hexOfBytes(row.next)];
        const next_seq = tailIn(next) === tailIn(key) ? firstSeqIn(next) : null;
        return { key, tail: tailIn(key), first_seq: firstSeqIn(key), next_seq };
      });
    },

    /** Returns the segments of a chain in order. */
    async ofChain(chainId: string): Promise<IndexedSegment[]> {
      const rows: Raw[] = await ofChain(chainId).orderBy('id').select('id', 'last_seq', 'low', 'high');
      return rows.map(segmentOf);
    },

    async termsOf(key: string): Promise<Set<string>> {
      const rows: { term: unknown }[] = await db('log_terms').whereRaw(`segment = x'${key}'`).select('term');
      return new Set(rows.map(({ term }) => hexOfBytes(term)));
    },

    remove,

    /** Removes closed segments that have only records up to `seq` of the chain. */
    async removeUpTo(chainId: string, seq: number): Promise<void> {
      const rows: { id: unknown }[] = await ofChain(chainId).andWhere('last_seq', '<=', seq).select('id');
      for (const { id } of rows) await remove(hexOfBytes(id));
    },
  };
}
