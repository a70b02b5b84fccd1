/** The chains in the database: their headers, their records in order, and what was recorded of removals and erasures. */
import { UUID } from '../../../base/validate.ts';
import type { Connection } from '../../../db/database.ts';
import {
  BESIDE,
  CHAINED,
  type ChainKey,
  type ChainRow,
  chainMac,
  type ErasureRow,
  type Head,
  LEGACY_VERSION,
  type RecordKind,
  type RetentionRow,
  timeOf,
} from '../chain.ts';
import type { ChainedRecord } from '../known-facts.ts';
import { foundBy } from '../sightings.ts';
import { ERASURE_COLUMNS } from './erasure-store.ts';
import { logReader, type StoredRecord } from './log-reader.ts';
import { INVALID_NUMBERS, logRecords } from './log-records.ts';
import { KINDS, LEGACY_TABLES, LOG_TABLES, TAIL_BYTES, tailOf } from './log-tables.ts';

interface Extent {
  readonly chain_id: string;
  readonly first: number | null;
  readonly last: number;
  /** Whether the legacy tables, those of version 1, have records of the chain. */
  readonly hasLegacy: boolean;
}

/** The records of a chain up to the number `upTo`, in order. A number that has no record is missing. */
export interface Part {
  readonly records: readonly StoredRecord[];
  readonly upTo: number;
}

/** The tail of the id of a chain (`audit_chains as c`), as SQL. Records of version 2 have it in place of the id. */
export const TAIL = `unhex(substr(c.chain_id, ${37 - 2 * TAIL_BYTES}))`;

const CHAIN_COLUMNS = ['chain_id', 'version', 'key_id', 'started_at', 'host', 'found', 'unchained', 'mac'] as const;
const RETENTION_COLUMNS = ['chain_id', 'seq', 'mac', 'removed_at', 'newest', 'unproven', 'key_id', 'signature'] as const;

/**
 * The largest number of a record. Larger ones lose their last digit on the way from the database. SQLite accepts a text in a
 * numeric column, and sorts it after all numbers.
 */
const LAST_SEQ = Number.MAX_SAFE_INTEGER;

const numberOrNull = (value: unknown): number | null => (value === null ? null : Number(value));

export function chainStore(db: Connection, withTexts = true) {
  const isMysql = db.client.dialect === 'mysql';
  const reader = logReader(db, withTexts);
  const log = logRecords(db, reader);

  /**
   * The driver of SQLite ends a text at a NUL, which would hide the rest from verification but not from a search. The gateway
   * stores no NUL, so a row with one is forged.
   */
  const nulIn = (columns: readonly string[]) => db.raw(isMysql ? '0 as nul' : `instr(concat(${columns.join()}), char(0)) as nul`);
  /** Removes the MAC or signature of a row with a NUL, so that the row fails every check. */
  function proven<R extends object>({ nul, ...row }: R & { readonly nul: number }, proof: 'mac' | 'signature'): Omit<R, 'nul'> {
    return nul === 0 ? row : { ...row, [proof]: '' };
  }

  /** Returns the first and last number of each chain. `first` null: no record is left. `last` includes records removed by age. */
  async function extents(): Promise<Extent[]> {
    const ends = KINDS.flatMap((kind) =>
      (['min', 'max'] as const).map((end) =>
        db(`${LEGACY_TABLES[kind]} as t`)
          .where('t.chain_id', db.ref('c.chain_id'))
          .andWhere('t.chain_seq', '<=', LAST_SEQ)
          [end]('t.chain_seq')
          .as(`${kind}_${end}`),
      ),
    );
    // In MySQL, `min` and `max` would read all records of a chain, because these subqueries depend on the row.
    const logEnds = KINDS.flatMap((kind) =>
      (['asc', 'desc'] as const).map((order) =>
        db(`${LOG_TABLES[kind]} as t`)
          .whereRaw(`t.chain = ${TAIL}`)
          .andWhere('t.seq', '<=', LAST_SEQ)
          .orderBy('t.seq', order)
          .limit(1)
          .select('t.seq')
          .as(`${kind}_${order}`),
      ),
    );
    const rows: Record<string, unknown>[] = await db('audit_chains as c')
      .leftJoin('audit_retention as r', 'r.chain_id', 'c.chain_id')
      .select('c.chain_id', 'r.seq', ...ends, ...logEnds);
    return rows.map((row) => {
      const endsOf = (...names: readonly string[]) =>
        KINDS.flatMap((kind) => names.map((name) => numberOrNull(row[`${kind}_${name}`]))).filter((seq) => seq !== null);
      const [firsts, lasts] = [endsOf('min', 'asc'), endsOf('max', 'desc')];
      return {
        chain_id: String(row['chain_id']),
        first: firsts.length === 0 ? null : Math.min(...firsts),
        last: Math.max(...lasts, numberOrNull(row['seq']) ?? 0),
        hasLegacy: endsOf('min').length > 0,
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

  /**
   * Records of the legacy tables. If somebody moved a record of version 2 there, its MAC would still be valid, but readers of the log
   * would not find it.
   */
  async function legacyRecords(chainId: string, after: number, upTo: number, limit: number): Promise<StoredRecord[]> {
    const found: StoredRecord[] = [];
    for (const kind of KINDS) {
      const withNames = withTexts && kind === 'shown';
      const columns = [...CHAINED[kind], ...BESIDE[kind], 'chain_id', 'chain_seq', 'mac'].map((column) => `t.${column}`);
      const query = db(`${LEGACY_TABLES[kind]} as t`)
        .where('t.chain_id', chainId)
        .andWhere('t.chain_seq', '>', after)
        .andWhere('t.chain_seq', '<=', upTo)
        .orderBy('t.chain_seq')
        .limit(limit)
        .leftJoin('audit_chains as c', 'c.chain_id', 't.chain_id')
        .select('t.*', 'c.version', nulIn(withNames ? [...columns, 'n.names'] : columns));
      if (withNames) query.leftJoin('audit_sets as n', 'n.hash', 't.set_hash').select('n.names');
      for (const { version, ...row } of await query) {
        const isLegacy = version === LEGACY_VERSION;
        found.push({ kind, row: (isLegacy ? proven(row, 'mac') : { ...proven(row, 'mac'), mac: '' }) as StoredRecord['row'] });
      }
    }
    return found;
  }

  /** Returns the lowest number above `after`; null: there is none. */
  async function nextNumber(chainId: string, after: number): Promise<number | null> {
    const found: number[] = [];
    for (const kind of KINDS) {
      const legacy = db(LEGACY_TABLES[kind]).where('chain_id', chainId).select('chain_seq as seq');
      const log = db(LOG_TABLES[kind])
        .whereRaw(`chain = x'${tailOf(chainId)}'`)
        .select('seq');
      for (const [query, column] of [
        [legacy, 'chain_seq'],
        [log, 'seq'],
      ] as const) {
        const [row]: { seq: number }[] = await query
          .where(column, '>', after)
          .andWhere(column, '<=', LAST_SEQ)
          .orderBy(column)
          .limit(1);
        if (row !== undefined) found.push(Number(row.seq));
      }
    }
    return found.length === 0 ? null : Math.min(...found);
  }

  /**
   * Returns the records with `after` < seq <= `after` + `size`, but not above `last`. If there are none, it continues at the next number
   * that has a record.
   */
  async function part(chainId: string, after: number, last: number, size: number, hasLegacy = true): Promise<Part> {
    for (let from = after; ; ) {
      const upTo = Math.min(from + size, last);
      // Only a forger can make more records than numbers. One record too many shows that, so no more are read.
      const found = hasLegacy ? await legacyRecords(chainId, from, upTo, size + 1) : [];
      found.push(...(await log.records(chainId, from, upTo, size + 1)));
      if (found.length > 0 || upTo >= last) {
        return { records: found.sort((a, b) => a.row.chain_seq - b.row.chain_seq), upTo };
      }
      const next = await nextNumber(chainId, upTo);
      if (next === null || next > last) return { records: [], upTo: last };
      from = next - 1;
    }
  }

  async function macAt(chainId: string, seq: number): Promise<string | null> {
    for (const kind of KINDS) {
      const at = { chain_id: chainId, chain_seq: seq };
      const row = await db(LEGACY_TABLES[kind]).where(at).first<{ mac: string | null } | undefined>('mac');
      if (row) return String(row.mac ?? '');
    }
    const [record] = await log.records(chainId, seq - 1, seq, 1);
    if (record) return record.row.mac;
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
     * Returns the heads that no later chain names as they are now. Together with these, the chains name every other chain. Only headers
     * with a valid MAC under `key` count, because an attacker could name a head in a forged header to hide it.
     */
    async openHeads(key: ChainKey): Promise<Head[]> {
      // The headers are read last, so that each chain of `ends` has its header. A chain that began in between is left out, so that the
      // heads that it names stay in the result.
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

    part,
    /** Yields the records with their facts, some at a time. */
    filled: reader.filled,
    whole: reader.whole,
    /** Returns the first records with `after` < seq <= `after` + `limit`, in order; if there are none, those that follow. */
    async oldest(chainId: string, after: number, limit: number): Promise<ChainedRecord[]> {
      return reader.whole((await part(chainId, after, LAST_SEQ, limit)).records);
    },

    /** Returns a record of this kind of the next chain after `after` (null: of the first); null: there is none. */
    async firstOfNextChain(kind: RecordKind, after: string | null): Promise<ChainedRecord | null> {
      const row = await db(LEGACY_TABLES[kind])
        .where((named) => (after === null ? named.whereNotNull('chain_id') : named.where('chain_id', '>', after)))
        .orderBy('chain_id')
        .first<ChainedRecord['row'] | undefined>();
      return row ? { kind, row } : null;
    },

    /** Returns a record of the chain whose number is invalid; null: there is none. */
    async misnumbered(chainId: string): Promise<ChainedRecord | null> {
      for (const kind of KINDS) {
        for (const invalid of INVALID_NUMBERS) {
          const query = db(LEGACY_TABLES[kind]).where('chain_id', chainId).whereRaw(`chain_seq ${invalid}`);
          const row = await query.first<ChainedRecord['row'] | undefined>();
          if (row) return { kind, row };
        }
      }
      return log.misnumbered(chainId);
    },
    firstOfNextTail: log.firstOfNextTail,

    /** Counts the records that belong to no chain, because they are older than the first chain. */
    async countUnchained(): Promise<number> {
      let count = 0;
      for (const kind of KINDS) {
        const [row] = await db(LEGACY_TABLES[kind]).whereNull('chain_id').count<{ n: number }[]>({ n: '*' });
        count += Number(row?.n);
      }
      return count;
    },

    /** Returns the newest time that a record without a chain claims, by its id or in its row; null: there is none. */
    async newestUnchained(): Promise<number | null> {
      const times: number[] = [];
      for (const kind of KINDS) {
        const last = kind === 'decision' ? 'max(id) as id, max(created_at) as time' : 'max(decision_id) as id, null as time';
        const [row] = (await db(LEGACY_TABLES[kind]).whereNull('chain_id').select(db.raw(last))) as [
          Record<'id' | 'time', unknown>,
        ];
        const { id, time } = row;
        // SQLite accepts every type in every column, and in its order texts follow numbers, and blobs follow texts.
        if (id !== null) times.push(typeof id === 'string' && UUID.test(id) ? timeOf(id) : Number.MAX_SAFE_INTEGER);
        if (time !== null) times.push(Number.isSafeInteger(time) ? Number(time) : Number.MAX_SAFE_INTEGER);
      }
      return times.length === 0 ? null : Math.max(...times);
    },

    retention,

    async erasures(): Promise<ErasureRow[]> {
      const rows: (ErasureRow & { nul: number })[] = await db('audit_erasures').select(
        ...ERASURE_COLUMNS,
        nulIn(ERASURE_COLUMNS),
      );
      return rows.map((row) => proven(row, 'signature'));
    },
  };
}
