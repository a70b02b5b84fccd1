/**
 * The size of the audit log, and the processor time that it costs: the audit writer of the gateway records calls with their outcomes on a
 * real database. The calls are a mix such as a company of 200 users makes.
 */
import { randomBytes } from 'node:crypto';
import { statSync } from 'node:fs';
import { v7 as uuidv7 } from 'uuid';
import { createChainKey } from '../../src/audit/chain/chain.ts';
import type { DecisionRecord, OutcomeRecord, ShownRecord } from '../../src/audit/records/records.ts';
import { createAuditWriter } from '../../src/audit/writer.ts';
import { readConfig } from '../../src/config/config.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import type { Engine } from '../../test/support/databases/engines.ts';
import { figuresOf } from '../measure.ts';

export interface SizePlan {
  readonly calls: number;
  readonly callers: number;
  /** How many processes write at the same time. Each has its own writer here; SQLite has one. */
  readonly replicas: number;
}

export interface SizeFigures extends SizePlan {
  readonly engine: Engine['name'];
  /** Bytes of the database that a call with its outcome adds, with all indexes. */
  readonly bytesPerCall: number;
  /** The tables that take the most of it. */
  readonly tables: Readonly<Record<string, number>>;
  /** Microseconds of this process for each call, in all of its threads. The server of the database is a process of its own. */
  readonly cpuPerCall: number;
  readonly perSecond: number;
  /** Milliseconds until a decision is durable. */
  readonly p50: number;
  readonly p99: number;
}

const USERS = 200;
const TARGETS = 20;
const TOOLS = 400;
const POLICIES = 300;
/** URIs that are read again and again. As many reads are of URIs that are read once. */
const URIS = 1_000;
/** The policies change ten times in a million calls, and each change makes a new revision. */
const CALLS_PER_REVISION = 100_000;
/** An outcome comes up to this many calls later than its decision. */
const LONGEST_CALL = 200;

/** One call: its decision, what it listed if it is a list, and its outcome. */
interface Call {
  readonly decision: DecisionRecord;
  readonly shown: ShownRecord | null;
  readonly outcome: OutcomeRecord;
}

/** Returns a function that makes one call after the other. Few users, tools and policies are in most of them. */
function createMix(): () => Call {
  const ids = (count: number): string[] => Array.from({ length: count }, () => uuidv7());
  const [users, targets, policies] = [ids(USERS), ids(TARGETS), ids(POLICIES)];
  const below = (count: number): number => Math.floor(Math.random() * count);
  const often = (count: number): number => Math.floor(Math.random() * Math.random() * count);
  let calls = 0;
  let dataHash = '';
  return () => {
    if (calls % CALLS_PER_REVISION === 0) dataHash = randomBytes(32).toString('hex');
    const revision = Math.floor(calls++ / CALLS_PER_REVISION) + 1;
    const [u, tool, kind] = [often(USERS), often(TOOLS), Math.random()];
    const t = tool % TARGETS;
    // The same user and tool always meet the same policy.
    const rule = (u * 7 + tool * 13) % POLICIES;
    const isDenied = rule % 33 === 0;
    const id = uuidv7();
    const uri = `file:///srv/projects/${Math.random() < 0.5 ? below(URIS) : `${calls}/${id}`}/README.md`;
    const [method, resource_type, resource_name] =
      kind < 0.9
        ? (['tools/call', 'tool', `tool_number_${tool}`] as const)
        : kind < 0.94
          ? (['tools/list', null, null] as const)
          : kind < 0.96
            ? (['initialize', null, null] as const)
            : kind < 0.99
              ? (['resources/read', 'resource', uri] as const)
              : (['prompts/get', 'prompt', `prompt_number_${tool % 50}`] as const);
    const decision: DecisionRecord = {
      id,
      created_at: Date.now(),
      issuer: 'https://gateway.example.com',
      user_id: users[u] ?? '',
      user_email: `user-${u}@example.com`,
      user_role: ['developer', 'analyst', 'support'][u % 3] ?? '',
      user_groups: ['engineering', `team-${u % 12}`],
      target_id: targets[t] ?? '',
      target_name: `target-${t}`,
      method,
      resource_type,
      resource_name,
      arguments: null,
      effect: isDenied ? 'deny' : 'allow',
      reason: 'matched',
      policy_id: policies[rule] ?? '',
      policy_name: `Team ${rule % 12} calls the tools of project ${rule}`,
      policy_priority: 100,
      revision,
      data_hash: dataHash,
      engine_hash: 'e'.repeat(64),
    };
    const names = Array.from({ length: TOOLS / TARGETS }, (_, i) => `tool_number_${t + i * TARGETS}`);
    return {
      decision,
      shown:
        method === 'tools/list' && !isDenied
          ? { decision_id: id, resource_type: 'tool', names: names.slice(u % 3), hidden: u % 3 }
          : null,
      outcome: { decision_id: id, outcome: isDenied ? 'denied' : 'ok', duration_ms: below(300) },
    };
  };
}

/** Returns the bytes of each table with its indexes, as the database keeps them on its disk. */
async function sizes({ kind, knex }: Database, url: string): Promise<ReadonlyMap<string, number>> {
  if (kind === 'sqlite') {
    await knex.raw('pragma wal_checkpoint(truncate)');
    return new Map([['all tables', statSync(new URL(url).pathname).size]]);
  }
  const [[{ version }]] = (await knex.raw('select version() as version')) as [[{ version: string }]];
  const spaces = /mariadb/i.test(version) ? 'innodb_sys_tablespaces' : 'innodb_tablespaces';
  const [rows] = (await knex.raw(
    `select name as name, file_size as bytes from information_schema.${spaces} where name like concat(database(), '/%')`,
  )) as [{ name: string; bytes: number }[]];
  return new Map(rows.map(({ name, bytes }) => [name.slice(name.indexOf('/') + 1), Number(bytes)]));
}

export async function measureSize(engine: Engine, plan: SizePlan): Promise<SizeFigures> {
  const at = await engine.create();
  const database = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, async () => undefined);
  const key = createChainKey(randomBytes(32));
  const log = { info: () => {}, warn: (record: object) => console.warn(record) };
  const writers = Array.from({ length: plan.replicas }, () => createAuditWriter({ database, key, host: {}, log, now: Date.now }));
  const call = createMix();
  const times: number[] = [];
  try {
    for (const writer of writers) await writer.start();
    const before = await sizes(database, at.url);
    let left = plan.calls;
    const [cpu, began] = [process.cpuUsage(), performance.now()];
    const work = writers.flatMap((writer) => {
      const running: OutcomeRecord[] = [];
      const caller = async (): Promise<void> => {
        while (left-- > 0) {
          const { decision, shown, outcome } = call();
          const asked = performance.now();
          await writer.decision(decision);
          times.push(performance.now() - asked);
          if (shown !== null) await writer.shown(shown);
          // The call that ends now is one of those that run.
          const place = Math.floor(Math.random() * LONGEST_CALL);
          const ended = running[place];
          running[place] = outcome;
          if (ended !== undefined) writer.outcome(ended);
        }
      };
      const callers = Array.from({ length: Math.ceil(plan.callers / plan.replicas) }, caller);
      return [Promise.all(callers).then(() => running.forEach((outcome) => void writer.outcome(outcome)))];
    });
    await Promise.all(work);
    for (const writer of writers) await writer.close();
    const [{ user, system }, seconds] = [process.cpuUsage(cpu), (performance.now() - began) / 1_000];
    const after = await sizes(database, at.url);
    const added = [...after].map(([table, bytes]) => [table, (bytes - (before.get(table) ?? 0)) / plan.calls] as const);
    const { p50, p99 } = figuresOf(times);
    return {
      ...plan,
      engine: engine.name,
      bytesPerCall: added.reduce((sum, [, bytes]) => sum + bytes, 0),
      tables: Object.fromEntries(added.filter(([, bytes]) => bytes >= 1).sort((a, b) => b[1] - a[1])),
      cpuPerCall: (user + system) / plan.calls,
      perSecond: plan.calls / seconds,
      p50,
      p99,
    };
  } finally {
    await database.close();
    await at.drop();
  }
}
