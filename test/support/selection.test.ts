/** That no test is left out both by a run without SQLite and by one on a bare machine. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { testsWithMore } from './selection.ts';

test('what uses a server, a browser, a terminal or OPA, or leaves tests out, runs without SQLite; all else does not', (t) => {
  const [whole, servers] = testsWithMore(join(import.meta.dirname, '..')).map(({ files }) => files);
  for (const file of [
    'console/chromium',
    'cli/first-hour/terminal',
    'engine/rego',
    'cli/completion/completion',
    'providers/sign-in',
  ])
    t.true(whole?.includes(join(`${file}.test.ts`)), file);
  for (const file of ['scim/replicas', 'support/databases/engines', 'audit/writer', 'gateway/kill'])
    t.true(servers?.includes(join(`${file}.test.ts`)), file);
  for (const file of ['support/progress', 'cli/command', 'http/body'])
    t.false([...(whole ?? []), ...(servers ?? [])].includes(join(`${file}.test.ts`)), file);
});

test('the tests on servers, and no others, have titles that end with the name of the server', (t) => {
  const [, servers] = testsWithMore(join(import.meta.dirname, '..'));
  t.deepEqual(servers?.titles, ['*[mariadb]', '*[mysql]']);
  for (const file of servers?.files ?? [])
    t.regex(readFileSync(join(import.meta.dirname, '..', file), 'utf8'), /\beachEngine\(|\beachServer\(|\[\$\{name\}\]`/, file);
});

test('what leaves out the tests of other files is known to the selection', (t) => {
  const sources = readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' }).filter((file) =>
    /(?<!\.test)\.ts$/.test(file),
  );
  const skips = sources.filter((file) => /\.skip\(/.test(readFileSync(join(import.meta.dirname, file), 'utf8')));
  t.deepEqual(skips.sort(), ['chromium.ts', join('databases', 'each-engine.ts'), 'terminal.ts']);
});
