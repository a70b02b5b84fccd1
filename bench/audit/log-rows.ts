/**
 * An audit log of any size, made by the database itself: a year of decisions in which some principals, targets, tools and policies are
 * common, some are rare, and some are long gone. Not a chain that could be verified.
 */

import { firstIdOf, resourceKey } from '../../src/audit/chain/chain.ts';
import type { LogFilter } from '../../src/audit/filter.ts';
import type { Database } from '../../src/db/database.ts';

/** Runs a statement, however long it takes. */
export type Ask = (sql: string) => Promise<unknown>;

const BLOCK = 10_000;
const START = Date.UTC(2026, 0, 1);
const YEAR_MS = 365 * 24 * 3_600_000;
const TABLES = ['audit_decisions', 'audit_shown', 'audit_outcomes'] as const;

/** Of what is rare there is one row in so many. */
const RARE = 1_000_000;

const id12 = (n: number): string => n.toString(16).padStart(12, '0');
const USER = '0190163d-8694-739b-aea5-';
const TARGET = '0190163d-8694-7000-8000-';
const POLICY = '0190163d-8694-7111-8111-';
/** Beyond those that are numbered from 0. */
const RARE_ONE = 0xfffff;
const GONE_ONE = 0xffffe;

export const user = (n: number): string => USER + id12(n);
export const target = (n: number): string => TARGET + id12(n);
export const policy = (n: number): string => POLICY + id12(n);

const TOOLS = [
  ...['delete_repository', 'search_issues'],
  ...Array.from({ length: 9 }, (_, n) => `legacy_${n}`),
  ...Array.from({ length: 300 }, (_, n) => `tool_${n}`),
];

interface Dialect {
  cat(...texts: readonly string[]): string;
  hex(number: string, digits: number): string;
  div(a: string, b: number): string;
}

const SQLITE: Dialect = {
  cat: (...texts) => texts.map((text) => `(${text})`).join(' || '),
  hex: (number, digits) => `printf('%0${digits}x', ${number})`,
  div: (a, b) => `(${a} / ${b})`,
};
const SERVER: Dialect = {
  cat: (...texts) => `concat(${texts.join(', ')})`,
  hex: (number, digits) => `lower(lpad(hex(${number}), ${digits}, '0'))`,
  div: (a, b) => `(${a} div ${b})`,
};

/** Columns of a decision by the number `i` of its row. */
function decisionOf({ cat, hex, div }: Dialect, rows: number): Readonly<Record<string, string>> {
  const ms = `(${START} + i * ${Math.floor(YEAR_MS / rows)})`;
  /** Spread over 0 to 999,999. */
  const spread = (factor: number): string => `((i * i % 1000003 * ${factor} + i * 7919) % 1000033 % 1000000)`;
  const rare = (place: number): string => `i % ${RARE} = ${place}`;
  /** The first twentieth of the year. */
  const old = `i < ${Math.floor(rows / 20)}`;
  const [u, t, m, n] = [spread(611_953), spread(104_729), spread(350_377), spread(224_737)];
  const resource = `(${m} >= 950000)`;
  const named = `(${m} < 800000 or ${resource})`;
  const who = `case when ${rare(777)} then ${RARE_ONE} when ${u} < 300000 then 0 when ${u} < 600000 then 1 + i % 20 else 21 + i % 2000 end`;
  const where = `case when ${rare(1_777)} then ${RARE_ONE} when ${t} < 600000 then 0 else 1 + i % 48 end`;
  // The busiest user is hardly ever denied anything.
  const denied = `((${u} >= 300000 and ${n} % 100 < 6) or ${rare(2_777)} or ${rare(3_777)})`;
  const tool =
    `case when ${rare(4_777)} then 'delete_repository' when ${old} and i % 5 = 0 then ${cat("'legacy_'", 'i % 9')}` +
    ` when ${n} < 250000 then 'search_issues' else ${cat("'tool_'", 'i % 300')} end`;
  const uri = cat("'file:///srv/projects/'", 'i % 997', "'/src/module-'", `i % 30011`, "'.ts'");
  const method =
    `case when ${rare(5_777)} then 'completion/complete' when i % 100000 = 5 then 'prompts/get' when ${m} < 800000 then 'tools/call'` +
    ` when ${m} < 920000 then 'tools/list' when ${m} < 950000 then 'initialize' else 'resources/read' end`;
  const rule = `case when ${rare(6_777)} then ${RARE_ONE} when ${old} and i % 10 = 0 then ${GONE_ONE} when ${u} < 700000 then 0 else 1 + i % 40 end`;
  const byRule = `(not ${denied} or i % 10 = 0)`;
  const name = `case when ${resource} then ${uri} when ${named} then ${tool} end`;
  return {
    id: cat(hex(div(ms, 65_536), 8), "'-'", hex(`${ms} % 65536`, 4), "'-7000-8000-'", hex('i', 12)),
    created_at: ms,
    issuer: "'https://gateway.example.com'",
    user_id: cat(`'${USER}'`, hex(who, 12)),
    user_email: cat("'user-'", who, "'@example.com'"),
    user_role: "'developer'",
    user_groups: `'["engineering","on-call"]'`,
    target_id: cat(`'${TARGET}'`, hex(where, 12)),
    target_name: cat("'target-'", where),
    method,
    resource_type: `case when i % 100000 = 5 then 'prompt' when ${resource} then 'resource' when ${named} then 'tool' end`,
    resource_name: name,
    // Of what is in no list of names the key is made up.
    resource_key: `case when ${resource} then ${cat("'u'", hex(spread(746_773), 8), hex('i', 13))} else (select resource_key from bench_names where name = ${name}) end`,
    effect: `case when ${denied} then 'deny' else 'allow' end`,
    reason: `case when ${rare(3_777)} then 'error' when ${byRule} then 'matched' else 'default' end`,
    policy_id: `case when ${byRule} then ${cat(`'${POLICY}'`, hex(rule, 12))} end`,
    policy_name: `case when ${byRule} then 'Developers call harmless tools' end`,
    policy_priority: `case when ${byRule} then 100 end`,
    revision: div('i', 100_000),
    data_hash: `'${'d'.repeat(64)}'`,
    engine_hash: `'${'e'.repeat(64)}'`,
    chain_id: `'0190163d-8694-7222-8222-000000000000'`,
    chain_seq: 'i + 1',
    mac: `'${'m'.repeat(43)}'`,
    salt: `'${'s'.repeat(22)}'`,
    person_hash: `'${'p'.repeat(43)}'`,
  };
}

const SHOWN = `insert into audit_shown (decision_id, resource_type, shown, hidden, set_hash, chain_id, chain_seq, mac)
  select id, 'tool', 1, 3, '${'a'.repeat(64)}', chain_id, chain_seq, mac from audit_decisions where method = 'tools/list' and `;
const OUTCOMES = `insert into audit_outcomes (decision_id, outcome, duration_ms, created_at, chain_id, chain_seq, mac)
  select id, 'ok', 17, created_at, chain_id, chain_seq, mac from audit_decisions where `;

interface Index {
  readonly drop: string;
  readonly make: string;
}

/** Indexes are made faster of a whole table than row by row. */
async function indexesOf({ kind, knex }: Pick<Database, 'kind' | 'knex'>): Promise<Index[]> {
  if (kind === 'sqlite') {
    const made: { name: string; sql: string }[] = await knex('sqlite_master')
      .where('type', 'index')
      .whereIn('tbl_name', TABLES)
      .whereNotNull('sql')
      .select('name', 'sql');
    return made.map(({ name, sql }) => ({ drop: `drop index ${name}`, make: sql }));
  }
  return Promise.all(
    TABLES.map(async (table) => {
      const [[row]] = await knex.raw(`show create table ${table}`);
      const keys = [...String(row['Create Table']).matchAll(/^ *(KEY `(\w+)` .*?),?$/gm)];
      return {
        drop: `alter table ${table} ${keys.map(([, , name]) => `drop index ${name}`).join()}`,
        make: `alter table ${table} ${keys.map(([, key]) => `add ${key}`).join()}`,
      };
    }),
  );
}

/** `database` has the tables, and nothing in them. */
export async function fillLog(database: Pick<Database, 'kind' | 'knex'>, ask: Ask, rows: number): Promise<void> {
  const indexes = await indexesOf(database);
  for (const { drop } of indexes) await ask(drop);
  await ask('create table bench_numbers (n int primary key)');
  const numbers = Array.from({ length: BLOCK }, (_, n) => `(${n})`);
  await ask(`insert into bench_numbers values ${numbers.join()}`);
  await ask('create table bench_names (name varchar(63) primary key, resource_key varchar(22))');
  await ask(`insert into bench_names values ${TOOLS.map((name) => `('${name}', '${resourceKey(name)}')`).join()}`);
  await ask(`insert into audit_sets (hash, names) values ('${'a'.repeat(64)}', '["search_issues"]')`);
  const columns = decisionOf(database.kind === 'sqlite' ? SQLITE : SERVER, rows);
  const idOf = (i: number): string => firstIdOf(START + i * Math.floor(YEAR_MS / rows));
  for (let first = 0; first < rows; first += BLOCK) {
    const numbered = `(select n + ${first} as i from bench_numbers) as numbered`;
    await ask(
      `insert into audit_decisions (${Object.keys(columns).join()}) select ${Object.values(columns).join()} from ${numbered}`,
    );
    const these = `id >= '${idOf(first)}' and id < '${idOf(first + BLOCK)}'`;
    await ask(SHOWN + these);
    await ask(OUTCOMES + these);
  }
  for (const { make } of indexes) await ask(make);
}

const rare = RARE_ONE;
const gone = GONE_ONE;

/** Every filter, and those pairs in which what is common leads to what is rare. `rows` as in `fillLog`. */
export function logFilters(rows: number): readonly (readonly [what: string, filter: LogFilter])[] {
  const at = (share: number): string => firstIdOf(START + Math.floor(rows * share) * Math.floor(YEAR_MS / rows));
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
export const nearTheEnd = (rows: number): string => firstIdOf(START + Math.floor(rows / 200) * Math.floor(YEAR_MS / rows));
