import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { linkSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'ava';
import { createVault, masterKeyFile } from '../../src/auth/vault.ts';

const vault = createVault(Buffer.alloc(32, 1));
const secret = Buffer.from('the upstream credential');

test('a sealed secret opens only for the row that it was sealed for', (t) => {
  const sealed = vault.seal('credential:a', secret);
  t.deepEqual(vault.open('credential:a', sealed), secret);
  t.throws(() => vault.open('credential:b', sealed));
  t.false(Buffer.from(sealed, 'base64').includes(secret));
  t.not(vault.seal('credential:a', secret), sealed, 'a fresh nonce each time');
});

test('a master key file that cannot be written leaves no part of it', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-vault-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const make = `import { masterKeyFile } from './src/auth/vault.ts'; masterKeyFile(${JSON.stringify(join(folder, 'master.key'))});`;
  const words = ['--import=./scripts/loader/register.js', '--input-type=module', '--eval', make];
  // As on a full disk: a file may have no byte.
  const { status, stderr } = spawnSync('sh', ['-c', 'ulimit -f 0; exec "$@"', 'sh', process.execPath, ...words]);
  t.deepEqual([status, readdirSync(folder)], [1, []]);
  t.regex(stderr.toString(), /The master key file cannot be used: EFBIG/);
});

test('a start with the process id of one that was killed while it made the master key leaves the key as it is', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-vault-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const file = join(folder, 'master.key');
  const key = masterKeyFile(file);
  linkSync(file, `${file}.${process.pid}`);
  t.deepEqual(masterKeyFile(file), key);
});

test('a different master key opens nothing', (t) => {
  t.throws(() => createVault(randomBytes(32)).open('x', vault.seal('x', secret)));
});

test('a previous master key opens and does not seal', (t) => {
  const [old, unknown] = [Buffer.alloc(32, 1), Buffer.alloc(32, 9)];
  const next = createVault(Buffer.alloc(32, 2), [unknown, old]);
  const sealed = vault.seal('x', secret);
  t.deepEqual(next.open('x', sealed), secret);
  t.throws(() => next.open('y', sealed));
  const again = next.reseal('x', sealed) ?? '';
  t.deepEqual(createVault(Buffer.alloc(32, 2)).open('x', again), secret);
  t.throws(() => vault.open('x', again));
  t.is(next.reseal('x', again), null);
  t.throws(() => next.reseal('y', sealed));
  t.throws(() => createVault(Buffer.alloc(32, 2), [unknown]).reseal('x', sealed));
  t.deepEqual(next.derive('setup-code'), createVault(Buffer.alloc(32, 2)).derive('setup-code'));
});

test('every changed, missing or added byte is noticed', (t) => {
  const sealed = Buffer.from(vault.seal('x', secret), 'base64');
  for (let i = 0; i < sealed.length; i++) {
    const edited = Buffer.from(sealed);
    edited[i] = (edited[i] ?? 0) ^ 1;
    t.throws(() => vault.open('x', edited.toString('base64')), undefined, `byte ${i}`);
  }
  t.throws(() => vault.open('x', sealed.subarray(0, -1).toString('base64')));
  t.throws(() => vault.open('x', ''));
});

test('derived values are stable, and differ by purpose and by key', (t) => {
  t.deepEqual(vault.derive('setup-code'), createVault(Buffer.alloc(32, 1)).derive('setup-code'));
  t.notDeepEqual(vault.derive('setup-code'), vault.derive('other'));
  t.notDeepEqual(vault.derive('setup-code'), createVault(Buffer.alloc(32, 2)).derive('setup-code'));
});
