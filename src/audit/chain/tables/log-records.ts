/** The records of version 2 in the order of their chains, their removal by age, and the erasure of personal data in them. */
import type { Connection } from '../../../db/database.ts';
import { idOf } from '../binary-form.ts';
import { type ErasureRow, firstIdOf, type RecordKind, type RetentionRow } from '../chain.ts';
import { dayOf, firstKeyOf } from '../facts.ts';
import type { ChainedRecord } from '../known-facts.ts';
import type { LogReader, StoredRecord } from './log-reader.ts';
import { FACT_TABLES, hexOfBytes, LOG_TABLES, literalId, tailOf } from './log-tables.ts';
import { segmentStore } from './segment-store.ts';

type Query = ReturnType<Connection>;

const KINDS = ['decision', 'shown', 'outcome'] as const satisfies RecordKind[];
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
/** Facts are removed this many days later than the records, because clocks differ. */
const SPARE_DAYS = 2;

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

    /** Removes the records of the chain with `after` < seq <= `row.seq`. Returns how many. */
    async removeUpTo(after: number, row: RetentionRow): Promise<number> {
      const among = (kind: RecordKind): Query =>
        db(LOG_TABLES[kind])
          .whereRaw(`chain = x'${tailOf(row.chain_id)}'`)
          .andWhere('seq', '>', after)
          .andWhere('seq', '<=', row.seq);
      const ids: { id: unknown }[] = await among('decision').select('id');
      if (ids.length > 0) {
        const gone = ids.map(({ id }) => literalId(idOf(hexOfBytes(id))));
        await db('log_arguments').whereRaw(`id in (${gone.join()})`).delete();
      }
      let removed = 0;
      for (const kind of KINDS) removed += await among(kind).delete();
      await segmentStore(db).removeUpTo(row.chain_id, row.seq);
      return removed;
    },

    /**
     * Removes the facts of days that no record can refer to. The names of a list belong to the day of its decision, although the list may
     * be younger. So both tables are asked. A process whose clock is late may still write with the facts of the newest day that has
     * records.
     */
    async removeFacts(now: number): Promise<void> {
      let first = dayOf(firstIdOf(now)) - SPARE_DAYS;
      for (const kind of ['decision', 'shown'] as const) {
        const [oldest]: { id: unknown }[] = await db(LOG_TABLES[kind]).orderBy('id').limit(1).select('id');
        const [newest]: { id: unknown }[] = await db(LOG_TABLES[kind]).orderBy('id', 'desc').limit(1).select('id');
        if (oldest !== undefined) first = Math.min(first, dayOf(idOf(hexOfBytes(oldest.id))));
        if (newest !== undefined) first = Math.min(first, dayOf(idOf(hexOfBytes(newest.id))) - SPARE_DAYS);
      }
      for (const table of Object.values(FACT_TABLES))
        await db(table)
          .whereRaw(`id < x'${firstKeyOf(first)}'`)
          .delete();
    },

    /** Erases the personal data in the facts of the user that are older than the erasure. Returns the number of facts. */
    erasePrincipals: ({ user_id, erased_at }: ErasureRow): Promise<number> =>
      db('log_principals')
        .where('user_id', user_id)
        .andWhere('since', '<', erased_at)
        .andWhere((row) => row.whereNotNull('salt').orWhereNot('user_email', '').orWhereNot('user_groups', '[]'))
        .update({ user_email: '', user_groups: '[]', salt: null }),

    /**
     * Erases the captured arguments of the user in the first `limit` decisions with arguments and ids in [`from`, `before`). Returns how
     * many, and the next `from`.
     */
    async eraseArguments(
      userId: string,
      from: string,
      before: string,
      limit: number,
    ): Promise<{ erased: number; next: string | null }> {
      const between = (end: string): Query => db('log_arguments').whereRaw(`id >= ${literalId(from)} and id < ${literalId(end)}`);
      const after = await between(before).orderBy('id').offset(limit).first<{ id: unknown } | undefined>('id');
      const next = after === undefined ? null : idOf(hexOfBytes(after.id));
      const isOfUser = `exists (select 1 from log_decisions as t join log_principals as p on p.id = t.principal
        where t.id = log_arguments.id and p.user_id = ?)`;
      const erased = await between(next ?? before)
        .andWhere((row) => row.whereNotNull('salt').orWhereNotNull('arguments'))
        .whereRaw(isOfUser, [userId])
        .update({ salt: null, arguments: null });
      return { erased, next };
    },
  };
}
