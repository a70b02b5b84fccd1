/** The whole log in the order of its chains, line by line. Exports have these lines, and `portcullis audit verify` reads them. */
import { setImmediate as turnOver } from 'node:timers/promises';
import type { Connection } from '../../db/database.ts';
import { CHAIN_VERSION, type ChainRow, type ErasureRow, type RetentionRow } from '../chain/chain.ts';
import { type ChainedRecord, recordText } from '../chain/known-facts.ts';
import { chainStore, type Part } from '../chain/tables/chain-store.ts';
import { KINDS, tailOf } from '../chain/tables/log-tables.ts';
import { type EarlyRecord, earlyRecords, type Skipping } from './early.ts';

export type AuditLine =
  /** The first line. `checkpoint`: that of `/api/logs/checkpoint`, which every export has; null: the lines are not for an export. */
  | { readonly kind: 'audit'; readonly version: number; readonly created_at: number; readonly checkpoint: string | null }
  | { readonly kind: 'chain'; readonly row: ChainRow }
  /** The records without a chain, and the newest time that one of them claims. Exports have neither such records nor that time. */
  | { readonly kind: 'unchained'; readonly count: number; readonly newest?: number | null }
  /** Comes before the records of its chain, and again if records are removed during the read. */
  | { readonly kind: 'retention'; readonly row: RetentionRow }
  | ChainedRecord
  /** Comes after the records of all chains, and only if the reader skips records. */
  | EarlyRecord
  | { readonly kind: 'erasure'; readonly row: ErasureRow }
  /** The last line. */
  | { readonly kind: 'end'; readonly records: number };

/** Records per read. The number is small if calls that record their decisions wait for the read. */
const PAGE = { ahead: 4_000, beside: 250 };

/**
 * Reads the records that existed when it began, while the log continues to grow. Records are only added at the end, and only
 * removed at the front, where a record of the removal replaces them. Only one page is in memory at a time.
 */
export async function* auditLines(
  db: Connection,
  createdAt: number,
  checkpoint: string | null,
  /** What need not be read; null: everything is read. */
  skipping: Skipping | null = null,
  /** Whether to read the next part while the caller works on this one. False if calls wait for the same database. */
  isAhead = false,
): AsyncGenerator<AuditLine> {
  const store = chainStore(db);
  const chains = await store.chains();
  const known = new Set(chains.map(({ chain_id }) => chain_id));
  const extents = (await store.extents()).filter(({ chain_id }) => known.has(chain_id));
  yield { kind: 'audit', version: CHAIN_VERSION, created_at: createdAt, checkpoint };
  for (const row of chains) yield { kind: 'chain', row };
  // Calls may wait for an export.
  const newest = checkpoint === null ? await store.newestUnchained() : null;
  yield { kind: 'unchained', count: await store.countUnchained(), newest };

  let records = 0;
  for (const { chain_id, last, hasLegacy } of extents) {
    let at = skipping?.skips(chain_id) ?? 0;
    let removed: RetentionRow | null = null;
    /** Returns the removal by age of record `seq`; null: it was not removed, or this removal was yielded before. */
    const removalOf = async (seq: number): Promise<RetentionRow | null> => {
      const now = await store.retention(chain_id);
      return now !== null && now.seq >= seq && now.seq !== removed?.seq ? now : null;
    };
    removed = await store.retention(chain_id);
    if (removed !== null) yield { kind: 'retention', row: removed };
    const misnumbered = await store.misnumbered(chain_id);
    if (misnumbered !== null) {
      yield misnumbered;
      records++;
    }
    const read = (after: number): Promise<Part> =>
      store.part(chain_id, after, last, isAhead ? PAGE.ahead : PAGE.beside, hasLegacy);
    let next: Promise<Part> | null = null;
    while (at < last) {
      const part: Part = await (next ?? read(at));
      next = isAhead && part.upTo < last ? read(part.upTo) : null;
      // A failure shows when the part is used.
      next?.catch(() => {});
      let gone = goesOn(part, at) ? null : await removalOf(at + 1);
      if (gone === null) {
        for await (const some of store.filled(part.records)) {
          // The answer to one query of the next part leads to the following query.
          if (isAhead) await turnOver();
          for (const record of some) {
            // Facts are removed after their records, so a missing fact can mean that the record has been removed by age.
            if (record.facts?.includes(null)) gone = await removalOf(record.row.chain_seq);
            if (gone !== null) break;
            yield record;
            records++;
          }
          if (gone !== null) break;
        }
      }
      if (gone !== null) {
        removed = gone;
        next = null;
        yield { kind: 'retention', row: gone };
      }
      at = gone?.seq ?? part.upTo;
    }
  }

  for (const kind of KINDS) {
    let named = await store.firstOfNextChain(kind, null);
    while (named !== null) {
      const id = named.row.chain_id;
      // A chain may have begun after the chains were read.
      const isKnown = known.has(id) || (await store.chains()).some(({ chain_id }) => chain_id === id);
      const next = typeof id === 'string' ? await store.firstOfNextChain(kind, id) : null;
      // In SQLite, a forged id may not be a text, or its driver may cut it off at a NUL. The search would then find the same id again.
      const isStuck = typeof id !== 'string' || next?.row.chain_id === id;
      if (isStuck) yield { kind, row: { ...(next ?? named).row, chain_id: `${id}\0` } };
      else if (!isKnown) yield named;
      if (isStuck || !isKnown) records++;
      named = isStuck ? null : next;
    }
  }
  const tails = new Set([...known].map(tailOf));
  for (const kind of KINDS) {
    for (let named = await store.firstOfNextTail(kind, null); named !== null; ) {
      const { tail, record }: { tail: string; record: ChainedRecord } = named;
      const isKnown = tails.has(tail) || (await store.chains()).some(({ chain_id }) => tailOf(chain_id) === tail);
      if (!isKnown) yield record;
      if (!isKnown) records++;
      named = await store.firstOfNextTail(kind, tail);
    }
  }
  if (skipping !== null) yield* earlyRecords(db, skipping);
  for (const row of await store.erasures()) yield { kind: 'erasure', row };
  yield { kind: 'end', records };
}

/** Whether the part has every number. A removal between the reads of a part can leave a gap anywhere in it. */
function goesOn({ records, upTo }: Part, at: number): boolean {
  return records.length === upTo - at && records.every(({ row }, i) => row.chain_seq === at + 1 + i);
}

/** Returns the line of an export: the kind and the columns of a record in one object. */
export function lineText(line: AuditLine): string {
  if (line.kind === 'decision' || line.kind === 'shown' || line.kind === 'outcome') return recordText(line);
  if (line.kind === 'unchained') return JSON.stringify({ kind: line.kind, count: line.count });
  return 'row' in line ? JSON.stringify({ kind: line.kind, ...line.row }) : JSON.stringify(line);
}

/** The members of the lines that are no rows. No MAC covers them, so nothing may be added. */
const FRAMES = {
  audit: ['version', 'created_at', 'checkpoint'],
  unchained: ['count'],
  end: ['records'],
};

/** Whether the line has exactly its members: numbers, and the text of the checkpoint. */
function isFrame(kind: keyof typeof FRAMES, row: Record<string, unknown>): boolean {
  return (
    Object.keys(row).join() === FRAMES[kind].join() &&
    Object.entries(row).every(
      ([name, value]) =>
        (Number.isSafeInteger(value) && Number(value) >= 0) ||
        (name === 'checkpoint' && (value === null || typeof value === 'string')),
    )
  );
}

/** Reads a line that `lineText` wrote; null: the text is not such a line. */
export function readLine(text: string): AuditLine | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof value !== 'object' || value === null) return null;
  // Readers disagree about a member that occurs twice.
  if (JSON.stringify(value) !== text) return null;
  const { kind, ...row } = value as { kind?: unknown } & Record<string, unknown>;
  if (kind === 'audit' || kind === 'unchained' || kind === 'end') return isFrame(kind, row) ? (value as AuditLine) : null;
  const isRow = ['chain', 'retention', 'erasure', ...KINDS].some((known) => known === kind);
  return isRow ? ({ kind, row } as unknown as AuditLine) : null;
}
