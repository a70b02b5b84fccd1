/** The chains in the database: their headers, their records in order, and what was removed or erased. */
import type { Connection } from '../../db/database.ts';
import {
  CHAINED,
  type ChainKey,
  type ChainRow,
  chainMac,
  type ErasureRow,
  type Head,
  type RecordKind,
  type RetentionRow,
  type Stamp,
} from './chain.ts';
import { foundBy } from './sightings.ts';

/** A record of a chain with every column of its table. The record of a list also has the listed names. */
export interface ChainedRecord {
  readonly kind: RecordKind;
  readonly row: Readonly<Record<string, string | number | null>> & Stamp;
}

interface Extent {
  readonly chain_id: string;
  readonly first: number | null;
  readonly last: number;
}

const TABLES = { decision: 'audit_decisions', shown: 'audit_shown', outcome: 'audit_outcomes' } as const;
/** The kinds of records. */
export const KINDS = Object.keys(TABLES) as RecordKind[];

/** Columns of a record that its MAC does not cover, or covers by hash. */
const BESIDE = {
  decision: ['salt', 'user_email', 'user_groups', 'arguments', 'resource_key'],
  shown: [],
  outcome: [],
} as const satisfies Record<RecordKind, readonly string[]>;
const CHAIN_COLUMNS = ['chain_id', 'version', 'key_id', 'started_at', 'host', 'found', 'unchained', 'mac'] as const;
const RETENTION_COLUMNS = ['chain_id', 'seq', 'mac', 'removed_at', 'newest', 'unproven', 'key_id', 'signature'] as const;
const ERASURE_COLUMNS = ['id', 'user_id', 'erased_at', 'key_id', 'signature'] as const;

/**
 * The largest number of a record. Larger ones lose their last digit on the way from the database. SQLite accepts a text in a
 * numeric column, and sorts it after all numbers.
 */
const LAST_SEQ = Number.MAX_SAFE_INTEGER;

const numberOrNull = (value: unknown): number | null => (value === null ? null : Number(value));

export function chainStore(db: Connection) {
  const isMysql = db.client.dialect === 'mysql';

  /**
   * The driver of SQLite ends a text at a NUL, which would hide the rest from verification but not from a search. The gateway
   * stores no NUL, so a row with one is forged.
   */
  const nulIn = (columns: readonly string[]) => db.raw(isMysql ? '0 as nul' : `instr(concat(${columns.join()}), char(0)) as nul`);
  /** Takes the MAC or signature from a row with a NUL, so that it fails every check. */
  function proven<R extends object>({ nul, ...row }: R & { readonly nul: number }, proof: 'mac' | 'signature'): Omit<R, 'nul'> {
    return nul === 0 ? row : { ...row, [proof]: '' };
  }

  /** Returns the first and last number of each chain. `first` null: no record is left. `last` includes records removed by age. */
  async function extents(): Promise<Extent[]> {
    const ends = KINDS.flatMap((kind) =>
      (['min', 'max'] as const).map((end) =>
        db(`${TABLES[kind]} as t`)
          .where('t.chain_id', db.ref('c.chain_id'))
          .andWhere('t.chain_seq', '<=', LAST_SEQ)
          [end]('t.chain_seq')
          .as(`${kind}_${end}`),
      ),
    );
    const rows: Record<string, unknown>[] = await db('audit_chains as c')
      .leftJoin('audit_retention as r', 'r.chain_id', 'c.chain_id')
      .select('c.chain_id', 'r.seq', ...ends);
    return rows.map((row) => {
      const firsts = KINDS.map((kind) => numberOrNull(row[`${kind}_min`])).filter((seq) => seq !== null);
      const lasts = KINDS.map((kind) => numberOrNull(row[`${kind}_max`]) ?? 0);
      return {
        chain_id: String(row['chain_id']),
        first: firsts.length === 0 ? null : Math.min(...firsts),
        last: Math.max(...lasts, numberOrNull(row['seq']) ?? 0),
      };
    });
  }

  /** Returns all chains, oldest first. */
  async function chains(): Promise<ChainRow[]> {
    const rows: (ChainRow & { nul: number })[] = await db('audit_chains')
      .orderBy('started_at')
      .orderBy('chain_id')
      .select(...CHAIN_COLUMNS, nulIn(CHAIN_COLUMNS));
    return rows.map((row) => proven(row, 'mac'));
  }

  async function retention(chainId: string): Promise<RetentionRow | null> {
    const row = await db('audit_retention')
      .where('chain_id', chainId)
      .first<(RetentionRow & { nul: number }) | undefined>(...RETENTION_COLUMNS, nulIn(RETENTION_COLUMNS));
    return row === undefined ? null : proven(row, 'signature');
  }

  async function readRecords(chainId: string, after: number, upTo: number, limit: number, names: boolean) {
    const found: ChainedRecord[] = [];
    for (const kind of KINDS) {
      const withNames = names && kind === 'shown';
      const columns = [...CHAINED[kind], ...BESIDE[kind], 'chain_id', 'chain_seq', 'mac'].map((column) => `t.${column}`);
      const query = db(`${TABLES[kind]} as t`)
        .where('t.chain_id', chainId)
        .andWhere('t.chain_seq', '>', after)
        .andWhere('t.chain_seq', '<=', upTo)
        .orderBy('t.chain_seq')
        .limit(limit + 1)
        .select('t.*', nulIn(withNames ? [...columns, 'n.names'] : columns));
      if (withNames) query.leftJoin('audit_sets as n', 'n.hash', 't.set_hash').select('n.names');
      for (const row of await query) found.push({ kind, row: proven(row, 'mac') as ChainedRecord['row'] });
    }
    found.sort((a, b) => a.row.chain_seq - b.row.chain_seq);
    const isShared = found[limit]?.row.chain_seq === found[limit - 1]?.row.chain_seq;
    return found.slice(0, isShared ? limit + 1 : limit);
  }

  async function macAt(chainId: string, seq: number): Promise<string | null> {
    for (const kind of KINDS) {
      const at = { chain_id: chainId, chain_seq: seq };
      const row = await db(TABLES[kind]).where(at).first<{ mac: string | null } | undefined>('mac');
      if (row) return String(row.mac ?? '');
    }
    const removed = await retention(chainId);
    return removed?.seq === seq ? removed.mac : null;
  }

  return {
    async insertChain(row: ChainRow): Promise<void> {
      await db('audit_chains').insert(row);
    },
    chains,
    extents,

    /**
     * Returns the heads that no later chain names as they are now. Together with these, the chains name every other chain. Only
     * what a header under `key` names counts, because an attacker could name a head in a forged header to hide it.
     */
    async openHeads(key: ChainKey): Promise<Head[]> {
      // The headers are read last, so that none of these chains lacks its own. A chain that began in between is not among the heads,
      // so the heads that it names must be.
      const ends = await extents();
      const known = new Set(ends.map(({ chain_id }) => chain_id));
      const rows = (await chains()).filter(({ chain_id }) => known.has(chain_id));
      const named = new Map<string, number>();
      for (const row of rows) {
        if (chainMac(key, row) !== row.mac) continue;
        for (const [id, seq] of foundBy(row)) named.set(id, Math.max(seq, named.get(id) ?? 0));
      }
      const macs = new Map(rows.map((row) => [row.chain_id, row.mac]));
      const heads: Head[] = [];
      for (const { chain_id, last } of ends) {
        if (named.get(chain_id) === last) continue;
        // A forged row can have an invalid number or no MAC. Its chain must still appear in checkpoints.
        const seq = Number.isSafeInteger(last) ? last : LAST_SEQ;
        const mac = seq === 0 ? macs.get(chain_id) : await macAt(chain_id, seq);
        heads.push({ chain_id, seq, mac: String(mac ?? '') });
      }
      return heads;
    },

    /**
     * Returns the records of a chain with `after` < seq <= `upTo`, at most `limit`, in order. The gateway never writes two
     * records with the same number. If the last one nevertheless shares its number with another record, it returns that one, too.
     */
    records: (chainId: string, after: number, upTo: number, limit: number): Promise<ChainedRecord[]> =>
      readRecords(chainId, after, upTo, limit, true),
    /** Returns the first records with seq > `after`, in order, without the listed names. */
    oldest: (chainId: string, after: number, limit: number): Promise<ChainedRecord[]> =>
      readRecords(chainId, after, LAST_SEQ, limit, false),

    /** Returns a record of this kind of the next chain after `after` (null: of the first); null: there is none. */
    async firstOfNextChain(kind: RecordKind, after: string | null): Promise<ChainedRecord | null> {
      const row = await db(TABLES[kind])
        .where((named) => (after === null ? named.whereNotNull('chain_id') : named.where('chain_id', '>', after)))
        .orderBy('chain_id')
        .first<ChainedRecord['row'] | undefined>();
      return row ? { kind, row } : null;
    },

    /** Returns a record of the chain whose number is invalid; null: there is none. */
    async misnumbered(chainId: string): Promise<ChainedRecord | null> {
      for (const kind of KINDS) {
        const row = await db(TABLES[kind])
          .where('chain_id', chainId)
          .andWhere((seq) => seq.whereNull('chain_seq').orWhere('chain_seq', '<', 1).orWhere('chain_seq', '>', LAST_SEQ))
          .first<ChainedRecord['row'] | undefined>();
        if (row) return { kind, row };
      }
      return null;
    },

    /** Counts the records that belong to no chain, because they are older than the first chain. */
    async countUnchained(): Promise<number> {
      let count = 0;
      for (const kind of KINDS) {
        const [row] = await db(TABLES[kind]).whereNull('chain_id').count<{ n: number }[]>({ n: '*' });
        count += Number(row?.n);
      }
      return count;
    },

    retention,

    /** Locks the chain, so that one replica at a time removes its records; false: it is locked already. Needs a transaction. */
    async lockChain(chainId: string): Promise<boolean> {
      if (!isMysql) return true;
      return (await db('audit_chains').where('chain_id', chainId).forUpdate().skipLocked().first('chain_id')) !== undefined;
    },

    /**
     * Removes the records of the chain with `after` < seq <= `row.seq`, and the sets that only they referred to. Returns the
     * number of records. Needs a transaction.
     */
    async removeUpTo(after: number, row: RetentionRow): Promise<number> {
      const among = (kind: RecordKind) =>
        db(TABLES[kind]).where('chain_id', row.chain_id).andWhere('chain_seq', '>', after).andWhere('chain_seq', '<=', row.seq);
      const sets: { set_hash: string }[] = await among('shown').distinct('set_hash');
      let removed = 0;
      for (const kind of KINDS) removed += await among(kind).delete();
      await db('audit_retention').insert(row).onConflict('chain_id').merge();
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
        await db(TABLES[kind]).whereIn('decision_id', ids).whereNull('chain_id').delete();
      }
      await db('audit_decisions').whereIn('id', ids).delete();
      return ids.length;
    },

    async erasures(): Promise<ErasureRow[]> {
      const rows: (ErasureRow & { nul: number })[] = await db('audit_erasures').select(
        ...ERASURE_COLUMNS,
        nulIn(ERASURE_COLUMNS),
      );
      return rows.map((row) => proven(row, 'signature'));
    },
    unfinishedErasures: (): Promise<ErasureRow[]> =>
      db('audit_erasures')
        .whereNull('done_at')
        .select(...ERASURE_COLUMNS),
    async insertErasure(row: ErasureRow): Promise<void> {
      await db('audit_erasures').insert({ ...row, done_at: null });
    },
    async finishErasure(id: string, now: number): Promise<void> {
      await db('audit_erasures').where({ id }).update({ done_at: now });
    },

    /**
     * Erases personal data from up to `limit` rows of the user with ids in [`from`, `before`). Returns how many and the next
     * `from`.
     */
    async erase(userId: string, from: string, before: string, limit: number): Promise<{ erased: number; next: string | null }> {
      const rows: { id: string }[] = await db('audit_decisions')
        .where('user_id', userId)
        .andWhere('id', '>=', from)
        .andWhere('id', '<', before)
        .orderBy('id')
        .limit(limit)
        .select('id');
      const ids = rows.map(({ id }) => id);
      if (ids.length === 0) return { erased: 0, next: null };
      const erased = await db('audit_decisions')
        .whereIn('id', ids)
        .andWhere((row) =>
          row.whereNotNull('salt').orWhereNot('user_email', '').orWhereNot('user_groups', '[]').orWhereNotNull('arguments'),
        )
        .update({ user_email: '', user_groups: '[]', arguments: null, salt: null });
      return { erased, next: ids.length < limit ? null : `${ids.at(-1)}0` };
    },
  };
}
