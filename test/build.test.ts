/** The build that `npm start` runs first. */
import { execFile } from 'node:child_process';
import { cpSync, mkdtempSync, rmSync, statSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import test from 'ava';

const ROOT = join(import.meta.dirname, '..');

test('a second build of the same source writes nothing', async (t) => {
  // Build a copy, because other tests run the files in `dist`.
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-build-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  for (const name of ['package.json', 'tsconfig.json', 'tsconfig.build.json', 'src', 'elements', 'scripts']) {
    cpSync(join(ROOT, name), join(folder, name), { recursive: true });
  }
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
  const build = () => promisify(execFile)('npm', ['run', '--silent', 'build'], { cwd: folder });
  const written = (): number[] => ['main.js', 'elements/editor.js'].map((file) => statSync(join(folder, 'dist', file)).mtimeMs);

  await build();
  const before = written();
  await build();
  t.deepEqual(written(), before);
});

test('a version of Node.js that is too old is named', async (t) => {
  const versionIs = (version: string): string =>
    `data:text/javascript,Object.defineProperty(process,'versions',{value:{...process.versions,node:'${version}'}})`;
  const begin = (version: string) =>
    promisify(execFile)(process.execPath, ['--import', versionIs(version), 'scripts/installed.js'], { cwd: ROOT });
  for (const version of ['18.20.4', '20.9.0'])
    await t.throwsAsync(begin(version), { message: new RegExp(`needs Node.js 20\\.19 or newer, and this is ${version}`) });
  for (const version of ['20.19.0', '22.1.0']) await t.notThrowsAsync(begin(version));
});
