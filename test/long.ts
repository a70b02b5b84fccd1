/**
 * `npm run test:long`: what takes longer than `npm test` may. `--only=mutants,growth,differential,kills` runs some of it;
 * `--decisions=n` (10 million), `--requests=n` (2 million) and `--kills=n` (200) say how much. The exit code is 0 if all passed.
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
    kills: { type: 'string', default: '200' },
  },
});
const root = join(import.meta.dirname, '..');
const typescript = ['--import', 'ts-blank-space/register'];
/** Requests to each policy set in `test/decision/differential.test.ts`. */
const PER_RUN = 20;

interface Step {
  readonly args: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
}

const STEPS: Readonly<Record<string, Step>> = {
  mutants: { args: [...typescript, 'test/mutants.ts', '--seeds=50'] },
  growth: { args: [...typescript, 'test/decision/growth.ts', `--decisions=${values.decisions}`] },
  differential: {
    args: ['node_modules/ava/entrypoints/cli.mjs', 'test/decision/differential.test.ts'],
    env: { DIFFERENTIAL_RUNS: String(Math.ceil(Number(values.requests) / PER_RUN)) },
  },
  kills: { args: [...typescript, 'test/run.ts', 'test/gateway/kill.test.ts'], env: { PORTCULLIS_TEST_KILLS: values.kills } },
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
