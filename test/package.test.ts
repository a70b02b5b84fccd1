/** The package that `npm pack` makes, in an empty folder: the command line, the demo and the gateway, with nothing compiled at start. */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import test from 'ava';
import { freePort } from './support/port.ts';

const ROOT = join(import.meta.dirname, '..');
const SOURCES = [
  'package.json',
  'tsconfig.json',
  'tsconfig.build.json',
  'LICENSE',
  'README.md',
  'src',
  'rego',
  'fonts',
  'elements',
  'scripts',
  'policies',
];
/** In bytes. Who exceeds it has packed something that does not belong there, or changes docs/cli.md, too. */
const SIZE_MAX = 1_500_000;

const run = promisify(execFile);

interface Packed {
  readonly filename: string;
  readonly size: number;
  readonly files: readonly { readonly path: string }[];
}

test('npx portcullis works from the packed tarball', async (t) => {
  t.timeout(600_000);
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-package-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  // Pack a copy, because other tests run the files in `dist`.
  const [source, place] = [join(folder, 'source'), join(folder, 'place')];
  for (const name of SOURCES) cpSync(join(ROOT, name), join(source, name), { recursive: true });
  symlinkSync(join(ROOT, 'node_modules'), join(source, 'node_modules'));
  const { stdout } = await run('npm', ['pack', '--json', '--pack-destination', folder], { cwd: source, maxBuffer: 2 ** 24 });
  const [packed] = JSON.parse(stdout.slice(stdout.indexOf('['))) as [Packed];
  const paths = packed.files.map(({ path }) => path);
  t.deepEqual(
    paths.filter((path) => /(_test\.rego|\.tsbuildinfo|\.test\.|^src\/|\.env)/.test(path)),
    [],
  );
  t.true(packed.size < SIZE_MAX, `${packed.size} bytes`);
  t.log(`${packed.size} bytes, ${paths.length} files`);

  mkdirSync(place);
  // No scripts of dependencies: nothing may be compiled on the machine.
  const install = ['install', '--ignore-scripts', '--no-audit', '--no-fund', '--prefer-offline', join(folder, packed.filename)];
  await run('npm', install, { cwd: place });
  const environment = { PATH: process.env['PATH'], HOME: folder };
  const npx = (...words: string[]) => run('npx', ['portcullis', ...words], { cwd: place, env: environment });
  t.regex((await npx('--version')).stdout, /^portcullis \d+\.\d+\.\d+\n$/);
  t.regex((await npx('target', '--help')).stdout, /^Usage: portcullis target/);
  t.regex((await npx('policies', 'lint', '--dir', 'node_modules/portcullis/policies')).stdout, /./);
  t.regex((await npx('demo', '--once')).stdout, /Everything was as announced\.\n$/);

  const port = await freePort();
  const gateway = spawn(join(place, 'node_modules/.bin/portcullis'), ['start'], {
    cwd: place,
    env: { ...environment, PORT: String(port), DRAIN_DELAY_MS: '0' },
    stdio: 'ignore',
  });
  t.teardown(() => gateway.kill('SIGKILL'));
  const ended = once(gateway, 'exit');
  const ready = () =>
    fetch(`http://127.0.0.1:${port}/health/ready`).then(
      ({ status }) => status === 200,
      () => false,
    );
  while (gateway.exitCode === null && !(await ready())) await sleep(100);
  t.true(await ready());
  gateway.kill('SIGTERM');
  t.deepEqual(await ended, [0, null]);
});
