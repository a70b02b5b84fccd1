/**
 * `npm run bench:decision`: the decision engine beside what a user could pick instead, in one run, every answer checked.
 * `--json` prints every figure and ratio as JSON, `--quick` asks less (under a minute), `--only=<text>` leaves out peers whose
 * name does not contain the text, and `--estimates` only compares the estimates of decisions with their times.
 */
import { cpus, loadavg } from 'node:os';
import { setTimeout } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { loadPolicyModule, type PolicyModule } from '../src/engine/engine.ts';
import { type Bar, bars, type Row } from './bars.ts';
import { type EstimateFigures, estimates } from './estimates.ts';
import { measure } from './measure.ts';
import { loop, naive, portcullis } from './peers/embedded.ts';
import { casbin, cedar } from './peers/libraries.ts';
import type { Peer } from './peers/peer.ts';
import { cerbos, opaBench, opaServers } from './peers/servers.ts';
import { columns, number } from './print.ts';
import { oracle, readingOrder } from './questions.ts';
import { cached, lists, rebuild } from './scenarios.ts';
import { createWorkload, MIXES, type Mix } from './workload.ts';

const { values: options } = parseArgs({
  options: {
    json: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    only: { type: 'string' },
    estimates: { type: 'boolean', default: false },
  },
});
const { quick } = options;
const say = (line: string): void => {
  if (!options.json) console.log(line);
};

/** What an engine is asked: new questions each, as many as there is time for. */
function sizeOf(policies: number): { warmUp: number; asked: number; budgetMs: number } {
  if (quick) return { warmUp: 4_000, asked: policies > 10_000 ? 150 : 1_000, budgetMs: 500 };
  return { warmUp: 20_000, asked: policies > 10_000 ? 600 : 5_000, budgetMs: 8_000 };
}

/** Bytes that this process holds: JavaScript's and those of WASM memories. */
async function held(): Promise<number> {
  const { gc } = globalThis as { gc?: () => void };
  for (let i = 0; i < 3; i++) {
    gc?.();
    await setTimeout(20);
  }
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
}

async function compare(peers: readonly Peer[], key: keyof typeof MIXES, count: number): Promise<Row[]> {
  const mix: Mix = MIXES[key];
  const workload = createWorkload(mix, count);
  const ordered = readingOrder(workload.policies);
  const { warmUp, asked, budgetMs } = sizeOf(count);
  const first = workload.questions(warmUp);
  const questions = workload.questions(asked);
  const answers = oracle(ordered)(questions);
  const expected = questions.map((question, i) => ({ question, answer: answers[i] ?? { effect: 'deny' } }));
  const decided = answers.filter(({ policyId }) => policyId !== null).length;
  say(`\n${count} policies, ${mix.name}: ${asked} questions, ${Math.round((100 * decided) / asked)}% decided by a policy`);

  const rows: Row[] = [];
  for (const peer of peers) {
    const head = { mix: key, policies: count, peer: peer.name, kind: peer.kind };
    const missing = peer.missing();
    if (missing !== null) rows.push({ ...head, leftOut: `not installed: ${missing}` });
    else if (count > peer.upTo) rows.push({ ...head, leftOut: 'too many policies' });
    else if (peer.expresses?.(workload.policies) === false) rows.push({ ...head, leftOut: 'cannot say what these policies say' });
    else {
      const base = await held();
      const before = performance.now();
      const running = await peer.start(ordered);
      const build = performance.now() - before;
      try {
        const figures = await measure(peer.name, running, first, expected, budgetMs);
        const memory = (running.memory?.() ?? (await held()) - base) / 2 ** 20;
        rows.push({ ...head, ...figures, build, memory });
      } finally {
        await running.close?.();
      }
    }
    const row = rows.at(-1);
    if (row !== undefined) say(show(row));
  }
  const p50 = (name: string): number | undefined => rows.find(({ peer }) => peer === name)?.p50;
  const [ofLoop, ours] = [p50(loop.name), p50('Portcullis')];
  return rows.map((row) =>
    row.p50 === undefined || ofLoop === undefined || ours === undefined
      ? row
      : { ...row, toLoop: row.p50 / ofLoop, toOurs: row.p50 / ours },
  );
}

function show({ peer, p50, p99, asked, byKind, build, memory, leftOut }: Row): string {
  if (p50 === undefined) return `  ${peer.padEnd(24)} left out: ${leftOut}`;
  const figures = [
    `p50 ${number(p50).padStart(7)} us`,
    `p99 ${number(p99 ?? 0).padStart(7)} us`,
    `hit/miss/default ${number(byKind?.hit ?? 0)}/${number(byKind?.miss ?? 0)}/${number(byKind?.default ?? 0)}`,
    `build ${number(build ?? 0)} ms`,
    `memory ${number(memory ?? 0)} MiB`,
    `${asked} asked`,
  ];
  return `  ${peer.padEnd(24)} ${figures.join('  ')}`;
}

function sayEstimates(figures: readonly EstimateFigures[]): void {
  say(
    '\nEstimate and processor time of a decision on a name of 2 KiB, with the largest set that the limits allow. A ratio above 1 is unsound.',
  );
  const rows = figures.map(({ family, policies, first, next, estimate, ratio }) => [
    ...[family, `${policies}`, ...[first, next, estimate, ratio].map(number)],
    ratio > 1 ? 'UNSOUND' : '',
  ]);
  for (const line of columns([['family', 'policies', 'first, ms', 'next, ms', 'estimate, ms', 'next/estimate', ''], ...rows]))
    say(`  ${line}`);
}

async function run(module: PolicyModule): Promise<void> {
  const ours = portcullis(module);
  const rule = naive(module);
  const rivals = [rule, casbin, cedar, cerbos, ...opaServers(module)];
  const among = (peers: readonly Peer[]): Peer[] =>
    peers.filter(({ name }) => options.only === undefined || name.toLowerCase().includes(options.only.toLowerCase()));
  const all = [loop, ours, ...among(rivals)];
  say(`${cpus().length} cores (${cpus()[0]?.model}), node ${process.version}, load ${loadavg()[0]?.toFixed(2)}`);
  say(
    'Microseconds; new questions throughout, no cache; warm-up outside the timing. Memory is what stays in this process, or the size of the server.',
  );

  const estimated = await estimates(module, quick ? 1 : 3);
  sayEstimates(estimated);
  if (options.estimates) {
    if (options.json) console.log(JSON.stringify({ estimates: estimated }, null, 2));
    return;
  }

  const rows: Row[] = [];
  const plan: [keyof typeof MIXES, number, readonly Peer[]][] = [
    ['mixed', 10, all],
    ['mixed', 100, all],
    ['mixed', 1_000, all],
    ['mixed', 10_000, quick ? [loop, ours] : all],
    ['mixed', 100_000, [loop, ours]],
    ['literal', 1_000, quick ? [loop, ours, ...among([cedar])] : all],
    ['half', 1_000, [loop, ours, ...among([rule])]],
    ['regex', 1_000, [loop, ours, ...among([rule])]],
    ['worst', 1_000, [loop, ours, ...among([rule])]],
    ['bare', 1_000, [loop, ours, ...among([rule])]],
  ];
  if (!quick)
    plan.push(['literal', 100, all], ['literal', 10_000, [loop, ours, ...among([cedar])]], ['regex', 10_000, [loop, ours]]);
  for (const [mix, count, peers] of plan) rows.push(...(await compare(peers, mix, count)));

  const list = await lists(module, oracle, 1_000, 1_000, quick ? 10 : 40);
  const remembered = await cached(module, oracle, 1_000, quick ? 20 : 200);
  const rebuilt = await rebuild(module, oracle, 10_000, quick ? 1 : 5);
  const workload = createWorkload(MIXES.mixed, 1_000);
  const bench = quick ? null : opaBench(module, workload.policies, workload.questions(3));

  const verdicts: Bar[] = bars(rows, list, remembered, rebuilt, estimated);
  if (options.json) {
    const machine = { cpus: cpus().length, model: cpus()[0]?.model, node: process.version, load: loadavg() };
    console.log(
      JSON.stringify(
        {
          machine,
          quick,
          rows,
          list,
          cached: remembered,
          rebuild: rebuilt,
          estimates: estimated,
          opaBench: bench,
          bars: verdicts,
        },
        null,
        2,
      ),
    );
    return;
  }
  say(
    `\nA list of 1,000 tools at 1,000 policies: p50 ${number(list.list.p50)} us; one by one ${number(list.oneByOne.p50)}; plain loop ${number(list.loop.p50)}`,
  );
  say(`Cached: p50 ${number(remembered.p50)} us, p99 ${number(remembered.p99)} us`);
  const { alone, afterChange, underLoad, longestGap, decisionsMeanwhile, decision } = rebuilt;
  say(
    `Rebuild at 10,000 policies: ${number(alone)} ms, ${number(afterChange)} ms after a change of one, ${number(underLoad)} ms beside decisions; event loop blocked for at most ${number(longestGap)} ms; ${decisionsMeanwhile} decisions meanwhile, p50 ${number(decision.p50)} us`,
  );
  if (bench !== null) say(`opa bench, naive rule, 1,000 policies: ${number(bench)} us an evaluation, without HTTP`);
  say('');
  for (const { what, bar, figure, reached } of verdicts) say(`${reached ? '✔' : '✘'} ${what}: ${number(figure)} (${bar})`);
}

// Servers that were started end with this process.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.once(signal, () => process.exit(1));
await run(await loadPolicyModule());
