/** The records of version 2 in the order of their chains. */
import type { Connection } from '../../../db/database.ts';
import type { RecordKind } from '../chain.ts';
import type { ChainedRecord } from '../known-facts.ts';
import type { LogReader, StoredRecord } from './log-reader.ts';
import { KINDS, LOG_TABLES, tailOf } from './log-tables.ts';

type Query = ReturnType<Connection>;

/**
 * Two records can have the same number if somebody has forged one. The older one is read first. The key of the table of outcomes prevents
 * two.
 */
const ORDER = { decision: ['t.seq', 't.id'], shown: ['t.seq', 't.id'], outcome: ['t.seq'] };
/**
 * The conditions that find records with an invalid number. Each needs a query of its own: for several in one query, SQLite would read the
 * whole chain, and all calls would wait.
 */
export const INVALID_NUMBERS = ['is null', '< 1', `> ${Number.MAX_SAFE_INTEGER}`] as const;

export function logRecords(db: Connection, reader: LogReader) {
  const inChain = (query: Query, chainId: string): Query => query.whereRaw(`t.chain = x'${tailOf(chainId)}'`);

  return {
    /** Returns records of each kind with `after` < seq <= `upTo`, the first `limit` of each, without their facts. */
    async records(chainId: string, after: number, upTo: number, limit: number): Promise<StoredRecord[]> {
      const found: StoredRecord[] = [];
      for (const kind of KINDS) {
        const among = (query: Query): Query =>
          inChain(query, chainId).andWhere('t.seq', '>', after).andWhere('t.seq', '<=', upTo).orderBy(ORDER[kind]).limit(limit);
        found.push(...(await reader.stored(kind, among)));
      }
      return found;
    },

    /** Returns a record of the chain whose number is invalid; null: there is none. */
    async misnumbered(chainId: string): Promise<ChainedRecord | null> {
      for (const kind of KINDS) {
        for (const invalid of INVALID_NUMBERS) {
          const [row] = await reader.read(kind, (query) => inChain(query, chainId).whereRaw(`t.seq ${invalid}`).limit(1));
          if (row !== undefined) return row;
        }
      }
      return null;
    },

    /** Returns a record of this kind of the next chain after the one with this tail (null: of the first); null: there is none. */
    async firstOfNextTail(kind: RecordKind, after: string | null): Promise<{ tail: string; record: ChainedRecord } | null> {
      const among = (query: Query): Query =>
        (after === null ? query : query.whereRaw(`t.chain > x'${after}'`)).orderBy('t.chain').limit(1);
      // SQLite accepts a text there, which sorts before all bytes.
      const tail =
        db.client.dialect === 'mysql' ? 'hex(t.chain)' : "case typeof(t.chain) when 'blob' then hex(t.chain) else '' end";
      const [first]: { tail: string }[] = await among(db(`${LOG_TABLES[kind]} as t`)).select(db.raw(`${tail} as tail`));
      const [record] = first === undefined ? [] : await reader.read(kind, among);
      return first === undefined || record === undefined ? null : { tail: first.tail.toLowerCase(), record };
    },
  };
}
