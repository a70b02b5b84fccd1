/** Whether a log is whole: every record as it was written, none added, none missing but those removed by age. Pure but for the cipher. */
import { hash } from 'node:crypto';
import {
  type ChainKey,
  type ChainRow,
  chainMac,
  type ErasureRow,
  erasureSignature,
  firstIdOf,
  personHash,
  type RecordKind,
  type RetentionRow,
  recordMac,
  resourceKey,
  retentionSignature,
} from './chain.ts';
import type { ChainedRecord } from './chains/store.ts';
import { type Checkpoint, checkpointMac } from './checkpoint.ts';
import type { AuditLine } from './lines.ts';

/**
 * `altered`: not what was written. `missing`: records between others, or a whole chain. `cut_off`: records at the end.
 * `added`: a record that no chain has a place for. `unknown_key`: written under a master key that is not given, or altered.
 */
export type ProblemKind = 'altered' | 'missing' | 'cut_off' | 'added' | 'unknown_key';

export interface Problem {
  readonly problem: ProblemKind;
  readonly chain: string | null;
  readonly seq: number | null;
  /** What the record is, and the decision it is of. */
  readonly record: RecordKind | null;
  readonly decision_id: string | null;
  readonly detail: string;
}

export interface Report {
  readonly intact: boolean;
  readonly chains: number;
  readonly records: Readonly<Record<RecordKind, number>>;
  /** From before there were chains: nothing is known of them but their number. */
  readonly unchained: number;
  /** Decisions whose personal data was erased. */
  readonly erased: number;
  /** Chains that begin later than they did, by age. */
  readonly shortened: number;
  /** The first of each chain. */
  readonly problems: readonly Problem[];
}

export interface Verification {
  /** Heads that were seen outside; to be told before any line. */
  expect(checkpoint: Checkpoint): void;
  take(line: AuditLine): void;
  /** Records so far. */
  taken(): number;
  /** After the last line. `keyFits` false: nothing was written under the keys that were given. */
  finish(): { readonly report: Report; readonly keyFits: boolean };
}

interface Expected {
  readonly seq: number;
  readonly mac: string;
  /** Who has seen it. */
  readonly by: string;
}

interface Walk {
  readonly row: ChainRow;
  /** null: it cannot be checked. */
  readonly key: ChainKey | null;
  seq: number;
  mac: string;
  retention: RetentionRow | null;
  state: 'before' | 'in' | 'done' | 'bad';
}

export function createVerification(keys: readonly ChainKey[]): Verification {
  const keyOf = new Map(keys.map((key) => [key.id, key]));
  const expected = new Map<string, Expected>();
  const walks = new Map<string, Walk>();
  const strangers = new Set<string>();
  const problems: Problem[] = [];
  const records = { decision: 0, shown: 0, outcome: 0 };
  /** Users with erased rows: the newest of those rows. */
  const erasedOf = new Map<string, { readonly id: string; readonly chain: string; readonly seq: number }>();
  const erasures: ErasureRow[] = [];
  let current: Walk | null = null;
  let unchained = 0;
  let erased = 0;
  let fitting = 0;
  let ended: number | null = null;

  function report(problem: ProblemKind, detail: string, at: Partial<Problem> = {}): void {
    problems.push({ chain: null, seq: null, record: null, decision_id: null, ...at, problem, detail });
  }

  function fail(walk: Walk, problem: ProblemKind, detail: string, at: Partial<Problem> = {}): void {
    if (walk.state === 'bad') return;
    walk.state = 'bad';
    report(problem, detail, { chain: walk.row.chain_id, ...at });
  }

  function expectHead(chain: string, head: Expected): void {
    if (head.seq >= (expected.get(chain)?.seq ?? -1)) expected.set(chain, head);
  }

  function takeChain(row: ChainRow): void {
    const key = keyOf.get(row.key_id) ?? null;
    const walk: Walk = { row, key, seq: 0, mac: row.mac, retention: null, state: 'before' };
    if (walks.has(row.chain_id)) {
      report('added', 'the head of the chain is there twice', { chain: row.chain_id });
      return;
    }
    walks.set(row.chain_id, walk);
    if (key === null) {
      fail(walk, 'unknown_key', 'the chain was written under a master key that is not given, or its head was altered');
      return;
    }
    fitting++;
    if (chainMac(key, row) !== row.mac) {
      fail(walk, 'altered', 'the head of the chain is not what was written', { seq: 0 });
      return;
    }
    for (const [chain, seq, mac] of JSON.parse(row.found) as [string, number, string][]) {
      expectHead(chain, { seq, mac, by: `chain ${row.chain_id}` });
    }
  }

  function takeRetention(row: RetentionRow): void {
    const walk = walks.get(row.chain_id);
    if (!walk) {
      report('missing', 'the chain is gone, of which records were removed by age', { chain: row.chain_id });
      return;
    }
    enter(walk);
    const key = keyOf.get(row.key_id);
    if (!key) {
      fail(walk, 'unknown_key', 'the removal by age was signed under a master key that is not given');
      return;
    }
    if (retentionSignature(key, row) !== row.signature) {
      fail(walk, 'altered', 'the record of what was removed by age is not what was written', { seq: row.seq });
      return;
    }
    walk.retention = row;
  }

  function enter(walk: Walk): void {
    if (current === walk) return;
    if (current) leave(current);
    current = walk;
    if (walk.state === 'before') walk.state = 'in';
  }

  /** What it must have had beyond what it has. */
  function leave(walk: Walk): void {
    if (walk.state === 'bad') return;
    const { retention } = walk;
    const head = expected.get(walk.row.chain_id);
    const seq = Math.max(walk.seq, retention?.seq ?? 0);
    if (head && head.seq > seq) {
      const gone = head.seq === seq + 1 ? `record ${head.seq} is` : `records ${seq + 1} to ${head.seq} are`;
      fail(walk, 'cut_off', `${gone} missing at the end; ${head.by} has seen them`, { seq: seq + 1 });
      return;
    }
    if (head && head.seq === seq && head.mac !== (seq === walk.seq ? walk.mac : retention?.mac)) {
      fail(walk, 'altered', `the end of the chain is not what ${head.by} has seen`, { seq });
      return;
    }
    walk.state = 'done';
  }

  function takeRecord({ kind, row }: ChainedRecord): void {
    records[kind]++;
    const decision_id = String(kind === 'decision' ? row['id'] : row['decision_id']);
    const at = { seq: row.chain_seq, record: kind, decision_id };
    const walk = walks.get(row.chain_id);
    if (!walk) {
      if (!strangers.has(row.chain_id)) {
        const gone = expected.has(row.chain_id);
        strangers.add(row.chain_id);
        const what = gone ? 'the head of the chain is gone' : 'the record is of a chain that never was';
        report(gone ? 'missing' : 'added', what, { chain: row.chain_id, ...at });
      }
      return;
    }
    if (walk.state === 'done') {
      fail(walk, 'added', 'the record stands outside of its chain', at);
      return;
    }
    enter(walk);
    if (walk.state === 'bad' || walk.key === null) return;
    const { retention } = walk;
    if (retention !== null && retention.seq > walk.seq && row.chain_seq === retention.seq + 1) {
      walk.seq = retention.seq;
      walk.mac = retention.mac;
    }
    if (row.chain_seq <= walk.seq) {
      fail(walk, 'added', 'the place in the chain is taken by another record', at);
      return;
    }
    if (row.chain_seq > walk.seq + 1) {
      const [first, last] = [walk.seq + 1, row.chain_seq - 1];
      const gone = first === last ? `record ${first} is` : `records ${first} to ${last} are`;
      fail(walk, 'missing', `${gone} missing before this one`, at);
      return;
    }
    const previous = walk.mac;
    if (recordMac(walk.key, walk.row.version, row.chain_id, row.chain_seq, previous, kind, row) !== row.mac) {
      fail(walk, 'altered', 'the record, or its place in the chain, is not what was written', at);
      return;
    }
    const wrong = kind === 'decision' ? decisionFault(row, at.seq) : kind === 'shown' ? setFault(row) : null;
    if (wrong !== null) {
      fail(walk, wrong.problem, wrong.detail, at);
      return;
    }
    walk.seq = row.chain_seq;
    walk.mac = row.mac;
  }

  /** What is not under the MAC itself. */
  function decisionFault(row: ChainedRecord['row'], seq: number): Pick<Problem, 'problem' | 'detail'> | null {
    const [salt, email, groups] = [row['salt'], row['user_email'], row['user_groups']];
    // Exports from before there were arguments have no such member.
    const args = row['arguments'] ?? null;
    if (row['resource_key'] !== resourceKey(row['resource_name'] as string | null)) {
      return { problem: 'altered', detail: 'the key by which the resource is found is not what was written' };
    }
    if (salt !== null) {
      const written = personHash(String(salt), String(email), String(groups), args === null ? null : String(args));
      if (written === row['person_hash']) return null;
      return { problem: 'altered', detail: 'e-mail, groups or arguments are not what was written' };
    }
    if (email !== '' || groups !== '[]' || args !== null) {
      return { problem: 'altered', detail: 'e-mail, groups or arguments were set after an erasure' };
    }
    erased++;
    const user = String(row['user_id']);
    const id = String(row['id']);
    const newest = erasedOf.get(user);
    if (newest === undefined || newest.id < id) erasedOf.set(user, { id, chain: row.chain_id, seq });
    return null;
  }

  function setFault(row: ChainedRecord['row']): Pick<Problem, 'problem' | 'detail'> | null {
    const names = row['names'];
    if (names === null || names === undefined)
      return { problem: 'missing', detail: 'the names that the list showed are missing' };
    if (hash('sha256', String(names), 'hex') === row['set_hash']) return null;
    return { problem: 'altered', detail: 'the names that the list showed are not what was written' };
  }

  /** Nobody can erase, but by the gateway. */
  function checkErasures(): void {
    for (const [user, { id, chain, seq }] of erasedOf) {
      const signed = erasures.some((row) => {
        const key = keyOf.get(row.key_id);
        return key && row.user_id === user && id < firstIdOf(row.erased_at) && erasureSignature(key, row) === row.signature;
      });
      if (signed) continue;
      const at = { chain, seq, record: 'decision', decision_id: id } as const;
      report('altered', 'personal data was taken out, and no erasure of this user was recorded', at);
    }
  }

  return {
    expect(checkpoint) {
      const { time, revision, key_id, heads, mac } = checkpoint;
      const key = keyOf.get(key_id);
      const when = new Date(time).toISOString();
      if (!key) {
        report('unknown_key', `the checkpoint of ${when} was made under a master key that is not given`);
        return;
      }
      if (checkpointMac(key, { time, revision, heads }) !== mac) {
        report('altered', `the checkpoint of ${when} is not what was written`);
        return;
      }
      for (const [chain, seq, head] of heads) expectHead(chain, { seq, mac: head, by: `the checkpoint of ${when}` });
    },

    take(line) {
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
        case 'erasure':
          erasures.push(line.row);
          return;
        case 'end':
          ended = line.records;
      }
    },

    taken: () => records.decision + records.shown + records.outcome,

    finish() {
      if (current) leave(current);
      for (const walk of walks.values()) if (walk.state === 'before') leave(walk);
      for (const [chain, head] of expected) {
        if (walks.has(chain) || strangers.has(chain)) continue;
        report('missing', `the whole chain is missing; ${head.by} has seen ${head.seq} records of it`, { chain });
      }
      checkErasures();
      const signed = [...walks.values()].filter(({ row, key }) => key !== null && chainMac(key, row) === row.mac);
      const allowed = Math.min(...signed.map(({ row }) => row.unchained));
      if (unchained > allowed) {
        report('added', `${unchained} records are of no chain, and there were ${allowed} when chains began`);
      }
      const taken = records.decision + records.shown + records.outcome;
      if (ended !== null && ended !== taken)
        report('missing', `there are ${taken} records, and there were ${ended} when they were read`);
      if (ended === null) report('cut_off', 'the export has no end: it was cut off');
      return {
        report: {
          intact: problems.length === 0,
          chains: walks.size,
          records,
          unchained,
          erased,
          shortened: [...walks.values()].filter(({ retention }) => retention !== null).length,
          problems,
        },
        keyFits: fitting > 0 || walks.size === 0,
      };
    },
  };
}
