/** Chains as the database has them: their heads, their records in order, and what was removed or erased. */
import type { Connection } from '../../db/database.ts';
import type { ChainRow, ErasureRow, Head, RecordKind, RetentionRow, Stamp } from '../chain.ts';

/** A record of a chain with every column of its table; of a list, also the names that it showed. */
export interface ChainedRecord {
  readonly kind: RecordKind;
  readonly row: Readonly<Record<string, string | number | null>> & Stamp;
}

interface Extent {
  readonly chain_id: string;
  readonly first: number | null;
  readonly last: number;
}

export interface ChainStore {
  insertChain(row: ChainRow): Promise<void>;
  /** All of them, oldest first. */
  chains(): Promise<ChainRow[]>;
  /** Where each chain's records begin and end; `first` null: none are left. `last` counts what was removed by age. */
  extents(): Promise<Extent[]>;
  /** Heads that no later chain has found as they are now: with these, every other chain is known to be there. */
  openHeads(): Promise<Head[]>;
  /** Records of a chain with `after` < seq <= `upTo`, at most `limit`, in order. */
  records(chainId: string, after: number, upTo: number, limit: number): Promise<ChainedRecord[]>;
  /** The first records with seq > `after`, in order, without the names that lists showed. */
  oldest(chainId: string, after: number, limit: number): Promise<ChainedRecord[]>;
  /** A chain whose id is greater than `after` (null: any) and that records name; null: none. */
  nextNamedChain(after: string | null): Promise<string | null>;
  /** A record that names the chain and has no number that a record can have; null: none. */
  misnumbered(chainId: string): Promise<ChainedRecord | null>;
  /** Records of no chain, from before there were any. */
  countUnchained(): Promise<number>;
  retention(chainId: string): Promise<RetentionRow | null>;
  /** Takes the chain's record of removals, so that replicas remove one after the other; false: another has it. In a transaction. */
  lockChain(chainId: string): Promise<boolean>;
  /** Removes the records of the chain with `after` < seq <= `row.seq`, and the sets that they alone referred to; says how many records. In a transaction. */
  removeUpTo(after: number, row: RetentionRow): Promise<number>;
  /** Removes some of the unchained decisions from before `id`, with what belongs to them; says how many decisions. */
  removeUnchained(before: string, limit: number): Promise<number>;
  erasures(): Promise<ErasureRow[]>;
  unfinishedErasures(): Promise<ErasureRow[]>;
  insertErasure(row: ErasureRow): Promise<void>;
  finishErasure(id: string, now: number): Promise<void>;
  /** Erases what is personal from some rows of the user with ids in [`from`, `before`); says how many, and where to go on. */
  erase(userId: string, from: string, before: string, limit: number): Promise<{ erased: number; next: string | null }>;
}

const TABLES = { decision: 'audit_decisions', shown: 'audit_shown', outcome: 'audit_outcomes' } as const;
const KINDS = Object.keys(TABLES) as RecordKind[];

const CHAIN_COLUMNS = ['chain_id', 'version', 'key_id', 'started_at', 'host', 'found', 'unchained', 'mac'] as const;
const ERASURE_COLUMNS = ['id', 'user_id', 'erased_at', 'key_id', 'signature'] as const;

/** SQLite keeps a text in a column of numbers, and sorts it behind them. */
const FIRST_TEXT = '';

const numberOrNull = (value: unknown): number | null => (value === null ? null : Number(value));

export function chainStore(db: Connection): ChainStore {
  const isMysql = db.client.dialect === 'mysql';

  async function extents(): Promise<Extent[]> {
    const ends = KINDS.flatMap((kind) =>
      (['min', 'max'] as const).map((end) =>
        db(`${TABLES[kind]} as t`)
          .where('t.chain_id', db.ref('c.chain_id'))
          .modify((rows) => void (isMysql || rows.where('t.chain_seq', '<', FIRST_TEXT)))
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

  const chains = (): Promise<ChainRow[]> =>
    db('audit_chains')
      .orderBy('started_at')
      .orderBy('chain_id')
      .select(...CHAIN_COLUMNS);

  async function retention(chainId: string): Promise<RetentionRow | null> {
    return (await db('audit_retention').where('chain_id', chainId).first<RetentionRow | undefined>()) ?? null;
  }

  async function readRecords(chainId: string, after: number, upTo: number, limit: number, names: boolean) {
    const found: ChainedRecord[] = [];
    for (const kind of KINDS) {
      const query = db(`${TABLES[kind]} as t`)
        .where('t.chain_id', chainId)
        .andWhere('t.chain_seq', '>', after)
        .andWhere('t.chain_seq', '<=', upTo)
        .orderBy('t.chain_seq')
        .limit(limit)
        .select('t.*');
      if (names && kind === 'shown') query.leftJoin('audit_sets as n', 'n.hash', 't.set_hash').select('n.names');
      for (const row of await query) found.push({ kind, row });
    }
    return found.sort((a, b) => a.row.chain_seq - b.row.chain_seq).slice(0, limit);
  }

  async function macAt(chainId: string, seq: number): Promise<string | null> {
    for (const kind of KINDS) {
      const at = { chain_id: chainId, chain_seq: seq };
      const row = await db(TABLES[kind]).where(at).first<{ mac: string } | undefined>('mac');
      if (row) return row.mac;
    }
    const removed = await retention(chainId);
    return removed?.seq === seq ? removed.mac : null;
  }

  return {
    async insertChain(row) {
      await db('audit_chains').insert(row);
    },
    chains,
    extents,

    async openHeads() {
      const rows = await chains();
      const named = new Map<string, number>();
      for (const { found } of rows) {
        for (const [id, seq] of JSON.parse(found) as [string, number, string][]) named.set(id, Math.max(seq, named.get(id) ?? 0));
      }
      const macs = new Map(rows.map((row) => [row.chain_id, row.mac]));
      const heads: Head[] = [];
      for (const { chain_id, last: seq } of await extents()) {
        if (named.get(chain_id) === seq) continue;
        const mac = seq === 0 ? macs.get(chain_id) : await macAt(chain_id, seq);
        // Begun, or removed by age, since the rows were read.
        if (mac != null) heads.push({ chain_id, seq, mac });
      }
      return heads;
    },

    records: (chainId, after, upTo, limit) => readRecords(chainId, after, upTo, limit, true),
    oldest: (chainId, after, limit) => readRecords(chainId, after, Number.MAX_SAFE_INTEGER, limit, false),

    async nextNamedChain(after) {
      let next: string | null = null;
      for (const kind of KINDS) {
        const row = await db(TABLES[kind])
          .where((named) => (after === null ? named.whereNotNull('chain_id') : named.where('chain_id', '>', after)))
          .orderBy('chain_id')
          .first<{ chain_id: string }>('chain_id');
        if (row && (next === null || row.chain_id < next)) next = row.chain_id;
      }
      return next;
    },

    async misnumbered(chainId) {
      for (const kind of KINDS) {
        const row = await db(TABLES[kind])
          .where('chain_id', chainId)
          .andWhere((seq) => {
            seq.whereNull('chain_seq').orWhere('chain_seq', '<', 1);
            if (!isMysql) seq.orWhere('chain_seq', '>=', FIRST_TEXT);
          })
          .first<ChainedRecord['row'] | undefined>();
        if (row) return { kind, row };
      }
      return null;
    },

    async countUnchained() {
      let count = 0;
      for (const kind of KINDS) {
        const [row] = await db(TABLES[kind]).whereNull('chain_id').count<{ n: number }[]>({ n: '*' });
        count += Number(row?.n);
      }
      return count;
    },

    retention,

    async lockChain(chainId) {
      if (!isMysql) return true;
      return (await db('audit_chains').where('chain_id', chainId).forUpdate().skipLocked().first('chain_id')) !== undefined;
    },

    async removeUpTo(after, row) {
      const among = (kind: RecordKind) =>
        db(TABLES[kind]).where('chain_id', row.chain_id).andWhere('chain_seq', '>', after).andWhere('chain_seq', '<=', row.seq);
      const sets: { set_hash: string }[] = await among('shown').distinct('set_hash');
      let removed = 0;
      for (const kind of KINDS) removed += await among(kind).delete();
      await db('audit_retention').insert(row).onConflict('chain_id').merge();
      const hashes = sets.map(({ set_hash }) => set_hash).sort();
      if (hashes.length === 0) return removed;
      // Locked before they are looked for: who is about to refer to one waits, and then finds it gone.
      await db('audit_sets').whereIn('hash', hashes).orderBy('hash').forUpdate().select('hash');
      // The search for a use ends at the first one: millions of lists may have shown the same names.
      const unused: { hash: string }[] = await db('audit_sets as n')
        .whereIn('n.hash', hashes)
        .whereNotExists(db('audit_shown as s').where('s.set_hash', db.ref('n.hash')).select('s.set_hash'))
        .select('n.hash');
      if (unused.length > 0) {
        await db('audit_sets')
          .whereIn(
            'hash',
            unused.map(({ hash }) => hash),
          )
          .delete();
      }
      return removed;
    },

    async removeUnchained(before, limit) {
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

    erasures: () => db('audit_erasures').select(...ERASURE_COLUMNS),
    unfinishedErasures: () =>
      db('audit_erasures')
        .whereNull('done_at')
        .select(...ERASURE_COLUMNS),
    async insertErasure(row) {
      await db('audit_erasures').insert({ ...row, done_at: null });
    },
    async finishErasure(id, now) {
      await db('audit_erasures').where({ id }).update({ done_at: now });
    },

    async erase(userId, from, before, limit) {
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
