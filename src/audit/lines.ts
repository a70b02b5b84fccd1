/** The whole log in the order of its chains, line by line: what an export holds, and what `portcullis audit verify` reads. */
import type { Connection } from '../db/database.ts';
import { CHAIN_VERSION, type ChainRow, type ErasureRow, type RetentionRow } from './chain.ts';
import { type ChainedRecord, chainStore } from './chains/store.ts';

export type AuditLine =
  /** The first; `checkpoint` is as `/api/logs/checkpoint` gives it, null where it could not be signed. */
  | { readonly kind: 'audit'; readonly version: number; readonly created_at: number; readonly checkpoint: string | null }
  | { readonly kind: 'chain'; readonly row: ChainRow }
  | { readonly kind: 'unchained'; readonly count: number }
  /** Before the records of its chain, and again if records are removed while they are read. */
  | { readonly kind: 'retention'; readonly row: RetentionRow }
  | ChainedRecord
  | { readonly kind: 'erasure'; readonly row: ErasureRow }
  /** The last. */
  | { readonly kind: 'end'; readonly records: number };

/** Rows of one read: few, because calls that record their decisions wait for it. */
const PAGE = 200;

/**
 * Reads what was there when it began, while the log goes on: records are only ever added behind, and removed in front, where
 * a record of the removal takes their place. One page is in memory at a time.
 */
export async function* auditLines(
  db: Connection,
  createdAt: number,
  checkpoint: string | null,
  /** How many records of a chain need not be read; asked after the lines of all chains were taken. */
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

  let stranger = await store.nextNamedChain(null);
  while (stranger !== null) {
    if (!known.has(stranger)) {
      const begun = new Set((await store.chains()).map(({ chain_id }) => chain_id));
      const some = begun.has(stranger) ? [] : await store.records(stranger, -1, Number.MAX_SAFE_INTEGER, 1);
      for (const record of some) yield record;
      records += some.length;
      known.add(stranger);
    }
    stranger = await store.nextNamedChain(stranger);
  }
  for (const row of await store.erasures()) yield { kind: 'erasure', row };
  yield { kind: 'end', records };
}

/** Whether the page has the next records without a gap. A removal between the reads of a page leaves one anywhere in it. */
function goesOn(page: readonly ChainedRecord[], at: number, last: number): boolean {
  return page.length > 0 ? page.every(({ row }, i) => row.chain_seq === at + 1 + i) : at >= last;
}

/** A record as it stands in an export: its columns beside its kind. */
export function lineText(line: AuditLine): string {
  return 'row' in line ? JSON.stringify({ kind: line.kind, ...line.row }) : JSON.stringify(line);
}

/** The line that `lineText` wrote; null: it is none. */
export function readLine(text: string): AuditLine | null {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof value !== 'object' || value === null) return null;
  const { kind, ...row } = value as { kind?: unknown } & Record<string, unknown>;
  switch (kind) {
    case 'audit':
    case 'unchained':
    case 'end':
      return value as AuditLine;
    case 'chain':
    case 'retention':
    case 'erasure':
    case 'decision':
    case 'shown':
    case 'outcome':
      return { kind, row } as unknown as AuditLine;
    default:
      return null;
  }
}
