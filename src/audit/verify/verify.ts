/** Verifies a log: every record is as written, none was added, and none is missing except those removed by age. Pure. */
import {
  type ChainKey,
  type ChainRow,
  type ErasureRow,
  erasureSignature,
  firstIdOf,
  type RetentionRow,
  timeOf,
} from '../chain/chain.ts';
import { type Checkpoint, checkpointMac, readCheckpoint } from '../chain/checkpoint.ts';
import type { ChainedRecord } from '../chain/known-facts.ts';
import { createSightings, type Start, startsAt } from '../chain/sightings.ts';
import { tailOf } from '../chain/tables/log-tables.ts';
import { type ChainWalk, createChainWalk, placeOf, SLACK_MS } from './chain-walk.ts';
import type { EarlyRecord, Skipping } from './early.ts';
import type { AuditLine } from './lines.ts';
import { addition } from './members.ts';
import type { AddProblem, Problem, Report } from './report.ts';

export type Verification = ReturnType<typeof createVerification>;
type Keys = ReadonlyMap<string, ChainKey>;

/** How long after an erasure a process may still use a fact that was erased. */
const LATE_MS = 60_000;

/** `now`: the time of the verification. */
export function createVerification(given: readonly ChainKey[], now: number) {
  const keys: Keys = new Map(given.map((key) => [key.id, key]));
  const sightings = createSightings();
  const walks = new Map<string, ChainWalk>();
  const strangers = new Set<string>();
  const problems: Problem[] = [];
  const report: AddProblem = (problem, detail, at = {}) =>
    void problems.push({ chain: null, seq: null, record: null, decision_id: null, ...at, problem, detail });
  const erasures = createErasureCheck(keys, report);
  const records = { decision: 0, shown: 0, outcome: 0 };
  let from: Checkpoint | null = null;
  let starts: ReadonlyMap<string, Start> | null = null;
  let taken = 0;
  let current: ChainWalk | null = null;
  let unchained = 0;
  let newestUnchained: number | null = null;
  let fitting = 0;
  let ended: number | null = null;
  let newest: string | null = null;
  /** The lowest id of a decision whose record was verified. */
  let oldest: string | null = null;
  /** Whether the records up to the checkpoint are left out, so that those that must be checked come by themselves. */
  let leavesOut = false;
  /** When the log was read, or its export was made. */
  let madeBy = now;
  let hasLateUnchained = false;

  function takeChain(row: ChainRow): void {
    if (walks.has(row.chain_id)) {
      report('added', 'the header of the chain occurs twice', { chain: row.chain_id });
      return;
    }
    const key = keys.get(row.key_id) ?? null;
    const walk = createChainWalk(row, key, sightings, report, erasures.note, madeBy);
    walks.set(row.chain_id, walk);
    // Records that were checked before this header could not be compared with the heads that it names.
    if (current !== null) walk.fail('added', 'the header of the chain comes after records');
    if (key !== null) fitting++;
    walk.takeHeader();
  }

  /** Returns the head of the chain at the checkpoint; null: the chain began later, or the whole chain is checked. */
  function startOf(chain: string): Start | null {
    if (from === null) return null;
    starts ??= startsAt(
      from,
      [...walks.values()].flatMap((walk) => (walk.isBad() ? [] : [walk.row])),
    );
    return starts.get(chain) ?? null;
  }

  function enter(walk: ChainWalk): void {
    if (current === walk) return;
    current?.leave();
    current = walk;
    walk.enter(startOf(walk.row.chain_id));
  }

  function takeRetention(row: RetentionRow): void {
    const walk = walks.get(row.chain_id);
    if (!walk) {
      report('missing', 'the chain is missing, although records of it were removed by age', { chain: row.chain_id });
      return;
    }
    enter(walk);
    walk.takeRetention(row, keys.get(row.key_id) ?? null);
  }

  function takeRecord(record: ChainedRecord): void {
    taken++;
    const walk = walks.get(record.row.chain_id);
    if (!walk) {
      noteStranger(record);
      return;
    }
    if (!walk.isLeft()) enter(walk);
    const { count, isVerified } = walk.takeRecord(record);
    records[record.kind] += count;
    if (!isVerified || record.kind !== 'decision') return;
    const id = String(record.row['id']);
    if (newest === null || id > newest) newest = id;
    if (oldest === null || id < oldest) oldest = id;
  }

  /**
   * Returns the lowest id of a decision that counts as later than the checkpoint; null: there is no checkpoint. A record that waited, or a
   * process whose clock is late, has a lower id than the time of the checkpoint.
   */
  function floor(): string | null {
    if (from === null) return null;
    const first = firstIdOf(from.time);
    return oldest !== null && oldest < first ? oldest : first;
  }

  function takeEarly({ record, before }: EarlyRecord): void {
    const { chain_id, ...row } = record.row;
    const walk = walks.get(chain_id);
    if (walk !== undefined) {
      walk.takeEarly(record, before);
      return;
    }
    // Such records are older than the first chain, and so than the checkpoint.
    const time = timeOf(String(row[record.kind === 'decision' ? 'id' : 'decision_id']));
    if (hasLateUnchained || from === null || time <= from.time + SLACK_MS) return;
    hasLateUnchained = true;
    report('added', 'the record is about a decision after the checkpoint, but it belongs to no chain', placeOf(record));
  }

  /** Reports a record of a chain that has no header, the first time. */
  function noteStranger(record: ChainedRecord): void {
    const chain = record.row.chain_id;
    if (strangers.has(chain)) return;
    const gone = sightedAs(String(chain));
    strangers.add(chain).add(gone ?? chain);
    const what = gone === null ? 'the record belongs to a chain that never existed' : 'the header of the chain is missing';
    report(gone === null ? 'added' : 'missing', what, { chain: gone ?? chain, ...placeOf(record) });
  }

  /** Returns the chain that was seen under this id, or under an id with the same end if only the end is known; null: none. */
  function sightedAs(id: string): string | null {
    if (sightings.furthest(id) !== undefined) return id;
    const seen = [...sightings.chains()].find(([chain]) => tailOf(chain) === tailOf(id));
    return seen?.[0] ?? null;
  }

  /** Adds the heads of a checkpoint from outside the database. Call it before `take`. Returns whether its MAC is valid. */
  function expect({ time, revision, key_id, heads, mac }: Checkpoint): boolean {
    const key = keys.get(key_id);
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
        newestUnchained = line.newest ?? null;
        return;
      case 'retention':
        takeRetention(line.row);
        return;
      case 'decision':
      case 'shown':
      case 'outcome':
        takeRecord(line);
        return;
      case 'early':
        takeEarly(line);
        return;
      case 'erasure': {
        erasures.sign(line.row);
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
        if (own === null)
          report('cut_off', 'the first line of the export has no checkpoint: nothing shows that the newest records are there');
        else if (expect(own)) madeBy = Math.min(now, own.time);
      }
      take(line);
    },

    /** Checks only records after the checkpoint, and that the chains continue from it. Call it before `take`. */
    since(checkpoint: Checkpoint): void {
      if (expect(checkpoint)) from = checkpoint;
    },

    /** For `auditLines`, which then leaves out what `since` does not check. Without this call, `take` must get every record. */
    skipping(): Skipping {
      leavesOut = true;
      const start = (chain: string): number => startOf(chain)?.seq ?? 0;
      const highest = (): number => Math.max(0, ...[...walks.keys()].map(start));
      return { start, highest, skips: (chain) => Math.max(0, start(chain) - 1), floor };
    },

    /** Returns the number of records so far. */
    taken: (): number => taken,

    /** Call it after the last line. `keyFits` is false if no chain was written under the given keys. */
    finish(): { readonly report: Report; readonly keyFits: boolean } {
      const all = [...walks.values()];
      current?.leave();
      for (const walk of all) if (walk.isUnread()) walk.leave();
      const low = floor();
      if (low !== null && !leavesOut) for (const walk of all) walk.leaveEarly(low);
      for (const [chain, head] of sightings.chains()) {
        if (walks.has(chain) || strangers.has(chain)) continue;
        report('missing', `the whole chain is missing; ${head.by} shows that it had ${head.seq} records`, { chain });
      }
      erasures.check();
      const allowed = Math.min(...all.filter((walk) => walk.isSigned()).map(({ row }) => row.unchained));
      if (unchained > allowed) {
        report('added', `${unchained} records belong to no chain, but there were only ${allowed} when the chains began`);
      }
      const began = Math.min(...all.filter((walk) => walk.isSigned()).map(({ row }) => row.started_at));
      if (newestUnchained !== null && newestUnchained > began + SLACK_MS)
        report('added', 'a record belongs to no chain, but it is younger than the first chain');
      if (ended !== null && ended !== taken)
        report('missing', `${taken} records were found, but the last line of the export counts ${ended}`);
      if (ended === null) report('cut_off', 'the last line of the export is missing: the export was cut off');
      return {
        report: {
          intact: problems.length === 0,
          chains: walks.size,
          records,
          unchained,
          erased: erasures.erased(),
          shortened: all.filter((walk) => walk.isShortened()).length,
          unproven: all.filter((walk) => !walk.isProven()).length,
          since: from?.time ?? null,
          newest,
          problems,
        },
        keyFits: fitting > 0 || walks.size === 0,
      };
    },
  };
}

/** Checks that personal data is missing only where a signed erasure says so: only the gateway can sign one. */
function createErasureCheck(keys: Keys, report: AddProblem) {
  const erasures: ErasureRow[] = [];
  /** The newest erased row of each user who has any. */
  const newestOf = new Map<
    string,
    { readonly time: number; readonly id: string; readonly chain: string; readonly seq: number }
  >();
  let erased = 0;

  return {
    /** Returns the number of decisions whose personal data was erased. */
    erased: (): number => erased,

    sign: (row: ErasureRow): void => void erasures.push(row),

    note({ row, facts }: ChainedRecord): void {
      erased++;
      const { user_id, since, salt } = facts?.[0]?.row ?? row;
      const [id, user] = [String(row['id']), String(user_id)];
      // In version 2, later records share the erased fact until the process that writes them hears of the erasure. Their arguments stay.
      const hasLostArguments = row['args_salt'] === null && row['args_hash'] !== null;
      const isShared = typeof since === 'number' && salt === null && !hasLostArguments;
      const time = isShared ? Math.max(since, timeOf(id) - LATE_MS) : timeOf(id);
      const newest = newestOf.get(user);
      if (newest === undefined || newest.time < time) newestOf.set(user, { time, id, chain: row.chain_id, seq: row.chain_seq });
    },

    check(): void {
      for (const [user, { time, id, chain, seq }] of newestOf) {
        const isSigned = erasures.some((row) => {
          const key = keys.get(row.key_id);
          return key && row.user_id === user && time < row.erased_at && erasureSignature(key, row) === row.signature;
        });
        if (isSigned) continue;
        const at = { chain, seq, record: 'decision', decision_id: id } as const;
        report('altered', 'personal data is missing, but no erasure of this user was recorded', at);
      }
    },
  };
}
