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
