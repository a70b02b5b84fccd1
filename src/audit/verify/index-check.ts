/** Checks that pages and filters find exactly the checked records: no index is part of a chain, so an attacker could edit it. */
import type { Connection } from '../../db/database.ts';
import { HIGHEST_ID, LOWEST_ID } from '../chain/chain.ts';
import type { ChainedRecord, KnownFact } from '../chain/known-facts.ts';
import { logReader } from '../chain/tables/log-reader.ts';
import { literalId } from '../chain/tables/log-tables.ts';
import { type IndexedSegment, segmentStore } from '../chain/tables/segment-store.ts';
import { termsOf } from '../segments.ts';
import type { Problem } from './report.ts';

/** Stands for the segment of a decision that comes before the first segment. */
const NOTHING: IndexedSegment = { key: '', first_seq: 0, last_seq: null, low: HIGHEST_ID, high: LOWEST_ID };

/** A segment, and where the next one begins. `terms` null: the segment is open, so that a search reads all of it. */
interface Entered {
  readonly segment: IndexedSegment;
  readonly end: number;
  readonly terms: ReadonlySet<string> | null;
  /** Facts whose terms were found. */
  readonly found: Set<KnownFact>;
}

async function enter(db: Connection, segments: readonly IndexedSegment[], seq: number): Promise<Entered> {
  const next = segments.findIndex(({ first_seq }) => first_seq > seq);
  const segment = segments.at(next === -1 ? -1 : next - 1);
  const end = segments[next]?.first_seq ?? Number.POSITIVE_INFINITY;
  if (segment === undefined || next === 0) return { segment: NOTHING, end, terms: null, found: new Set() };
  const terms = segment.last_seq === null ? null : await segmentStore(db).termsOf(segment.key);
  return { segment, end, terms, found: new Set() };
}

function isFound({ segment, terms, found }: Entered, record: ChainedRecord): boolean {
  const { low, high, last_seq } = segment;
  const { row, facts = [] } = record;
  const id = String(row['id']);
  if (low === null || high === null || id < low || id > high || (last_seq !== null && row.chain_seq > last_seq)) return false;
  if (terms === null) return true;
  if (row['named'] === 0 && facts.every((fact) => fact !== null && found.has(fact))) return true;
  const all = termsOf(record).every((term) => terms.has(term));
  if (all) for (const fact of facts) if (fact !== null) found.add(fact);
  return all;
}

/** Checks decisions while the chains are read for a different purpose. The records of a chain must come in order. */
export function createIndexCheck(db: Connection) {
  const suspects: ChainedRecord[] = [];
  let chain: string | null = null;
  let segments: readonly IndexedSegment[] = [];
  let at: Entered | null = null;

  async function read(record: ChainedRecord): Promise<void> {
    const { chain_id, chain_seq } = record.row;
    if (chain_id !== chain) segments = await segmentStore(db).ofChain(chain_id);
    chain = chain_id;
    at = await enter(db, segments, chain_seq);
    check(at, record);
  }

  function check(entered: Entered, record: ChainedRecord): void {
    if (suspects.at(-1)?.row.chain_id !== record.row.chain_id && !isFound(entered, record)) suspects.push(record);
  }

  return {
    /** Returns a promise if the index must be read first. */
    take(record: ChainedRecord): Promise<void> | null {
      const { kind, row, facts } = record;
      if (kind !== 'decision' || facts === undefined) return null;
      if (row.chain_id !== chain || at === null || row.chain_seq >= at.end) return read(record);
      check(at, record);
      return null;
    },

    /** Returns the first decision of each chain that the index hides from a filter. */
    async hidden(): Promise<Problem[]> {
      const problems: Problem[] = [];
      for (const { row } of suspects) {
        const { chain_id, chain_seq } = row;
        const decision_id = String(row['id']);
        // A decision that was removed by age since it was read is not hidden.
        const [record] = await logReader(db).read('decision', (query) => query.whereRaw(`t.id = ${literalId(decision_id)}`));
        if (record === undefined) continue;
        const entered = await enter(db, await segmentStore(db).ofChain(chain_id), chain_seq);
        if (isFound(entered, record)) continue;
        const detail = 'the search index lacks this decision, so that filters of the log do not find it';
        problems.push({ problem: 'altered', chain: chain_id, seq: chain_seq, record: 'decision', decision_id, detail });
      }
      return problems;
    },
  };
}
