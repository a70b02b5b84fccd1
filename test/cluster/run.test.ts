import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import test from 'ava';

const ROOT = join(import.meta.dirname, '../..');

test('the tests of clusters start without ava', (t) => {
  const { stderr } = spawnSync(process.execPath, ['--import=./scripts/loader/register.js', 'test/cluster/run.ts'], {
    cwd: ROOT,
    encoding: 'utf8',
  });
  t.regex(stderr, /usage: test:cluster -- galera\|group-replication/);
});
