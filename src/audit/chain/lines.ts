/** The whole log in the order of its chains, line by line. Exports have these lines, and `portcullis audit verify` reads them. */
import type { Connection } from '../../db/database.ts';
import { CHAIN_VERSION, type ChainRow, type ErasureRow, type RetentionRow } from './chain.ts';
import { type ChainedRecord, chainStore, KINDS } from './chain-store.ts';

export type AuditLine =
  /** The first line. `checkpoint` is the one of `/api/logs/checkpoint`, or null if it could not be signed. */
  | { readonly kind: 'audit'; readonly version: number; readonly created_at: number; readonly checkpoint: string | null }
  | { readonly kind: 'chain'; readonly row: ChainRow }
  | { readonly kind: 'unchained'; readonly count: number }
  /** Comes before the records of its chain, and again if records are removed during the read. */
  | { readonly kind: 'retention'; readonly row: RetentionRow }
  | ChainedRecord
  | { readonly kind: 'erasure'; readonly row: ErasureRow }
  /** The last line. */
  | { readonly kind: 'end'; readonly records: number };

/** Rows per read. The number is small because calls that record their decisions wait for the read. */
const PAGE = 200;

/**
 * Reads the records that existed when it began, while the log continues to grow. Records are only added at the end, and only
 * removed at the front, where a record of the removal replaces them. Only one page is in memory at a time.
 */
export async function* auditLines(
  db: Connection,
  createdAt: number,
  checkpoint: string | null,
  /** How many records of a chain need not be read. Called after the caller has received the lines of all chains. */
  skips: (chain: string) => number = () => 0,
): AsyncGenerator<AuditLine> {
  const store = chainStore(db);
  const chains = await store.chains();
  const known = new Set(chains.map(({ chain_id }) => chain_id));
  const extents = (await store.extents()).filter(({ chain_id }) => known.has(chain_id));
  yield { kind: 'audit', version: CHAIN_VERSION, created_at: createdAt, checkpoint };
  for (const row of chains) yield { kind: 'chain', row };
  yield { kind: 'unchained', count: await store.countUnchained() };

  let records = 0;
  for (const { chain_id, last } of extents) {
    let at = skips(chain_id);
    let removed = await store.retention(chain_id);
    if (removed !== null) yield { kind: 'retention', row: removed };
    const misnumbered = await store.misnumbered(chain_id);
    if (misnumbered !== null) {
      yield misnumbered;
      records++;
    }
    for (;;) {
      const page: ChainedRecord[] = await store.records(chain_id, at, last, PAGE);
      if (!goesOn(page, at, last)) {
        const now: RetentionRow | null = await store.retention(chain_id);
        if (now !== null && now.seq > at && now.seq !== removed?.seq) {
          removed = now;
          yield { kind: 'retention', row: removed };
          at = removed.seq;
          continue;
        }
      }
      for (const record of page) yield record;
      records += page.length;
      if (page.length < PAGE) break;
      at = page.at(-1)?.row.chain_seq ?? last;
    }
  }

  for (const kind of KINDS) {
    let named = await store.firstOfNextChain(kind, null);
    while (named !== null) {
      const id = named.row.chain_id;
      // A chain may have begun after the chains were read.
      const isKnown = known.has(id) || (await store.chains()).some(({ chain_id }) => chain_id === id);
      const next = typeof id === 'string' ? await store.firstOfNextChain(kind, id) : null;
      // In SQLite, an id can be no text, or end for its driver at a NUL. The search would find it again.
      const isStuck = typeof id !== 'string' || next?.row.chain_id === id;
      if (isStuck) yield { kind, row: { ...(next ?? named).row, chain_id: `${id}\0` } };
      else if (!isKnown) yield named;
      if (isStuck || !isKnown) records++;
      named = isStuck ? null : next;
    }
  }
  for (const row of await store.erasures()) yield { kind: 'erasure', row };
  yield { kind: 'end', records };
}

/** Whether the page has the next records without a gap. A removal between the reads of a page can leave a gap anywhere in it. */
function goesOn(page: readonly ChainedRecord[], at: number, last: number): boolean {
  return page.length > 0 ? page.every(({ row }, i) => row.chain_seq === at + 1 + i) : at >= last;
}

/** Returns the line of an export: the kind and the columns of a record in one object. */
export function lineText(line: AuditLine): string {
  return 'row' in line ? JSON.stringify({ kind: line.kind, ...line.row }) : JSON.stringify(line);
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
  const { kind, ...row } = value as { kind?: unknown } & Record<string, unknown>;
  if (kind === 'audit' || kind === 'unchained' || kind === 'end') return value as AuditLine;
  const isRow = ['chain', 'retention', 'erasure', ...KINDS].some((known) => known === kind);
  return isRow ? ({ kind, row } as unknown as AuditLine) : null;
}
