/**
 * What the group commit saves: the audit writer of the gateway on a real database, with callers who record one decision after the other.
 * Beside it the same writer with a commit for each record, on one connection and on many.
 */
import { randomBytes } from 'node:crypto';
import { v7 as uuidv7 } from 'uuid';
import { createChainKey } from '../../src/audit/chain/chain.ts';
import type { DecisionRecord } from '../../src/audit/records/records.ts';
import { createAuditWriter, type GroupCommitWriter } from '../../src/audit/writer.ts';
import { readConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/db/database.ts';
import type { Engine } from '../../test/support/databases/engines.ts';
import { figuresOf, median } from '../measure.ts';

export type Way = 'group' | 'row' | 'rows';

export interface CommitFigures {
  readonly engine: Engine['name'];
  /** `group`: all that wait, in one commit. `row`: one record, one commit, one after the other. `rows`: the same on `POOL` connections at once. */
  readonly way: Way;
  readonly callers: number;
  readonly perSecond: number;
  /** Milliseconds until a record is durable. */
  readonly p50: number;
  readonly p99: number;
  /** Records a second of the group commit as a multiple of these, in the same round. */
  readonly groupTo: number;
}

export interface CommitPlan {
  readonly callers: readonly number[];
  readonly rounds: number;
  readonly ms: number;
  readonly warmUpMs: number;
}

export const POOL = 64;

type Record = (record: DecisionRecord) => Promise<void>;

const record = (): DecisionRecord => ({
  id: uuidv7(),
  created_at: Date.now(),
  issuer: 'portcullis',
  user_id: '01939b3c-7a5e-7c3a-9d41-5a0c8f2b6e17',
  user_email: 'someone@example.com',
  user_role: 'developer',
  user_groups: ['payments', 'on-call'],
  target_id: '01939b3c-7a5e-7c3a-9d41-5a0c8f2b6e18',
  target_name: 'issues',
  method: 'tools/call',
  resource_type: 'tool',
  resource_name: 'create_issue',
  arguments: null,
  effect: 'allow',
  reason: 'matched',
  policy_id: '01939b3c-7a5e-7c3a-9d41-5a0c8f2b6e19',
  policy_name: 'developers may create issues',
  policy_priority: 100,
  revision: 12,
  data_hash: 'd'.repeat(64),
  engine_hash: 'e'.repeat(64),
});

/** A writer that is given one record at a time has nothing to group. */
function oneAtATime(writers: readonly GroupCommitWriter[]): Record {
  const free = [...writers];
  const waiting: ((writer: GroupCommitWriter) => void)[] = [];
  return async (one) => {
    const writer = free.pop() ?? (await new Promise<GroupCommitWriter>((resolve) => waiting.push(resolve)));
    try {
      await writer.decision(one);
    } finally {
      const next = waiting.shift();
      if (next === undefined) free.push(writer);
      else next(writer);
    }
  };
}

async function turn(write: Record, callers: number, ms: number): Promise<{ perSecond: number; p50: number; p99: number }> {
  const times: number[] = [];
  const began = performance.now();
  const until = began + ms;
  const caller = async (): Promise<void> => {
    for (let before = performance.now(); before < until; ) {
      await write(record());
      const now = performance.now();
      times.push(now - before);
      before = now;
    }
  };
  await Promise.all(Array.from({ length: callers }, caller));
  const seconds = (performance.now() - began) / 1_000;
  const { p50, p99 } = figuresOf(times);
  return { perSecond: times.length / seconds, p50, p99 };
}

export async function measureCommits(engine: Engine, plan: CommitPlan): Promise<CommitFigures[]> {
  const at = await engine.create();
  const { database: config } = readConfig({ DATABASE_URL: at.url, DATABASE_POOL: String(POOL) });
  const database = await openDatabase(config, async () => undefined);
  const key = createChainKey(randomBytes(32));
  const nothing = (): void => undefined;
  const log = { info: nothing, warn: nothing };
  const many = engine.name === 'sqlite' ? 1 : POOL;
  // The writers of single records, and the one that groups.
  const writers = Array.from({ length: many + 1 }, () => createAuditWriter({ database, key, host: {}, log, now: Date.now }));
  const [group, ...single] = writers;
  if (group === undefined) throw new Error('no writer');
  // SQLite has one connection, and the two ways are one.
  const ways: [Way, Record][] = [
    ['group', group.decision],
    ['row', oneAtATime(single.slice(0, 1))],
    ...(many === 1 ? [] : ([['rows', oneAtATime(single)]] satisfies [Way, Record][])),
  ];
  const turns = new Map<string, Awaited<ReturnType<typeof turn>>[]>();
  try {
    for (const writer of writers) await writer.start();
    for (let round = 0; round < plan.rounds; round++) {
      for (const callers of plan.callers) {
        for (const [way, write] of ways) {
          await turn(write, callers, plan.warmUpMs);
          const key = `${way} ${callers}`;
          turns.set(key, [...(turns.get(key) ?? []), await turn(write, callers, plan.ms)]);
        }
      }
    }
    for (const writer of writers) await writer.close();
  } finally {
    await database.close();
    await at.drop();
  }
  return plan.callers.flatMap((callers) =>
    ways.map(([way]) => {
      const own = turns.get(`${way} ${callers}`) ?? [];
      const grouped = turns.get(`group ${callers}`) ?? [];
      const over = (of: 'perSecond' | 'p50' | 'p99'): number => median(own.map((figures) => figures[of]));
      const groupTo = median(own.map(({ perSecond }, i) => (grouped[i]?.perSecond ?? Number.NaN) / perSecond));
      return { engine: engine.name, way, callers, perSecond: over('perSecond'), p50: over('p50'), p99: over('p99'), groupTo };
    }),
  );
}
