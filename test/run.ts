/**
 * `npm test` starts the available databases, and then ava on everything in `test/`. Arguments go to ava:
 * `npm test -- test/auth/*.test.ts`. `PORTCULLIS_TEST_DATABASES=sqlite,mariadb` leaves databases out; without `sqlite`, also the files that
 * use nothing else. With `CI=true` at least one of MariaDB and MySQL is mandatory. The report ends with the tests that were left out, those that failed, and `N passed, N failed`.
 */
import { once } from 'node:events';
import { readFileSync, statfsSync } from 'node:fs';
import { freemem } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { createGuardian, type Guardian, killGroup } from './support/databases/guardian.ts';
import { ONE_SERVER, SPARE_DATABASES, startDatabases, wantedDatabases } from './support/databases/start.ts';
import { findOpa, OPA_HINT } from './support/opa.ts';
import { createProgress, testFilesIn } from './support/progress.ts';
import { testsWithMore } from './support/selection.ts';
import { createTally, type Tally } from './support/tally.ts';

const INTERRUPT_GRACE_MS = 10_000;
/** Far more than a run of all tests has at once. */
const LEAST_ROOM = 8 * 1024 ** 3;
const ava = join(import.meta.dirname, '../node_modules/ava/entrypoints/cli.mjs');
const named = process.argv.slice(2);
const inCi = process.env.CI === 'true';
const NOT_RUN = 'not run: ';
const notRun: string[] = [];
/** Prints a line. Lines about tests that do not run are repeated at the end, where thousands of results do not hide them. */
const say = (line: string) => {
  if (line.startsWith(NOT_RUN)) notRun.push(line.slice(NOT_RUN.length));
  console.log(line);
};
let avaRuns = false;

async function runAva(guardian: Guardian, urls: Readonly<Record<string, string>>, interrupted: AbortSignal): Promise<Tally> {
  const tally = createTally();
  const isWhole = named.length === 0;
  const selections = isWhole && !wantedDatabases().has('sqlite') ? testsWithMore(import.meta.dirname) : [];
  const files = selections.length > 0 ? selections.flatMap((one) => one.files) : testFilesIn(import.meta.dirname);
  const progress = createProgress(isWhole ? files : []);
  const colours = process.stdout.isTTY && !process.env.NO_COLOR ? { FORCE_COLOR: '1' } : {};
  const isOwn = Object.keys(urls).every((name) => process.env[name] === undefined);
  const spare = isOwn ? { [SPARE_DATABASES]: join(guardian.folder, 'spare') } : {};
  const oneServer = process.env[ONE_SERVER] ?? String(isWhole);
  if (oneServer === 'true' && Object.keys(urls).length > 1)
    say(`${NOT_RUN}most tests on the other server: each title chooses one. To have it: npm run test:long -- --only=servers`);
  const env = {
    ...{ ...process.env, ...colours, ...urls, ...spare },
    // What tests leave behind is removed with this folder.
    ...{ TMPDIR: guardian.folder, [ONE_SERVER]: oneServer, PORTCULLIS_TEST_BUILT: 'true' },
  };

  async function run(args: readonly string[]): Promise<void> {
    const child = guardian.start(process.execPath, [ava, ...args], { env });
    const { pid, stdout } = child;
    if (pid === undefined || stdout === null) throw new Error('ava did not start');
    avaRuns = true;
    const interrupt = () => {
      // ava names the tests that were running. After a while, processes that it has not ended are killed.
      killGroup(pid, 'SIGINT');
      setTimeout(() => killGroup(pid, 'SIGKILL'), INTERRUPT_GRACE_MS).unref();
    };
    interrupted.addEventListener('abort', interrupt);
    child.stderr?.pipe(process.stderr);
    const lines = createInterface({ input: stdout });
    lines.on('line', (line) => {
      tally.read(line);
      const reached = progress.read(line);
      if (reached !== null) console.log(reached);
      console.log(line);
    });
    const [[code, signal]] = await Promise.all([once(child, 'exit'), once(lines, 'close')]);
    interrupted.removeEventListener('abort', interrupt);
    tally.end(code ?? signal);
  }

  if (selections.length === 0) await run(named);
  for (const one of selections) {
    if (interrupted.aborted) break;
    await run([...one.titles.map((title) => `--match=${title}`), ...one.files.map((file) => join('test', file))]);
  }
  return tally;
}

/** Builds the gateway, so that tests start the same files as users. */
const build = (guardian: Guardian): Promise<string> => guardian.run('npm', ['run', '--silent', 'build'], { timeoutMs: 300_000 });

function leftOut(skipped: readonly string[]): string[] {
  if (notRun.length + skipped.length === 0) return [];
  return ['', 'Left out:', ...notRun.map((what) => `  - ${what}`), ...skipped.map((title) => `  - ${title}`)];
}

async function main(guardian: Guardian, interrupted: AbortSignal): Promise<boolean> {
  const opa = findOpa();
  if ('missing' in opa) say(`${NOT_RUN}what compares with stock OPA (${opa.missing}). To have it: ${OPA_HINT}`);
  const wanted = wantedDatabases();
  if (!wanted.has('sqlite'))
    say(
      `${NOT_RUN}on SQLite what runs on each database and the files that use nothing else (left out by PORTCULLIS_TEST_DATABASES)`,
    );
  const [databases] = await Promise.all([startDatabases(guardian, wanted, say), build(guardian)]);
  try {
    const servers = Object.keys(databases.urls).length;
    if (servers === 0) say('ATTENTION: no MySQL and no MariaDB here. This run is on SQLite alone.');
    const tally = await runAva(guardian, databases.urls, interrupted);
    if (servers === 0 && inCi) tally.fail('CI needs MySQL or MariaDB, and neither could be started');
    if (interrupted.aborted) tally.fail('interrupted');
    for (const line of [...leftOut(tally.skipped), ...tally.summary()]) console.log(line);
    return tally.failed === 0;
  } finally {
    await databases.stop();
  }
}

/**
 * A folder in memory. At each commit, databases wait for the disk, which this saves. Null: there is none, it has little room, or no
 * program may be started from it, as in most containers.
 */
function folderInMemory(): string | null {
  if (process.platform !== 'linux') return null;
  const [, options] = /^\S+ \/dev\/shm tmpfs (\S+)/m.exec(readFileSync('/proc/mounts', 'utf8')) ?? [];
  if (options === undefined || options.split(',').includes('noexec')) return null;
  const { bavail, bsize } = statfsSync('/dev/shm');
  return Math.min(bavail * bsize, freemem()) >= LEAST_ROOM ? '/dev/shm' : null;
}

const inMemory = process.env.TMPDIR === undefined ? folderInMemory() : null;
if (inMemory !== null) {
  process.env.TMPDIR = inMemory;
  console.log(`databases and files of this run are in memory, in ${inMemory}; TMPDIR=/tmp uses the disk`);
}
const guardian = createGuardian();
const interruption = new AbortController();
let exitCode = 1;
for (const [signal, code] of [
  ['SIGINT', 130],
  ['SIGTERM', 143],
  ['SIGHUP', 129],
] as const) {
  process.on(signal, () => {
    // Once ava runs it may finish its report, unless it is asked twice; before that there is nothing worth waiting for.
    if (!avaRuns || interruption.signal.aborted) void guardian.close().then(() => process.exit(code));
    exitCode = code;
    interruption.abort();
  });
}
try {
  if (await main(guardian, interruption.signal)) exitCode = 0;
} finally {
  await guardian.close();
  process.exitCode = exitCode;
}
