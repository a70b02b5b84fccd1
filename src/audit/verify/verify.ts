/** Verifies a log: every record is as written, none was added, and none is missing except those removed by age. Pure. */
import { MIN_RETENTION_DAYS } from '../../config/config.ts';
import { OUTCOME_BYTES, outcomesIn } from '../chain/binary-form.ts';
import {
  CHAIN_VERSION,
  type ChainKey,
  type ChainRow,
  chainMac,
  type ErasureRow,
  erasureSignature,
  type RecordKind,
  type RetentionRow,
  retentionVersion,
  timeOf,
  unprovenOf,
} from '../chain/chain.ts';
import { type Checkpoint, checkpointMac, readCheckpoint } from '../chain/checkpoint.ts';
import { type ContentFault, contentFault, isErased, missingFact } from '../chain/contents.ts';
import { type ChainedRecord, withFacts } from '../chain/known-facts.ts';
import { fitsMac } from '../chain/record-mac.ts';
import { createSightings, foundBy, type Start, startsAt } from '../chain/sightings.ts';
import { tailOf } from '../chain/tables/log-tables.ts';
import type { AuditLine } from './lines.ts';
import { strangeMember } from './members.ts';

/**
 * `altered`: the content is not what was written. `missing`: records between others are missing, or a whole chain. `cut_off`:
 * records at the end are missing. `added`: the record fits nowhere in its chain. `unknown_key`: the chain was written under a
 * master key that was not given, or its header was altered.
 */
export type ProblemKind = 'altered' | 'missing' | 'cut_off' | 'added' | 'unknown_key';

export interface Problem {
  readonly problem: ProblemKind;
  readonly chain: string | null;
  readonly seq: number | null;
  /** The kind of the record, and the decision to which it belongs; null: it has the outcomes of several. */
  readonly record: RecordKind | null;
  readonly decision_id: string | null;
  readonly detail: string;
}

export interface Report {
  readonly intact: boolean;
  readonly chains: number;
  readonly records: Readonly<Record<RecordKind, number>>;
  /** Records older than the first chain. Only their number can be checked. */
  readonly unchained: number;
  /** Decisions whose personal data was erased. */
  readonly erased: number;
  /** Chains whose first records were removed by age. */
  readonly shortened: number;
  /** Shortened chains from which an old version removed records without checking their age. */
  readonly unproven: number;
  /** The time of the checkpoint after which records were checked; null: all records were checked. */
  readonly since: number | null;
  /** The id of the newest decision whose record was verified; null: none was. */
  readonly newest: string | null;
  /** The first problem of each chain. */
  readonly problems: readonly Problem[];
}

export type Verification = ReturnType<typeof createVerification>;

/** How long after an erasure a process may still use a fact that was erased. */
const LATE_MS = 60_000;
/** Allows for the time that a record waited to be written, and for clocks that differ. */
const SLACK_MS = 24 * 60 * 60 * 1000;
const MIN_RETENTION_MS = MIN_RETENTION_DAYS * 24 * 60 * 60 * 1000;

const spanText = (first: number, last: number): string =>
  first === last ? `record ${first} is` : `records ${first} to ${last} are`;

/** A record can have several outcomes. */
const countOf = ({ outcomes }: ChainedRecord): number => (outcomes ? outcomes.length / OUTCOME_BYTES : 1);

/** Names the record in a problem. A record of several outcomes belongs to no single decision. */
function placeOf({ kind, row, outcomes }: ChainedRecord): Pick<Problem, 'seq' | 'record' | 'decision_id'> {
  const ends = outcomes ? outcomesIn(outcomes) : [];
  const id = ends.length === 1 ? ends[0]?.decision_id : row[kind === 'decision' ? 'id' : 'decision_id'];
  return { seq: row.chain_seq, record: kind, decision_id: typeof id === 'string' ? id : null };
}

interface Walk {
  readonly row: ChainRow;
  /** null: the key of the chain was not given, so the chain cannot be checked. */
  readonly key: ChainKey | null;
  /** The head at the checkpoint. Records up to it are not checked. */
  start: Start | null;
  seq: number;
  mac: string;
  retention: RetentionRow | null;
  unproven: boolean;
  state: 'before' | 'in' | 'done' | 'bad';
}

export function createVerification(keys: readonly ChainKey[]) {
  const keyOf = new Map(keys.map((key) => [key.id, key]));
  const sightings = createSightings();
  const walks = new Map<string, Walk>();
  const strangers = new Set<string>();
  const problems: Problem[] = [];
  const records = { decision: 0, shown: 0, outcome: 0 };
  /** The newest erased row of each user who has any. */
  const erasedOf = new Map<
    string,
    { readonly time: number; readonly id: string; readonly chain: string; readonly seq: number }
  >();
  const erasures: ErasureRow[] = [];
  let from: Checkpoint | null = null;
  let starts: ReadonlyMap<string, Start> | null = null;
  let taken = 0;
  let current: Walk | null = null;
  let unchained = 0;
  let erased = 0;
  let fitting = 0;
  let ended: number | null = null;
  let newest: string | null = null;

  function report(problem: ProblemKind, detail: string, at: Partial<Problem> = {}): void {
    problems.push({ chain: null, seq: null, record: null, decision_id: null, ...at, problem, detail });
  }

  function fail(walk: Walk, problem: ProblemKind, detail: string, at: Partial<Problem> = {}): void {
    if (walk.state === 'bad') return;
    walk.state = 'bad';
    report(problem, detail, { chain: walk.row.chain_id, ...at });
  }

  function takeChain(row: ChainRow): void {
    const key = keyOf.get(row.key_id) ?? null;
    const walk: Walk = { row, key, start: null, seq: 0, mac: row.mac, retention: null, unproven: false, state: 'before' };
    if (walks.has(row.chain_id)) {
      report('added', 'the header of the chain occurs twice', { chain: row.chain_id });
      return;
    }
    walks.set(row.chain_id, walk);
    // Records that were checked before this header could not be compared with the heads that it names.
    if (current !== null) fail(walk, 'added', 'the header of the chain comes after records');
    if (key === null) {
      fail(walk, 'unknown_key', 'the chain was written under a master key that was not given, or its header was altered');
      return;
    }
    fitting++;
    if (chainMac(key, row) !== row.mac) {
      fail(walk, 'altered', 'the header of the chain is not what was written', { seq: 0 });
      return;
    }
    const added = addition({ kind: 'chain', row });
    if (added !== null) fail(walk, added.problem, added.detail, { seq: 0 });
    const [time, by] = [row.started_at, `chain ${row.chain_id}`];
    sightings.add(row.chain_id, { seq: 0, mac: row.mac, time, by: 'its own header' });
    for (const [chain, seq, mac] of foundBy(row)) sightings.add(chain, { seq, mac, time, by });
  }

  /** Returns the head of the chain at the checkpoint; null: the chain began later, or the whole chain is checked. */
  function startOf(chain: string): Start | null {
    if (from === null) return null;
    starts ??= startsAt(
      from,
      [...walks.values()].flatMap(({ row, state }) => (state === 'bad' ? [] : [row])),
    );
    return starts.get(chain) ?? null;
  }

  function takeRetention(row: RetentionRow): void {
    const walk = walks.get(row.chain_id);
    if (!walk) {
      report('missing', 'the chain is missing, although records of it were removed by age', { chain: row.chain_id });
      return;
    }
    enter(walk);
    const key = keyOf.get(row.key_id);
    if (!key) {
      fail(walk, 'unknown_key', 'the removal by age was signed under a master key that was not given');
      return;
    }
    const version = retentionVersion(key, row);
    if (version === null) {
      fail(walk, 'altered', 'the record of the removal by age is not what was written', { seq: row.seq });
      return;
    }
    const added = addition({ kind: 'retention', row });
    if (added !== null) fail(walk, added.problem, added.detail, { seq: row.seq });
    walk.retention = row;
    const unproven = unprovenOf(version, row);
    walk.unproven = unproven !== null;
    // Version 1 did not record the age of the removed records. It only claimed that they were old enough.
    if (unproven !== null) checkAge(walk, unproven.seq, unproven.removed_at - MIN_RETENTION_MS, unproven.removed_at);
    if (version === 2 && row.newest !== null) checkAge(walk, row.seq, row.newest, row.removed_at);
  }

  /** Checks that no removed record, up to `seq`, was newer than `newest`: no sighting may show that one was written later. */
  function checkAge(walk: Walk, seq: number, newest: number, removedAt: number): void {
    const last = sightings.lastWithout(walk.row.chain_id, seq, removedAt);
    if (last === null || last.time <= newest + SLACK_MS) return;
    const [claimed, seen] = [newest, last.time].map((time) => new Date(time).toISOString());
    const detail = `the removal of the records up to ${seq} claims that none was newer than ${claimed}, but ${last.by} shows that not all of them existed at ${seen}: they were too young to be removed`;
    fail(walk, 'missing', detail, { seq: last.seq + 1 });
  }

  function enter(walk: Walk): void {
    if (current === walk) return;
    if (current) leave(current);
    current = walk;
    if (walk.state !== 'before') return;
    walk.state = 'in';
    walk.start = startOf(walk.row.chain_id);
    if (walk.start !== null) walk.seq = Math.max(0, walk.start.seq - 1);
  }

  /** At the end of a chain: reports records that should be there but are not. */
  function leave(walk: Walk): void {
    if (walk.state === 'bad') return;
    const { retention } = walk;
    const head = sightings.furthest(walk.row.chain_id);
    const seq = Math.max(walk.seq, retention?.seq ?? 0);
    if (head && head.seq > seq) {
      fail(walk, 'cut_off', `${spanText(seq + 1, head.seq)} missing at the end; ${head.by} shows that they existed`, {
        seq: seq + 1,
      });
      return;
    }
    if (head && head.seq === seq && head.mac !== (seq === walk.seq ? walk.mac : retention?.mac)) {
      fail(walk, 'altered', `the last record of the chain is not the one that ${head.by} names`, { seq });
      return;
    }
    walk.state = 'done';
  }

  /** Returns the chain that was seen under this id, or under an id with the same end if only the end is known; null: none. */
  function sightedAs(id: string): string | null {
    if (sightings.furthest(id) !== undefined) return id;
    const seen = [...sightings.chains()].find(([chain]) => tailOf(chain) === tailOf(id));
    return seen?.[0] ?? null;
  }

  function takeRecord(given: ChainedRecord): void {
    taken++;
    const walk = walks.get(given.row.chain_id);
    const record = walk?.row.version === 2 ? withFacts(given) : given;
    const { kind, row } = record;
    if (!walk) {
      if (!strangers.has(row.chain_id)) {
        const gone = sightedAs(String(row.chain_id));
        strangers.add(row.chain_id).add(gone ?? row.chain_id);
        const what = gone === null ? 'the record belongs to a chain that never existed' : 'the header of the chain is missing';
        report(gone === null ? 'added' : 'missing', what, { chain: gone ?? row.chain_id, ...placeOf(record) });
      }
      return;
    }
    if (walk.state === 'done') {
      fail(walk, 'added', 'the record is outside its chain', placeOf(record));
      return;
    }
    enter(walk);
    if (!Number.isSafeInteger(row.chain_seq) || row.chain_seq < 1) {
      fail(walk, 'added', 'the record has no number that is valid in a chain', placeOf(record));
      return;
    }
    const { start, retention } = walk;
    if (start !== null && row.chain_seq < start.seq) return;
    if (start === null || row.chain_seq > start.seq) records[kind] += countOf(record);
    if (walk.state === 'bad' || walk.key === null) return;
    if (retention !== null && retention.seq > walk.seq && row.chain_seq === retention.seq + 1) {
      walk.seq = retention.seq;
      walk.mac = retention.mac;
    }
    if (row.chain_seq <= walk.seq) {
      fail(walk, 'added', 'a different record already has this position in the chain', placeOf(record));
      return;
    }
    if (row.chain_seq > walk.seq + 1) {
      fail(walk, 'missing', `${spanText(walk.seq + 1, row.chain_seq - 1)} missing before this one`, placeOf(record));
      return;
    }
    if (start !== null && row.chain_seq === start.seq) {
      // The MAC cannot be computed without the record before it, so it is only compared.
      if (row.mac !== start.mac) {
        fail(walk, 'altered', 'the record is not the one that the checkpoint names', placeOf(record));
        return;
      }
    } else {
      const wrong = faultOf(walk, walk.key, record) ?? (given.facts === undefined ? addition(given, walk.row.version) : null);
      if (wrong !== null) {
        fail(walk, wrong.problem, wrong.detail, placeOf(record));
        return;
      }
      if (kind === 'decision' && String(row['id']) > (newest ?? '')) newest = String(row['id']);
    }
    walk.seq = row.chain_seq;
    walk.mac = row.mac;
  }

  function faultOf({ row: { version }, mac }: Walk, key: ChainKey, record: ChainedRecord): ContentFault | null {
    const missing = missingFact(record);
    if (missing !== null) return missing;
    if (!fitsMac(key, version, mac, record))
      return { problem: 'altered', detail: 'the record, or its position in the chain, is not what was written' };
    const fault = contentFault(record);
    if (fault === null && isErased(record)) noteErased(record);
    return fault;
  }

  /** Returns that somebody added a member to a line of an export: readers of the export would believe it. */
  function addition(line: Parameters<typeof strangeMember>[0], version = CHAIN_VERSION): ContentFault | null {
    const name = strangeMember(line, version);
    if (name === null) return null;
    return { problem: 'altered', detail: `the member ${JSON.stringify(name)} was added: the gateway does not write it` };
  }

  function noteErased({ row, facts }: ChainedRecord): void {
    erased++;
    const { user_id, since, salt } = facts?.[0]?.row ?? row;
    const [id, user] = [String(row['id']), String(user_id)];
    // In version 2, later records share the erased fact until the process that writes them hears of the erasure. Their arguments stay.
    const hasLostArguments = row['args_salt'] === null && row['args_hash'] !== null;
    const isShared = typeof since === 'number' && salt === null && !hasLostArguments;
    const time = isShared ? Math.max(since, timeOf(id) - LATE_MS) : timeOf(id);
    const newest = erasedOf.get(user);
    if (newest === undefined || newest.time < time) erasedOf.set(user, { time, id, chain: row.chain_id, seq: row.chain_seq });
  }

  /** Reports personal data that is missing without a signed erasure: only the gateway can sign one. */
  function checkErasures(): void {
    for (const [user, { time, id, chain, seq }] of erasedOf) {
      const signed = erasures.some((row) => {
        const key = keyOf.get(row.key_id);
        return key && row.user_id === user && time < row.erased_at && erasureSignature(key, row) === row.signature;
      });
      if (signed) continue;
      const at = { chain, seq, record: 'decision', decision_id: id } as const;
      report('altered', 'personal data is missing, but no erasure of this user was recorded', at);
    }
  }

  /** Adds the heads of a checkpoint from outside the database. Call it before `take`. Returns whether its MAC is valid. */
  function expect({ time, revision, key_id, heads, mac }: Checkpoint): boolean {
    const key = keyOf.get(key_id);
    const when = new Date(time).toISOString();
    if (!key) {
      report('unknown_key', `the checkpoint of ${when} was made under a master key that was not given`);
      return false;
    }
    if (checkpointMac(key, { time, revision, heads }) !== mac) {
      report('altered', `the checkpoint of ${when} is not what was written`);
      return false;
    }
    for (const [chain, seq, head] of heads) sightings.add(chain, { seq, mac: head, time, by: `the checkpoint of ${when}` });
    return true;
  }

  function take(line: AuditLine): void {
    switch (line.kind) {
      case 'audit':
        return;
      case 'chain':
        takeChain(line.row);
        return;
      case 'unchained':
        unchained = line.count;
        return;
      case 'retention':
        takeRetention(line.row);
        return;
      case 'decision':
      case 'shown':
      case 'outcome':
        takeRecord(line);
        return;
      case 'erasure': {
        erasures.push(line.row);
        const added = addition(line);
        if (added !== null) report(added.problem, added.detail);
        return;
      }
      case 'end':
        ended = line.records;
    }
  }

  return {
    expect,
    take,

    /** Like `take`, for a line of an export: its first line names the heads that the chains had. */
    takeExported(line: AuditLine): void {
      if (line.kind === 'audit') {
        const own = line.checkpoint === null ? null : readCheckpoint(line.checkpoint);
        if (own !== null) expect(own);
        else report('cut_off', 'the first line of the export has no checkpoint: nothing shows that the newest records are there');
      }
      take(line);
    },

    /** Checks only records after the checkpoint, and that the chains continue from it. Call it before `take`. */
    since(checkpoint: Checkpoint): void {
      if (expect(checkpoint)) from = checkpoint;
    },

    /** Returns how many records of the chain need not be read. Call it after `take` got the lines of all chains. */
    skips: (chain: string): number => Math.max(0, (startOf(chain)?.seq ?? 0) - 1),

    /** Returns the number of records so far. */
    taken: (): number => taken,

    /** Call it after the last line. `keyFits` is false if no chain was written under the given keys. */
    finish(): { readonly report: Report; readonly keyFits: boolean } {
      if (current) leave(current);
      for (const walk of walks.values()) if (walk.state === 'before') leave(walk);
      for (const [chain, head] of sightings.chains()) {
        if (walks.has(chain) || strangers.has(chain)) continue;
        report('missing', `the whole chain is missing; ${head.by} shows that it had ${head.seq} records`, { chain });
      }
      checkErasures();
      const signed = [...walks.values()].filter(({ row, key }) => key !== null && chainMac(key, row) === row.mac);
      const allowed = Math.min(...signed.map(({ row }) => row.unchained));
      if (unchained > allowed) {
        report('added', `${unchained} records belong to no chain, but there were only ${allowed} when the chains began`);
      }
      if (ended !== null && ended !== taken)
        report('missing', `${taken} records were found, but the last line of the export counts ${ended}`);
      if (ended === null) report('cut_off', 'the last line of the export is missing: the export was cut off');
      return {
        report: {
          intact: problems.length === 0,
          chains: walks.size,
          records,
          unchained,
          erased,
          shortened: [...walks.values()].filter(({ retention }) => retention !== null).length,
          unproven: [...walks.values()].filter(({ unproven }) => unproven).length,
          since: from?.time ?? null,
          newest,
          problems,
        },
        keyFits: fitting > 0 || walks.size === 0,
      };
    },
  };
}
