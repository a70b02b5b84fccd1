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

/**
 * Returns what is wrong with the database, so that pages of the log may show different records than those that were checked.
 *
 * - A view in the place of a table can show other rows to a page than to the verification, and a trigger can change what is written.
 * - Verification and pages read the same table of SQLite through different indexes. With SQL alone, an attacker can make an index that lacks
 *   some rows. MySQL does not let its users make one.
 */
export async function damageOf(db: Connection): Promise<Problem[]> {
  const isMysql = db.client.dialect === 'mysql';
  const stray: { name: string; kind: string }[] = isMysql ? (await db.raw(STRAY_IN_MYSQL))[0] : await db.raw(STRAY_IN_SQLITE);
  const found = stray.map(({ name, kind }) => `${name} is ${kind}`);
  if (!isMysql) {
    const [first]: { integrity_check: string }[] = await db.raw('pragma integrity_check(1)');
    if (first?.integrity_check !== 'ok') found.push(`the database file is damaged (${first?.integrity_check})`);
  }
  return found.map((what) => ({
    ...{ problem: 'altered', chain: null, seq: null, record: null, decision_id: null },
    detail: `${what}, so pages of the log may show different records than those that were checked`,
  }));
}

/** What an attacker can put in the place of a table of the log, or on it. */
const STRAY_IN_MYSQL = `select table_name as name, 'no table of InnoDB' as kind from information_schema.tables
  where table_schema = database() and table_name regexp '^(log|audit)_'
    and not (table_type = 'BASE TABLE' and coalesce(engine, '') = 'InnoDB')
  union all select trigger_name, concat('a trigger on ', event_object_table) from information_schema.triggers
  where event_object_schema = database() and event_object_table regexp '^(log|audit)_'`;
const STRAY_IN_SQLITE = `select name, case type when 'trigger' then 'a trigger on ' || tbl_name else 'no plain table' end as kind
  from sqlite_schema where (tbl_name glob 'log_*' or tbl_name glob 'audit_*')
    and (type in ('view', 'trigger') or (type = 'table' and sql not like 'create table %'))`;
