/**
 * `npm run bench:console`: what each page of the console costs with 10,000 policies, 5,000 users and a large audit log, on SQLite: processor
 * time of the markup and of the whole main thread, its longest slice, the whole time, and the size. It ends with an error if a page misses a
 * goal. `--rows=10000000` sets the size of the log. `--keep=FILE` keeps the database there, and uses it again. `--only=log` measures the pages
 * whose path contains this text. `--json` prints JSON. `--profiles=FOLDER` keeps the profile of each page there.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { gzipSync } from 'node:zlib';
import { COOKIE } from '../src/browser/sessions.ts';
import { browse, signIn } from '../test/browser/browser.ts';
import { createGuardian } from '../test/support/databases/guardian.ts';
import { machineOf } from './audit/filled-log.ts';
import { user } from './audit/log-rows.ts';
import type { Bar } from './bars.ts';
import { ENVIRONMENT, makeFilled } from './console/filled.ts';
import { installProfiler, markupMs } from './console/markup.ts';
import { apiAt, passwordOf, startProcess } from './gateway/own.ts';
import { guarded } from './guarded.ts';
import { median } from './measure.ts';
import { installInstrument } from './neighbours/instrument.ts';
import { columns, number, verdictLine } from './print.ts';

const { values: options } = parseArgs({
  options: {
    rows: { type: 'string', default: '1000000' },
    keep: { type: 'string' },
    only: { type: 'string', default: '' },
    json: { type: 'boolean', default: false },
    profiles: { type: 'string' },
  },
});
const ROWS = Number(options.rows);
const REPEATED = 5;
const GOALS = { markupMs: 50, sliceMs: 20, wholeMs: 300, kib: 60 };

interface Figures {
  readonly page: string;
  readonly status: number;
  /** The first time, and the median of the next times, in milliseconds. */
  readonly firstMs: number;
  readonly wholeMs: number;
  /** Processor time of the main thread: of the markup, of the services too, and its longest slice. */
  readonly markupMs: number;
  readonly cpuMs: number;
  readonly sliceMs: number;
  /** Compressed with gzip. */
  readonly kib: number;
}

/** Nanoseconds that the main thread of a process has run. */
const ranNs = (pid: number): number => Number(readFileSync(`/proc/${pid}/task/${pid}/schedstat`, 'utf8').split(' ')[0]);

const guardian = createGuardian();
const say = (line: string): void => (options.json ? console.error(line) : console.log(line));

await guarded(guardian, async () => {
  const machine = machineOf(say);
  const file = join(guardian.folder, 'console.db');
  const began = performance.now();
  await makeFilled(guardian, file, ROWS, options.keep ?? null);
  say(
    `10,000 policies, 5,000 users, ${ROWS.toLocaleString('en')} decisions, in ${((performance.now() - began) / 1_000).toFixed(0)} s`,
  );

  const instrument = installInstrument(guardian);
  const profiler = installProfiler(guardian);
  const { env } = instrument;
  const nodeOptions = [...instrument.nodeOptions, profiler.nodeOption];
  const { pid, origin } = await startProcess(guardian, `sqlite:${file}`, { nodeOptions, env: { ...env, ...ENVIRONMENT } });
  const email = 'admin@example.com';
  const api = apiAt(origin);
  const { token } = await api.call<{ token: string }>('POST', '/api/auth/login', undefined, {
    email,
    password: passwordOf(email),
  });
  const browser = browse({ url: origin });
  await signIn(browser, { email, password: passwordOf(email) });
  const one = async (path: string): Promise<string> =>
    (await api.call<{ id: string }[]>('GET', `/api/${path}`, token))[0]?.id ?? '';
  const [policy, target, decision] = [await one('policies?limit=1'), await one('targets?limit=1'), await one('logs?limit=1')];
  const pages = [
    ...['overview', 'overview?range=week', 'overview?range=month', 'findings', 'search?q=invoice', 'search?q=target-1'],
    ...['policies', 'policies?text=invoice', 'policies?effect=deny', `policies/${policy}`, `policies/${policy}/edit`],
    ...['policies/new', 'history', 'targets', `targets/${target}`, 'users', `users/${user(7)}`],
    ...['access?target=target-0', 'access?target=target-0&rows=users', 'access?who=user%3Auser-7%40example.com'],
    ...['log', 'log?effect=deny', 'log?method=completion%2Fcomplete', 'log?resource_name=delete_repository'],
    ...[`log/${decision}`, 'changes', 'replicas', 'rights', 'clients', 'mine', 'connect', 'tokens', 'denied'],
  ].filter((path) => path.includes(options.only));

  // Once for each revision, in a thread. Pages do not wait for it.
  const from = performance.now();
  await api.call('GET', '/api/policies/lint?kept=yes', token);
  say(`the analysis of all policies: ${((performance.now() - from) / 1_000).toFixed(1)} s`);
  const measured: Figures[] = [];
  for (const page of pages) {
    const get = async () => {
      const from = performance.now();
      const answer = await browser.get(`/console/${page}`, {
        cookie: `${COOKIE}=${browser.cookie()}; portcullis-zone=Europe/Berlin`,
      });
      return { ...answer, ms: performance.now() - from };
    };
    const first = await get();
    await instrument.slices(pid);
    const times: number[] = [];
    const before = ranNs(pid);
    for (let i = 0; i < REPEATED; i++) times.push((await get()).ms);
    const cpuMs = (ranNs(pid) - before) / 1e6 / Math.max(1, times.length);
    const { longest } = await instrument.slices(pid);
    // On its own, because sampling costs time.
    const profile = await profiler.during(pid, async () => {
      for (let i = 0; i < REPEATED; i++) await get();
    });
    if (options.profiles !== undefined)
      writeFileSync(join(options.profiles, `${page.replaceAll(/\W/g, '_')}.cpuprofile`), JSON.stringify(profile));
    const figures = {
      page: page.replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, '<id>'),
      ...{ status: first.status, firstMs: first.ms, wholeMs: median(times), cpuMs, markupMs: markupMs(profile) / REPEATED },
      ...{ sliceMs: longest[0]?.ms ?? 0, kib: gzipSync(first.text).length / 1_024 },
    };
    measured.push(figures);
    say(`${figures.page}: ${number(figures.wholeMs)} ms`);
  }
  say('');
  for (const line of columns([
    ['page', 'status', 'first ms', 'whole ms', 'markup ms', 'CPU ms', 'slice ms', 'KiB'],
    ...measured.map(({ page, status, firstMs, wholeMs, markupMs, cpuMs, sliceMs, kib }) => [
      page,
      String(status),
      ...[firstMs, wholeMs, markupMs, cpuMs, sliceMs, kib].map(number),
    ]),
  ]))
    say(line);
  say('');
  const bars = (Object.entries(GOALS) as [keyof typeof GOALS, number][]).map(([what, limit]): Bar => {
    const worst = measured.reduce((one, other) => (other[what] > one[what] ? other : one));
    return { what: `${what}, ${worst.page}`, bar: `at most ${limit}`, figure: worst[what], reached: worst[what] <= limit };
  });
  for (const bar of bars) say(verdictLine(bar));
  if (options.json) console.log(JSON.stringify({ machine, rows: ROWS, measured, bars }, null, 2));
  if (bars.some(({ reached }) => !reached)) process.exitCode = 1;
});
