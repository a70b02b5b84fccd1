/** Follows the records of one chain, from its header or from a checkpoint to its last record. Pure. */
import { MIN_RETENTION_DAYS } from '../../config/config.ts';
import { hexOf, OUTCOME_BYTES, outcomesIn } from '../chain/binary-form.ts';
import {
  type ChainKey,
  type ChainRow,
  chainMac,
  firstIdOf,
  HIGHEST_ID,
  type RetentionRow,
  retentionVersion,
  unprovenOf,
} from '../chain/chain.ts';
import { contentFault, isErased, missingFact } from '../chain/contents.ts';
import { type ChainedRecord, withFacts } from '../chain/known-facts.ts';
import { fitsMac } from '../chain/record-mac.ts';
import { type createSightings, foundBy, type Start } from '../chain/sightings.ts';
import { addition } from './members.ts';
import type { AddProblem, Problem, ProblemKind } from './report.ts';

/** Allows for the time that a record waited to be written, and for clocks that differ. */
export const SLACK_MS = 24 * 60 * 60 * 1000;
const MIN_RETENTION_MS = MIN_RETENTION_DAYS * 24 * 60 * 60 * 1000;

const spanText = (first: number, last: number): string =>
  first === last ? `record ${first} is` : `records ${first} to ${last} are`;

/** A record can have several outcomes. */
const countOf = ({ outcomes }: ChainedRecord): number => (outcomes ? outcomes.length / OUTCOME_BYTES : 1);

/** Names the record in a problem. A record of several outcomes belongs to no single decision. */
export function placeOf({ kind, row, outcomes }: ChainedRecord): Pick<Problem, 'seq' | 'record' | 'decision_id'> {
  const ends = outcomes ? outcomesIn(outcomes) : [];
  const id = ends.length === 1 ? ends[0]?.decision_id : row[kind === 'decision' ? 'id' : 'decision_id'];
  return { seq: row.chain_seq, record: kind, decision_id: typeof id === 'string' ? id : null };
}

/**
 * Returns the id of the newest decision that the record claims to be about. A record with a later time counts as one with a later id. The
 * highest id stands for an id that the gateway does not write.
 */
function claimedBy({ kind, row, outcomes }: ChainedRecord): string {
  const ids = outcomes
    ? outcomesIn(outcomes).map((ended) => ended.decision_id)
    : [row[kind === 'decision' ? 'id' : 'decision_id']];
  const { created_at } = row;
  let newest = typeof created_at === 'number' ? firstIdOf(created_at) : '';
  for (const id of ids) {
    if (hexOf(id) === null) return HIGHEST_ID;
    if (String(id) > newest) newest = String(id);
  }
  return newest;
}

type WalkFault = Pick<Problem, 'problem' | 'detail'>;

export type ChainWalk = ReturnType<typeof createChainWalk>;

/**
 * `key` null: the key of the chain was not given, so the chain cannot be checked. `noteErased` gets each record without its personal data.
 * `madeBy`: when the log was read, or its export was made.
 */
export function createChainWalk(
  row: ChainRow,
  key: ChainKey | null,
  sightings: ReturnType<typeof createSightings>,
  addProblem: AddProblem,
  noteErased: (record: ChainedRecord) => void,
  madeBy: number,
) {
  const chain = row.chain_id;
  /** The head at the checkpoint. Records up to it are not checked. */
  let start: Start | null = null;
  let seq = 0;
  let { mac } = row;
  let retention: RetentionRow | null = null;
  let isProven = true;
  /** The number and MAC of the last record, also of one up to the checkpoint. */
  let previous = { seq: 0, mac: row.mac };
  /** Among the records up to the checkpoint that do not fit their MAC: the one that claims to be about the newest decision. */
  let misfit: { readonly claimed: string; readonly record: ChainedRecord; readonly fault: WalkFault } | null = null;
  let state: 'before' | 'in' | 'done' | 'bad' = 'before';

  /** Adds the first problem of the chain. What follows from it is not reported. */
  function fail(problem: ProblemKind, detail: string, at: Partial<Problem> = {}): void {
    if (state === 'bad') return;
    state = 'bad';
    addProblem(problem, detail, { chain, ...at });
  }

  /** Checks that no removed record, up to `upTo`, was newer than `newest`: no sighting may show that one was written later. */
  function checkAge(upTo: number, newest: number, removedAt: number): void {
    const last = sightings.lastWithout(chain, upTo, removedAt);
    if (last === null || last.time <= newest + SLACK_MS) return;
    const [claimed, seen] = [newest, last.time].map((time) => new Date(time).toISOString());
    const detail = `the removal of the records up to ${upTo} claims that none was newer than ${claimed}, but ${last.by} shows that not all of them existed at ${seen}: they were too young to be removed`;
    fail('missing', detail, { seq: last.seq + 1 });
  }

  /** Checks that the removal is not from the future, and that the removed records were old enough: its clock may have been ahead. */
  function checkClock({ seq, removed_at, newest }: RetentionRow): void {
    const latest = madeBy + SLACK_MS;
    const [removed, youngest] = [removed_at, newest ?? 0].map((time) => new Date(time).toISOString());
    if (removed_at > latest) {
      fail('missing', `the records up to ${seq} were removed at ${removed}, which is in the future`, { seq });
      return;
    }
    if (newest !== null && newest > latest - MIN_RETENTION_MS)
      fail('missing', `the newest of the removed records up to ${seq} is of ${youngest}: it was too young to be removed`, {
        seq,
      });
  }

  function positionFault(at: number): WalkFault | null {
    // The walk takes the removal before the records, so all records up to it must be gone.
    if (retention !== null && at <= retention.seq)
      return { problem: 'added', detail: 'the record was removed by age, and somebody has put it back' };
    if (at <= seq) return { problem: 'added', detail: 'a different record already has this position in the chain' };
    if (at > seq + 1) return { problem: 'missing', detail: `${spanText(seq + 1, at - 1)} missing before this one` };
    return null;
  }

  /** The MAC of the record at the checkpoint cannot be computed without the record before it, so it is only compared. */
  function startFault(record: ChainedRecord): WalkFault | null {
    if (record.row.mac === start?.mac) return null;
    return { problem: 'altered', detail: 'the record is not the one that the checkpoint names' };
  }

  function faultOf(key: ChainKey, given: ChainedRecord, record: ChainedRecord): WalkFault | null {
    const missing = missingFact(record);
    if (missing !== null) return missing;
    if (!fitsMac(key, row.version, mac, record))
      return { problem: 'altered', detail: 'the record, or its position in the chain, is not what was written' };
    const fault = contentFault(record);
    if (fault !== null) return fault;
    if (isErased(record)) noteErased(record);
    return given.facts === undefined ? addition(given, row.version) : null;
  }

  /** Like `faultOf`, for a record up to the checkpoint. `before`: the MACs of the records that have the number before it. */
  function earlyFaultOf(key: ChainKey, given: ChainedRecord, record: ChainedRecord, before: readonly string[]): WalkFault | null {
    const missing = missingFact(record);
    if (missing !== null) return missing;
    if (!before.some((head) => fitsMac(key, row.version, head, record))) {
      const detail =
        'the record is about a decision after the checkpoint, but has the number of an older record, and the gateway did not write it';
      return { problem: 'added', detail };
    }
    return contentFault(record) ?? (given.facts === undefined ? addition(given, row.version) : null);
  }

  /** Remembers the record if it may have to be reported. It is not yet known which decisions are later than the checkpoint. */
  function noteEarly(key: ChainKey, given: ChainedRecord, record: ChainedRecord): void {
    const claimed = claimedBy(record);
    if (misfit !== null && claimed <= misfit.claimed) return;
    // In an export, the MAC of a record may be anything.
    const before = previous.seq === record.row.chain_seq - 1 && typeof previous.mac === 'string' ? [previous.mac] : [];
    const fault = earlyFaultOf(key, given, record, before);
    if (fault !== null) misfit = { claimed, record, fault };
  }

  return {
    row,
    fail,
    isBad: (): boolean => state === 'bad',
    /** Whether no record of it has come. */
    isUnread: (): boolean => state === 'before',
    isLeft: (): boolean => state === 'done',
    isSigned: (): boolean => key !== null && chainMac(key, row) === row.mac,
    isShortened: (): boolean => retention !== null,
    /** Whether the age of all removed records was proven. */
    isProven: (): boolean => isProven,

    /** Checks the header, and adds the heads that it names to the sightings. */
    takeHeader(): void {
      if (key === null) {
        fail('unknown_key', 'the chain was written under a master key that was not given, or its header was altered');
        return;
      }
      if (chainMac(key, row) !== mac) {
        fail('altered', 'the header of the chain is not what was written', { seq: 0 });
        return;
      }
      const added = addition({ kind: 'chain', row });
      if (added !== null) fail(added.problem, added.detail, { seq: 0 });
      const [time, by] = [row.started_at, `chain ${chain}`];
      sightings.add(chain, { seq: 0, mac, time, by: 'its own header' });
      for (const [other, at, head] of foundBy(row)) sightings.add(other, { seq: at, mac: head, time, by });
    },

    /** Call it before the first record. `from`: the head of the chain at the checkpoint; null: every record is checked. */
    enter(from: Start | null): void {
      if (state !== 'before') return;
      state = 'in';
      start = from;
      if (start !== null) seq = Math.max(0, start.seq - 1);
    },

    /** `signer`: the key that the row names; null: it was not given. */
    takeRetention(removal: RetentionRow, signer: ChainKey | null): void {
      if (signer === null) {
        fail('unknown_key', 'the removal by age was signed under a master key that was not given');
        return;
      }
      const version = retentionVersion(signer, removal);
      if (version === null) {
        fail('altered', 'the record of the removal by age is not what was written', { seq: removal.seq });
        return;
      }
      const added = addition({ kind: 'retention', row: removal });
      if (added !== null) fail(added.problem, added.detail, { seq: removal.seq });
      retention = removal;
      if (removal.seq > previous.seq) previous = { seq: removal.seq, mac: removal.mac };
      const unproven = unprovenOf(version, removal);
      isProven = unproven === null;
      // Version 1 did not record the age of the removed records. It only claimed that they were old enough.
      if (unproven !== null) checkAge(unproven.seq, unproven.removed_at - MIN_RETENTION_MS, unproven.removed_at);
      if (version === 2 && removal.newest !== null) checkAge(removal.seq, removal.newest, removal.removed_at);
      checkClock(version === 1 ? { ...removal, newest: null } : removal);
    },

    /** Returns how many records the line counts as, and whether its content was verified. Those up to the checkpoint do not count. */
    takeRecord(given: ChainedRecord): { readonly count: number; readonly isVerified: boolean } {
      const record = row.version === 2 ? withFacts(given) : given;
      const at = record.row.chain_seq;
      if (state === 'done') {
        fail('added', 'the record is outside its chain', placeOf(record));
        return { count: 0, isVerified: false };
      }
      if (!Number.isSafeInteger(at) || at < 1) {
        fail('added', 'the record has no number that is valid in a chain', placeOf(record));
        return { count: 0, isVerified: false };
      }
      if (start !== null && at <= start.seq) {
        if (state !== 'bad' && key !== null) noteEarly(key, given, record);
        previous = { seq: at, mac: record.row.mac };
      }
      if (start !== null && at < start.seq) return { count: 0, isVerified: false };
      const isAtStart = start !== null && at === start.seq;
      const count = isAtStart ? 0 : countOf(record);
      if (state === 'bad' || key === null) return { count, isVerified: false };
      if (retention !== null && retention.seq > seq && at === retention.seq + 1) {
        seq = retention.seq;
        mac = retention.mac;
      }
      const wrong = positionFault(at) ?? (isAtStart ? startFault(record) : faultOf(key, given, record));
      if (wrong !== null) {
        fail(wrong.problem, wrong.detail, placeOf(record));
        return { count, isVerified: false };
      }
      seq = at;
      mac = record.row.mac;
      return { count, isVerified: !isAtStart };
    },

    /** Checks a record up to the checkpoint that was read by itself. `before`: the MACs of the records that have the number before it. */
    takeEarly(given: ChainedRecord, before: readonly string[]): void {
      if (state === 'bad' || key === null) return;
      const record = row.version === 2 ? withFacts(given) : given;
      const wrong = earlyFaultOf(key, given, record, record.row.chain_seq === 1 ? [row.mac] : before);
      if (wrong !== null) fail(wrong.problem, wrong.detail, placeOf(record));
    },

    /** Reports a forged record among those up to the checkpoint, if all of them were read. `floor`: the lowest id of a later decision. */
    leaveEarly(floor: string): void {
      if (misfit !== null && misfit.claimed >= floor) fail(misfit.fault.problem, misfit.fault.detail, placeOf(misfit.record));
    },

    /** At the end of the chain: reports records that should be there but are not. */
    leave(): void {
      if (state === 'bad') return;
      const head = sightings.furthest(chain);
      const last = Math.max(seq, retention?.seq ?? 0);
      if (head && head.seq > last) {
        const detail = `${spanText(last + 1, head.seq)} missing at the end; ${head.by} shows that they existed`;
        fail('cut_off', detail, { seq: last + 1 });
        return;
      }
      if (head && head.seq === last && head.mac !== (last === seq ? mac : retention?.mac)) {
        fail('altered', `the last record of the chain is not the one that ${head.by} names`, { seq: last });
        return;
      }
      state = 'done';
    },
  };
}
