/** That no test is left out both by a run without SQLite and by one on a bare machine. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { filesWithMore } from './selection.ts';

test('files that use a server, a browser, a terminal or OPA, or leave tests out, run without SQLite; others do not', (t) => {
  const files = filesWithMore(join(import.meta.dirname, '..'));
  for (const file of ['scim/replicas', 'console/chromium', 'cli/first-hour/terminal', 'engine/rego', 'cli/completion/completion'])
    t.true(files.includes(join(`${file}.test.ts`)), file);
  for (const file of ['support/progress', 'cli/command', 'http/body']) t.false(files.includes(join(`${file}.test.ts`)), file);
});

test('what leaves out the tests of other files is known to the selection', (t) => {
  const sources = readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' }).filter((file) =>
    /(?<!\.test)\.ts$/.test(file),
  );
  const skips = sources.filter((file) => /\.skip\(/.test(readFileSync(join(import.meta.dirname, file), 'utf8')));
  t.deepEqual(skips.sort(), ['chromium.ts', join('databases', 'engines.ts'), 'terminal.ts']);
});
