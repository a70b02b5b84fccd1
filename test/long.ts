/**
 * `npm run test:long`: what takes longer than `npm test` may. `--only=mutants,growth,differential,analysis,suggest,limits,servers,kills,upgrade,faults,frozen,new-enemy,accounts,sign-in,keycloak,galera,group-replication`
 * runs some of it; `--decisions=n` (10 million), `--requests=n` (2 million), `--sets=n` (20,000), `--suggestions=n` (10,000), `--changes=n` (10,000), `--kills=n` (200), `--rows=n` (a million rows of an older
 * version) and `--revocations=n` (1,000 of each kind; in the clusters a tenth) and `--calls=n` (10,000 with users' own
 * accounts) say how much. The exit code is 0 if all passed.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { parseArgs } from 'node:util';

const { values } = parseArgs({
  options: {
    only: { type: 'string' },
    decisions: { type: 'string', default: '10000000' },
    requests: { type: 'string', default: '2000000' },
    sets: { type: 'string', default: '20000' },
    suggestions: { type: 'string', default: '10000' },
    changes: { type: 'string', default: '10000' },
    kills: { type: 'string', default: '200' },
    rows: { type: 'string', default: '1000000' },
    revocations: { type: 'string', default: '1000' },
    calls: { type: 'string', default: '10000' },
  },
});
const root = join(import.meta.dirname, '..');
const typescript = ['--import', './scripts/loader/register.js'];
/** Requests to each policy set in `test/engine/differential.test.ts`. */
const PER_RUN = 20;

interface Step {
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

function cluster(kind: string): string[] {
  return [...typescript, 'test/cluster/run.ts', kind, `--rounds=${Math.ceil(Number(values.revocations) / 10)}`];
}

const STEPS: Readonly<Record<string, Step>> = {
  mutants: { args: [...typescript, 'test/mutants.ts', '--seeds=50'] },
  growth: { args: [...typescript, 'test/engine/growth.ts', `--decisions=${values.decisions}`] },
  differential: {
    args: ['node_modules/ava/entrypoints/cli.mjs', 'test/engine/differential.test.ts'],
    env: { DIFFERENTIAL_RUNS: String(Math.ceil(Number(values.requests) / PER_RUN)) },
  },
  analysis: {
    args: ['node_modules/ava/entrypoints/cli.mjs', 'test/policies/analysis/*.test.ts'],
    env: { ANALYSIS_RUNS: values.sets },
  },
  suggest: {
    args: ['node_modules/ava/entrypoints/cli.mjs', '--timeout=60m', 'test/policies/suggest/differential.test.ts'],
    env: { SUGGEST_RUNS: values.suggestions },
  },
  limits: {
    args: ['node_modules/ava/entrypoints/cli.mjs', 'test/policies/limits.test.ts'],
    env: { PORTCULLIS_TEST_LIMIT_CASES: values.changes },
  },
  // `npm test` runs most tests on one of the servers.
  servers: {
    args: [...typescript, 'test/run.ts'],
    env: { PORTCULLIS_TEST_DATABASES: 'mariadb,mysql', PORTCULLIS_TEST_ONE_SERVER: 'false' },
  },
  kills: { args: [...typescript, 'test/run.ts', 'test/gateway/kill.test.ts'], env: { PORTCULLIS_TEST_KILLS: values.kills } },
  upgrade: {
    args: [...typescript, 'test/run.ts', 'test/gateway/upgrade.test.ts'],
    env: { PORTCULLIS_TEST_OLD_ROWS: values.rows },
  },
  // Longer than anything waits for a database.
  faults: { args: [...typescript, 'test/run.ts', 'test/gateway/faults.test.ts'], env: { PORTCULLIS_TEST_FAULT_MS: '40000' } },
  frozen: {
    args: [...typescript, 'test/run.ts', 'test/gateway/round-robin.test.ts'],
    env: { PORTCULLIS_TEST_FROZEN: 'true' },
  },
  'new-enemy': {
    args: [...typescript, 'test/run.ts', 'test/gateway/new-enemy.test.ts'],
    env: { PORTCULLIS_TEST_REVOCATIONS: values.revocations, PORTCULLIS_TEST_REPLICAS: '2,4' },
  },
  accounts: {
    args: [...typescript, 'test/run.ts', 'test/connections/*.test.ts'],
    env: { PORTCULLIS_TEST_ACCOUNT_CALLS: values.calls },
  },
  // Python and npm install what they need into a temporary folder.
  'sign-in': {
    args: ['node_modules/ava/entrypoints/cli.mjs', 'test/sign-in/clients.test.ts'],
    env: { PORTCULLIS_TEST_REAL_CLIENTS: 'true' },
  },
  // Maven downloads it once, 160 MB.
  keycloak: {
    args: ['node_modules/ava/entrypoints/cli.mjs', 'test/sign-in/keycloak.test.ts'],
    env: { PORTCULLIS_TEST_KEYCLOAK: 'true' },
  },
  galera: { args: cluster('galera') },
  'group-replication': { args: cluster('group-replication') },
};

const wanted = values.only?.split(',') ?? Object.keys(STEPS);
const unknown = wanted.filter((name) => STEPS[name] === undefined);
if (unknown.length > 0) throw new Error(`There is no ${unknown.join(', ')}; there are ${Object.keys(STEPS).join(', ')}`);

const failed: string[] = [];
for (const name of wanted) {
  const { args = [], env = {} } = STEPS[name] ?? {};
  console.log(`--- ${name}`);
  const began = performance.now();
  const child = spawn(process.execPath, args, { cwd: root, env: { ...process.env, ...env }, stdio: 'inherit' });
  const [code] = await once(child, 'exit');
  if (code !== 0) failed.push(name);
  console.log(`--- ${name}: ${code === 0 ? 'passed' : 'failed'}, ${((performance.now() - began) / 1_000).toFixed(0)} s`);
}
if (failed.length > 0) console.log(`failed: ${failed.join(', ')}`);
process.exitCode = failed.length === 0 ? 0 : 1;
