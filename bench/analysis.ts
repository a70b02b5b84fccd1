/**
 * `npm run bench:analysis`: how long the analysis of a policy set takes, and a comparison with a set that differs in a few policies.
 * `--json` prints the figures as JSON, `--quick` leaves out sets of 10,000.
 */
import { cpus, loadavg } from 'node:os';
import { parseArgs } from 'node:util';
import { atOnce } from '../src/base/turns/slices.ts';
import type { Policy } from '../src/engine/compile/policy.ts';
import { analyseInSteps } from '../src/policies/analysis/analyse.ts';
import { compareInSteps } from '../src/policies/analysis/compare.ts';
import type { Bar } from './bars.ts';
import { columns, number, verdictLine } from './print.ts';
import { createWorkload, MIXES } from './workload.ts';

const { values: options } = parseArgs({
  options: { json: { type: 'boolean', default: false }, quick: { type: 'boolean', default: false } },
});

interface Row {
  readonly mix: keyof typeof MIXES;
  readonly policies: number;
  /** Milliseconds of processor time, so that other work on the machine does not count. */
  readonly analyseMs: number;
  /** The longest time for which the analysis let no other work run, by the clock. */
  readonly longestStepMs: number;
  readonly compareMs: number;
  readonly findings: Readonly<Record<string, number>>;
}

function processorMs(since?: NodeJS.CpuUsage): number {
  const { user, system } = process.cpuUsage(since);
  return (user + system) / 1_000;
}

function measure(mix: keyof typeof MIXES, count: number): Row {
  const { policies } = createWorkload(MIXES[mix], count);
  let longestStepMs = 0;
  const began = process.cpuUsage();
  const steps = analyseInSteps(policies);
  let step = steps.next();
  while (step.done !== true) {
    const before = performance.now();
    step = steps.next();
    longestStepMs = Math.max(longestStepMs, performance.now() - before);
  }
  const analyseMs = processorMs(began);
  const findings: Record<string, number> = {};
  for (const { code } of step.value.findings) findings[code] = (findings[code] ?? 0) + 1;

  const changed = policies.map((policy, i) => (i % Math.ceil(count / 10) === 0 ? flipped(policy) : policy));
  const before = process.cpuUsage();
  atOnce(compareInSteps(policies, changed));
  return { mix, policies: count, analyseMs, longestStepMs, compareMs: processorMs(before), findings };
}

const flipped = (policy: Policy): Policy => ({ ...policy, effect: policy.effect === 'allow' ? 'deny' : 'allow' });

const mixes = ['literal', 'mixed', 'half', 'regex'] as const;
const plan: [keyof typeof MIXES, number][] = [
  ...mixes.map((mix): [keyof typeof MIXES, number] => [mix, 1_000]),
  ['worst', 1_000],
  ['bare', 1_000],
  ...(options.quick ? [] : mixes.map((mix): [keyof typeof MIXES, number] => [mix, 10_000])),
];
const rows: Row[] = [];
for (const [mix, count] of plan) {
  rows.push(measure(mix, count));
  if (!options.json) console.log(JSON.stringify(rows.at(-1)));
}

const BARS = [
  { policies: 1_000, seconds: 10 },
  { policies: 10_000, seconds: 120 },
];
const bars: Bar[] = BARS.flatMap(({ policies, seconds }) => {
  const figures = rows.filter((row) => row.policies === policies).map((row) => row.analyseMs / 1_000);
  if (figures.length === 0) return [];
  const figure = Math.max(...figures);
  return [
    {
      what: `${policies} policies analysed, processor seconds, the slowest mix`,
      bar: `under ${seconds}`,
      figure,
      reached: figure < seconds,
    },
  ];
});

if (options.json) {
  const machine = { cpus: cpus().length, model: cpus()[0]?.model, node: process.version, load: loadavg() };
  console.log(JSON.stringify({ machine, rows, bars }, null, 2));
} else {
  const table = [
    ['mix', 'policies', 'analyse, CPU ms', 'longest step, ms', 'compare, CPU ms', 'findings'],
    ...rows.map(({ mix, policies, analyseMs, longestStepMs, compareMs, findings }) => [
      MIXES[mix].name,
      String(policies),
      number(analyseMs),
      number(longestStepMs),
      number(compareMs),
      String(Object.values(findings).reduce((sum, count) => sum + count, 0)),
    ]),
  ];
  for (const line of [...columns(table), ...bars.map(verdictLine)]) console.log(line);
}
