/** The removal of records by age, in the tables of both versions. */
import type { Connection } from '../../../db/database.ts';
import { idOf } from '../binary-form.ts';
import { firstIdOf, type RecordKind, type RetentionRow } from '../chain.ts';
import { dayOf, firstKeyOf } from '../facts.ts';
import { FACT_TABLES, KINDS, LEGACY_TABLES, LOG_TABLES, literalId, tailOf } from './log-tables.ts';
import { segmentStore } from './segment-store.ts';

/** Facts are removed this many days later than the records, because clocks differ. */
const SPARE_DAYS = 2;
/** On SQLite, all requests wait for a statement, and the names of a list have up to 256 KiB. */
const LISTS_AT_ONCE = 20;

export function removalStore(db: Connection) {
  /** Removes the records of version 1, and the sets that only they referred to. */
  async function removeLegacy(after: number, { chain_id, seq }: RetentionRow): Promise<number> {
    const among = (kind: RecordKind) =>
      db(LEGACY_TABLES[kind]).where({ chain_id }).andWhere('chain_seq', '>', after).andWhere('chain_seq', '<=', seq);
    const sets: { set_hash: string }[] = await among('shown').distinct('set_hash');
    let removed = 0;
    for (const kind of KINDS) removed += await among(kind).delete();
    const hashes = sets.map(({ set_hash }) => set_hash).sort();
    if (hashes.length === 0) return removed;
    // Lock the sets before the search for uses: a writer that wants to refer to one waits, and then sees that it was removed.
    await db('audit_sets').whereIn('hash', hashes).orderBy('hash').forUpdate().select('hash');
    // The search ends at the first use, because millions of lists may refer to the same names.
    const unused: { hash: string }[] = await db('audit_sets as n')
      .whereIn('n.hash', hashes)
      .whereNotExists(db('audit_shown as s').where('s.set_hash', db.ref('n.hash')).select('s.set_hash'))
      .select('n.hash');
    const gone = unused.map(({ hash }) => hash);
    if (gone.length > 0) await db('audit_sets').whereIn('hash', gone).delete();
    return removed;
  }

  /** Removes the records of version 2, with their arguments and the index of their segments. */
  async function removeCurrent(after: number, { chain_id, seq }: RetentionRow): Promise<number> {
    const among = (kind: RecordKind) =>
      db(LOG_TABLES[kind])
        .whereRaw(`chain = x'${tailOf(chain_id)}'`)
        .andWhere('seq', '>', after)
        .andWhere('seq', '<=', seq);
    // As digits, because SQLite accepts every type in every column.
    const ids: { id: string }[] = await among('decision').select(db.raw('lower(hex(id)) as id'));
    if (ids.length > 0) {
      const gone = ids.map(({ id }) => literalId(idOf(id)));
      await db('log_arguments').whereRaw(`id in (${gone.join()})`).delete();
    }
    let removed = 0;
    for (const kind of KINDS) removed += await among(kind).delete();
    await segmentStore(db).removeUpTo(chain_id, seq);
    return removed;
  }

  /** Returns the first id of these rows as digits. The alias must not be `id`: the rows would be sorted by it, without the index. */
  async function firstIn(rows: ReturnType<Connection>, order: 'asc' | 'desc'): Promise<string | undefined> {
    const [found]: { digits: string }[] = await rows.orderBy('id', order).limit(1).select(db.raw('lower(hex(id)) as digits'));
    return found?.digits;
  }

  return {
    /** Locks the chain, so that one replica at a time removes its records; false: it is locked already. Needs a transaction. */
    async lockChain(chainId: string): Promise<boolean> {
      if (db.client.dialect !== 'mysql') return true;
      return (await db('audit_chains').where('chain_id', chainId).forUpdate().skipLocked().first('chain_id')) !== undefined;
    },

    /**
     * Removes the records of the chain with `after` < seq <= `row.seq`, and stores the row in their place. Returns the number of records.
     * Needs a transaction.
     */
    async removeUpTo(after: number, row: RetentionRow): Promise<number> {
      const removed = (await removeLegacy(after, row)) + (await removeCurrent(after, row));
      await db('audit_retention').insert(row).onConflict('chain_id').merge();
      return removed;
    },

    /** Removes up to `limit` unchained decisions with ids below `before`, with lists and outcomes. Returns how many decisions. */
    async removeUnchained(before: string, limit: number): Promise<number> {
      const rows: { id: string }[] = await db('audit_decisions')
        .whereNull('chain_id')
        .andWhere('id', '<', before)
        .limit(limit)
        .select('id');
      const ids = rows.map(({ id }) => id);
      if (ids.length === 0) return 0;
      for (const kind of ['shown', 'outcome'] as const) {
        await db(LEGACY_TABLES[kind]).whereIn('decision_id', ids).whereNull('chain_id').delete();
      }
      await db('audit_decisions').whereIn('id', ids).delete();
      return ids.length;
    },

    /**
     * Returns the first day whose facts a record may refer to; NaN: it is not known, because somebody has altered an id. The names of a list belong to
     * the day of its decision, although the list may be younger. So both tables are asked. A process whose clock is late may still write with the
     * facts of the newest day that has records.
     */
    async firstDay(now: number): Promise<number> {
      let first = dayOf(firstIdOf(now)) - SPARE_DAYS;
      for (const kind of ['decision', 'shown'] as const) {
        const oldest = await firstIn(db(LOG_TABLES[kind]), 'asc');
        const newest = await firstIn(db(LOG_TABLES[kind]), 'desc');
        if (oldest !== undefined) first = Math.min(first, dayOf(idOf(oldest)));
        if (newest !== undefined) first = Math.min(first, dayOf(idOf(newest)) - SPARE_DAYS);
      }
      return first;
    },

    /**
     * Removes up to `limit` facts of each kind from before the day, and fewer lists of names, those of the oldest days first. Returns whether
     * there are more.
     */
    async removeFacts(day: number, limit: number): Promise<boolean> {
      let areMore = false;
      for (const table of Object.values(FACT_TABLES)) {
        const most = table === FACT_TABLES.names ? Math.min(limit, LISTS_AT_ONCE) : limit;
        const old = () => db(table).whereRaw(`id < x'${firstKeyOf(day)}'`);
        const last = await firstIn(old().offset(most - 1), 'asc');
        // With two upper limits, SQLite may read all old facts for each part.
        await (last === undefined ? old() : db(table).whereRaw(`id <= x'${last}'`)).delete();
        areMore ||= last !== undefined;
      }
      return areMore;
    },
  };
}
