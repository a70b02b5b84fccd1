/**
 * An audit log of any size: a year of decisions in which some principals, targets, tools and policies are common, some are rare, and some
 * are long gone. The audit writer of the gateway writes it, under a clock that runs fast, so it is a log like any other.
 */
import { createChainKey, firstIdOf } from '../../src/audit/chain/chain.ts';
import type { DecisionRecord } from '../../src/audit/records/records.ts';
import type { LogFilter } from '../../src/audit/search/filter.ts';
import { SPAN_MS } from '../../src/audit/segments.ts';
import { createAuditWriter } from '../../src/audit/writer.ts';
import type { Database } from '../../src/db/database.ts';

/** The key of the chain, so that the log can be verified. */
export const KEY = createChainKey(Buffer.alloc(32, 9));

const START = Date.UTC(2026, 0, 1);
const YEAR_MS = 365 * 24 * 3_600_000;
/** The largest number of decisions in one commit. */
const BLOCK = 1_000;

/** Of what is rare there is one row in so many. */
const RARE = 1_000_000;

const hex = (n: number, digits: number): string => n.toString(16).padStart(digits, '0');
/** Beyond those that are numbered from 0. */
const RARE_ONE = 0xfffff;
const GONE_ONE = 0xffffe;

export const user = (n: number): string => `0190163d-8694-739b-aea5-${hex(n, 12)}`;
export const target = (n: number): string => `0190163d-8694-7000-8000-${hex(n, 12)}`;
export const policy = (n: number): string => `0190163d-8694-7111-8111-${hex(n, 12)}`;

const stepOf = (rows: number): number => Math.floor(YEAR_MS / rows);
const timeOf = (rows: number, i: number): number => START + i * stepOf(rows);
const idOf = (rows: number, i: number): string => firstIdOf(timeOf(rows, i));

/** Decision `i` of `rows`. */
function decisionOf(rows: number, i: number): DecisionRecord {
  /** Spread over 0 to 999,999. */
  const spread = (factor: number): number => ((((i * i) % 1_000_003) * factor + i * 7_919) % 1_000_033) % 1_000_000;
  const rare = (place: number): boolean => i % RARE === place;
  const isOld = i < Math.floor(rows / 20);
  const [u, t, m, n] = [spread(611_953), spread(104_729), spread(350_377), spread(224_737)];
  const who = rare(777) ? RARE_ONE : u < 300_000 ? 0 : u < 600_000 ? 1 + (i % 20) : 21 + (i % 2_000);
  const where = rare(1_777) ? RARE_ONE : t < 600_000 ? 0 : 1 + (i % 48);
  // The busiest user is hardly ever denied anything.
  const isDenied = (u >= 300_000 && n % 100 < 6) || rare(2_777) || rare(3_777);
  const isByRule = !isDenied || i % 10 === 0;
  const rule = rare(6_777) ? RARE_ONE : isOld && i % 10 === 0 ? GONE_ONE : u < 700_000 ? 0 : 1 + (i % 40);
  const tool = rare(4_777)
    ? 'delete_repository'
    : isOld && i % 5 === 0
      ? `legacy_${i % 9}`
      : n < 250_000
        ? 'search_issues'
        : `tool_${i % 300}`;
  const method = rare(5_777)
    ? 'completion/complete'
    : i % 100_000 === 5
      ? 'prompts/get'
      : m < 800_000
        ? 'tools/call'
        : m < 920_000
          ? 'tools/list'
          : m < 950_000
            ? 'initialize'
            : 'resources/read';
  const isResource = m >= 950_000;
  const isNamed = m < 800_000 || isResource;
  const created_at = timeOf(rows, i);
  return {
    id: `${firstIdOf(created_at).slice(0, 14)}7000-8000-${hex(i, 12)}`,
    created_at,
    issuer: 'https://gateway.example.com',
    user_id: user(who),
    user_email: `user-${who}@example.com`,
    user_role: 'developer',
    user_groups: ['engineering', 'on-call'],
    target_id: target(where),
    target_name: `target-${where}`,
    method,
    resource_type: i % 100_000 === 5 ? 'prompt' : isResource ? 'resource' : isNamed ? 'tool' : null,
    resource_name: isResource ? `file:///srv/projects/${i % 997}/src/module-${i % 30_011}.ts` : isNamed ? tool : null,
    arguments: null,
    effect: isDenied ? 'deny' : 'allow',
    reason: rare(3_777) ? 'error' : isByRule ? 'matched' : 'default',
    policy_id: isByRule ? policy(rule) : null,
    policy_name: isByRule ? 'Developers call harmless tools' : null,
    policy_priority: isByRule ? 100 : null,
    revision: Math.floor(i / 100_000),
    data_hash: 'd'.repeat(64),
    engine_hash: 'e'.repeat(64),
  };
}

/** What a benchmark makes of decision `i`. */
export type Adapt = (record: DecisionRecord, i: number) => DecisionRecord;

/** `database` has the tables, and nothing in them. */
export async function fillLog(database: Database, rows: number, adapt: Adapt = (record) => record): Promise<void> {
  let now = START;
  const warn = (record: object): void => console.warn(record);
  const log = { info: () => {}, warn };
  const writer = createAuditWriter({ database, key: KEY, host: {}, log, now: () => now, timeoutMs: 600_000 });
  // Decisions of one commit share a segment of the index, as they do where calls are made one by one.
  const block = Math.max(1, Math.min(BLOCK, Math.floor(SPAN_MS / stepOf(rows) / 4)));
  for (let first = 0; first < rows; first += block) {
    const records = Array.from({ length: Math.min(block, rows - first) }, (_, n) =>
      adapt(decisionOf(rows, first + n), first + n),
    );
    now = records.at(-1)?.created_at ?? now;
    await Promise.all(records.map((record) => writer.decision(record)));
    const lists = records.filter(({ method }) => method === 'tools/list');
    const shown = { resource_type: 'tool', names: ['search_issues'], hidden: 3 } as const;
    const listed = lists.map(({ id }) => writer.shown({ ...shown, decision_id: id }));
    for (const { id } of records) writer.outcome({ decision_id: id, outcome: 'ok', duration_ms: 17 });
    await Promise.all(listed);
    // Otherwise more outcomes would wait than a writer keeps.
    if (Math.floor(first / 10_000) !== Math.floor((first + block) / 10_000)) await writer.flush();
  }
  await writer.close();
}

const rare = RARE_ONE;
const gone = GONE_ONE;

/** Every filter, and those pairs in which what is common leads to what is rare. `rows` as in `fillLog`. */
export function logFilters(rows: number): readonly (readonly [what: string, filter: LogFilter])[] {
  const at = (share: number): string => idOf(rows, Math.floor(rows * share));
  return [
    ['none', {}],
    ['time: a day, last spring', { since: at(0.3), before: at(0.303) }],
    ['user, of 30 in 100', { user_id: user(0) }],
    ['user, of 2 in 10,000', { user_id: user(1_500) }],
    ['user, rare', { user_id: user(rare) }],
    ['target name, of 6 in 10', { target_name: 'target-0' }],
    ['target name, rare', { target_name: `target-${rare}` }],
    ['target id, of 6 in 10', { target_id: target(0) }],
    ['target id, of 8 in 1,000', { target_id: target(7) }],
    ['target id, rare', { target_id: target(rare) }],
    ['target id, of none', { target_id: target(rare + 1) }],
    ['method, of 8 in 10', { method: 'tools/call' }],
    ['method, of 1 in 100,000', { method: 'prompts/get' }],
    ['method, rare', { method: 'completion/complete' }],
    ['type, of 8 in 10', { resource_type: 'tool' }],
    ['type, of 1 in 100,000', { resource_type: 'prompt' }],
    ['name, of 2 in 10', { resource_name: 'search_issues' }],
    ['name, rare', { resource_name: 'delete_repository' }],
    ['name, long gone', { resource_name: 'legacy_5' }],
    ['prefix, of 6 in 10', { resource_name_prefix: 'tool_' }],
    ['prefix, of 5 in 100', { resource_name_prefix: 'file:///srv/' }],
    ['prefix, of 5 in 100,000', { resource_name_prefix: 'file:///srv/projects/17/' }],
    ['prefix, rare', { resource_name_prefix: 'delete_' }],
    ['prefix, long gone', { resource_name_prefix: 'legacy_' }],
    ['prefix, of none', { resource_name_prefix: 'drop_' }],
    ['effect allow', { effect: 'allow' }],
    ['effect deny', { effect: 'deny' }],
    ['reason matched', { reason: 'matched' }],
    ['reason, rare', { reason: 'error' }],
    ['reason, of none', { reason: 'no_target' }],
    ['policy, of 6 in 10', { policy_id: policy(0) }],
    ['policy, rare', { policy_id: policy(rare) }],
    ['policy, long gone', { policy_id: policy(gone) }],
    ['user of 30 in 100, long ago', { user_id: user(0), since: at(0.01), before: at(0.011) }],
    ['user of 30 in 100, method rare', { user_id: user(0), method: 'completion/complete' }],
    ['user of 30 in 100, target id rare', { user_id: user(0), target_id: target(rare) }],
    ['user of 30 in 100, prefix rare', { user_id: user(0), resource_name_prefix: 'delete_' }],
    ['user of 30 in 100, policy long gone', { user_id: user(0), policy_id: policy(gone) }],
    ['policy of 6 in 10, reason rare', { policy_id: policy(0), reason: 'error' }],
    ['target of 6 in 10, type of 1 in 100,000', { target_name: 'target-0', resource_type: 'prompt' }],
    ['deny, prefix of 5 in 100,000', { effect: 'deny', resource_name_prefix: 'file:///srv/projects/17/' }],
    ['deny, name of 2 in 10, long ago', { effect: 'deny', resource_name: 'search_issues', before: at(0.02) }],
    ['user of 30 in 100, deny: 1 in 1,000,000 both', { user_id: user(0), effect: 'deny' }],
    ['user of 30 in 100, prefix long gone', { user_id: user(0), resource_name_prefix: 'legacy_' }],
    ['method of 8 in 10, type resource: none both', { method: 'tools/call', resource_type: 'resource' }],
  ];
}

/** A cursor with 1 in 200 rows before it. */
export const nearTheEnd = (rows: number): string => idOf(rows, Math.floor(rows / 200));
