import { join } from 'node:path';
import test from 'ava';
import { createProgress, testFilesIn } from './progress.ts';

test('the first result of each file says how many files have begun', (t) => {
  const progress = createProgress(['mcp/sse.test.ts', 'mcp/sse-transport.test.ts', 'docs.test.ts']);
  t.is(progress.read('  ✔ mcp › sse-transport › a stream ends'), '1 of 3 files: mcp › sse-transport');
  t.is(progress.read('  ✔ mcp › sse-transport › a stream begins (2s)'), null);
  t.is(progress.read('  \u001B[32m✘\u001B[39m [fail]: docs › every link leads somewhere'), '2 of 3 files: docs');
  t.is(progress.read('  - [skip] mcp › sse › needs a server'), '3 of 3 files: mcp › sse');
  t.is(progress.read('    ℹ ✔ mcp › sse › what a test logs'), null);
  t.is(progress.read('  3 tests passed'), null);
});

test('every test file is found', (t) => {
  const files = testFilesIn(join(import.meta.dirname, '..'));
  t.true(files.includes(join('support', 'progress.test.ts')));
  t.true(files.includes('docs.test.ts'));
  t.true(files.every((file) => file.endsWith('.test.ts')));
});
