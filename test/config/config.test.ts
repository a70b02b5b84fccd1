import { mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { masterKeyFile } from '../../src/auth/vault.ts';
import { ConfigError, readConfig } from '../../src/config/config.ts';

const mistakesOf = (t: ExecutionContext, environment: Record<string, string>) =>
  t.throws(() => readConfig(environment), { instanceOf: ConfigError })?.mistakes;

test('an empty environment gives a gateway on loopback with SQLite', (t) => {
  const config = readConfig({});
  t.is(config.host, '127.0.0.1');
  t.is(config.publicUrl, 'http://127.0.0.1:8080');
  t.is(config.database.kind, 'sqlite');
  t.false(config.setupCodeRequired);
  t.true(Object.isFrozen(config));
});

test('a gateway on all addresses has the same public address as one on loopback', (t) => {
  for (const HOST of ['0.0.0.0', '::', '10.1.2.3']) t.is(readConfig({ HOST }).publicUrl, 'http://127.0.0.1:8080');
});

test('every mistake is named at once, in plain words, and no value is repeated', (t) => {
  const error = t.throws(
    () =>
      readConfig({
        PORT: 'http',
        REGISTRATION: 'maybe',
        MASTER_KEY: 'too-short-secret',
        DATABASE_URL: 'postgres://u:hunter2@h/d',
        PUBLIC_URL: 'ftp://x',
      }),
    { instanceOf: ConfigError },
  );
  t.is(error.mistakes.length, 5);
  for (const name of ['PORT', 'REGISTRATION', 'MASTER_KEY', 'DATABASE_URL', 'PUBLIC_URL'])
    t.regex(error.message, new RegExp(`^${name} must`, 'm'));
  t.notRegex(error.message, /hunter2|too-short-secret/);
});

for (const [variable, values] of Object.entries({
  PORT: ['0', '65536', '80.5', '-1'],
  MASTER_KEY: [Buffer.alloc(31).toString('base64'), Buffer.alloc(33).toString('base64'), 'ä'.repeat(44)],
  DATABASE_URL: ['sqlite:', 'sqlite::memory:', 'mysql://host', 'mysql://u:p@h/db?socket=/tmp/x', '/tmp/x.db'],
  PUBLIC_URL: ['https://gateway.example.com/path', 'https://user@gateway.example.com', 'gateway.example.com'],
  REPLICA_URL: ['10.0.0.5:8080', 'http://10.0.0.5:8080/path', 'https://user@replica', 'ftp://replica', 'http://a,http://b'],
  ALLOWED_ORIGINS: ['https://a.example,nonsense'],
  ALLOWED_HOSTS: ['gateway.example.com:8080', 'http://gateway.example.com', 'a b'],
  TRUST_PROXY: ['sometimes'],
  MASTER_KEY_PREVIOUS: ['too-short', `${Buffer.alloc(32).toString('base64')},too-short`, Buffer.alloc(64).toString('base64')],
  STDIO_ALLOWED: ['server', './server', '/bin/server,server', '~/server', '/bin/a\nb'],
  STDIO_MAX_PROCESSES: ['0', '-1', '1.5', 'many', '100001'],
  STDIO_IDLE_MS: ['0', '999', '2147483648', '10m'],
  STDIO_LIFETIME_MS: ['0', '999', '2147483648'],
  METRICS_TOKEN: ['too-short', 'has a space in the middle', 'x'.repeat(257), 'ä'.repeat(20)],
  DRAIN_DELAY_MS: ['-1', '600001', '5s'],
  CHANGE_RATE_LIMIT: ['0', '-1', '1.5', 'many'],
  DENIAL_RATE_LIMIT: ['0', '-1', '1.5', 'many'],
  CHANGES_RETENTION_DAYS: ['1', '29', '-1', '30.5', '36501', 'month'],
  AUDIT_RETENTION_DAYS: ['1', '29', '-1', '30.5', '36501', 'month'],
  AUDIT_CHECKPOINT_MINUTES: ['0', '1441', '0.5', 'hourly'],
  FRESHNESS: ['bounded', 'bounded:0', 'bounded:60001', 'bounded:1.5', 'bounded:-1', '100', 'Strict'],
})) {
  for (const value of values) {
    test(`${variable}=${value} is refused`, (t) => {
      const error = t.throws(() => readConfig({ [variable]: value }), { instanceOf: ConfigError });
      t.true(error.message.startsWith(`${variable} must`));
    });
  }
}

test('the default REPLICA_URL is the address at which the gateway listens', (t) => {
  t.is(readConfig({}).replicaUrl, 'http://127.0.0.1:8080');
  t.is(readConfig({ HOST: '10.1.2.3', PORT: '81', PUBLIC_URL: 'https://gateway.example.com' }).replicaUrl, 'http://10.1.2.3:81');
  t.is(readConfig({ HOST: '::1' }).replicaUrl, 'http://[::1]:8080');
  for (const HOST of ['0.0.0.0', '::']) t.is(readConfig({ HOST }).replicaUrl, `http://${hostname()}:8080`);
  t.is(readConfig({ REPLICA_URL: 'https://replica-1.internal/' }).replicaUrl, 'https://replica-1.internal');
});

test('audit rows are kept for ever unless a retention is set', (t) => {
  const { audit, dataDir } = readConfig({});
  t.deepEqual(audit, { retentionDays: 0, checkpoints: join(dataDir, 'checkpoints.jsonl'), checkpointMinutes: 10 });
  t.is(readConfig({ AUDIT_RETENTION_DAYS: '0' }).audit.retentionDays, 0);
  t.is(readConfig({ AUDIT_RETENTION_DAYS: '30' }).audit.retentionDays, 30);
  t.is(readConfig({ AUDIT_CHECKPOINTS: '/var/audit/c.jsonl' }).audit.checkpoints, '/var/audit/c.jsonl');
});

test('no executable is allowed until one is named', (t) => {
  t.deepEqual(readConfig({}).stdio, { allowed: [], maxProcesses: 100, idleMs: 600_000, lifetimeMs: 86_400_000 });
  t.deepEqual(readConfig({ STDIO_ALLOWED: ' /bin/a b , /bin/../c,' }).stdio.allowed, ['/bin/a b', '/bin/../c']);
});

test('previous master keys are a list', (t) => {
  const [a, b] = [Buffer.alloc(32, 1), Buffer.alloc(32, 2)];
  t.deepEqual(readConfig({}).previousMasterKeys, []);
  t.deepEqual(readConfig({ MASTER_KEY_PREVIOUS: `${a.toString('base64')}, ${b.toString('base64')}` }).previousMasterKeys, [a, b]);
});

test('secrets are read from files, as Docker and Kubernetes mount them', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-secrets-'));
  t.teardown(() => rmSync(folder, { recursive: true, force: true }));
  const file = (name: string, content: string): string => {
    writeFileSync(join(folder, name), content);
    return join(folder, name);
  };
  const [key, old] = [Buffer.alloc(32, 1), Buffer.alloc(32, 2)];
  const MASTER_KEY_FILE = file('key', `${key.toString('base64')}\n`);
  const config = readConfig({
    MASTER_KEY_FILE,
    MASTER_KEY_PREVIOUS_FILE: file('old', old.toString('base64')),
    DATABASE_URL_FILE: file('url', 'mysql://u:p@h/db\r\n'),
    METRICS_TOKEN_FILE: file('metrics', `${'m'.repeat(16)}\n`),
    MASTER_KEY: '',
  });
  t.deepEqual([config.masterKey, config.previousMasterKeys], [key, [old]]);
  t.like(config.database, { kind: 'mysql', url: 'mysql://u:p@h/db' });
  t.is(config.metricsToken, 'm'.repeat(16));
  t.is(readConfig({ MASTER_KEY_FILE: '' }).masterKey, null);

  t.deepEqual(mistakesOf(t, { MASTER_KEY_FILE, MASTER_KEY: key.toString('base64') }), [
    'MASTER_KEY and MASTER_KEY_FILE must not both be set',
  ]);
  t.deepEqual(mistakesOf(t, { DATABASE_URL_FILE: join(folder, 'none'), MASTER_KEY_FILE: folder, PORT: 'x' }), [
    'MASTER_KEY_FILE must name a file that the gateway can read (EISDIR)',
    'DATABASE_URL_FILE must name a file that the gateway can read (ENOENT)',
    'PORT must be a number from 1 to 65535',
  ]);
  // If this key counted as unset, the gateway would make a new one.
  t.deepEqual(mistakesOf(t, { MASTER_KEY_FILE: '/dev/zero' }), ['MASTER_KEY_FILE must name a file with at most 65536 bytes']);
  t.deepEqual(mistakesOf(t, { MASTER_KEY_FILE: file('empty', '\n') }), ['MASTER_KEY_FILE must name a file that is not empty']);
  t.regex(String(mistakesOf(t, { MASTER_KEY_FILE: file('short', 'hunter2') })), /^MASTER_KEY must be 32 bytes/);
});

test('the setup code is required at an address that others can reach, unless it is waived', (t) => {
  t.true(readConfig({ HOST: '0.0.0.0' }).setupCodeRequired);
  t.true(readConfig({ HOST: '10.1.2.3' }).setupCodeRequired);
  t.true(readConfig({ HOST: '127.evil.example' }).setupCodeRequired);
  t.true(readConfig({ PUBLIC_URL: 'https://gateway.example.com' }).setupCodeRequired, 'a proxy stands before it');
  t.true(readConfig({ TRUST_PROXY: 'true' }).setupCodeRequired);
  t.false(readConfig({ HOST: '0.0.0.0', FIRST_ADMIN: 'open' }).setupCodeRequired);
  t.false(readConfig({ HOST: '::1' }).setupCodeRequired);
});

test('MySQL is chosen by the URL, with its pool and the durability check on', (t) => {
  t.deepEqual(readConfig({ DATABASE_URL: 'mysql://u:p@h:3307/db?tls=true' }).database, {
    kind: 'mysql',
    url: 'mysql://u:p@h:3307/db?tls=true',
    allowWeakDurability: false,
    poolSize: 10,
  });
});

test('a database URL with a mistake that would weaken it, or show its password, is refused', (t) => {
  const wrong = [
    ...['?tls=TRUE', '?tls=1', '?tls', '?tls=false', '?tls=true&tls=false', '?ssl=true', '#tls'].map((end) => `u:p@h/db${end}`),
    // A certificate cannot be checked for an address.
    ...['u:p@10.0.0.1/db?tls=true', 'u:p@[::1]/db?tls=true'],
    // A password with a slash: its rest is read as the name of the database.
    ...['u:12/hunter2@h/db', 'u:/hunter2@h/db', 'u:1/hunter2@h', 'u:1?hunter2@h/db', 'u:1#hunter2@h/db'],
  ];
  const urls = wrong.map((rest) => `mysql://${rest}`);
  // These would be read as the names of SQLite files.
  urls.push('MYSQL://u:hunter2@h/db', ' mysql://u:hunter2@h/db', 'mysql:/db', 'mysql:///db');
  for (const url of urls) {
    const [mistake, ...more] = mistakesOf(t, { DATABASE_URL: url });
    t.regex(mistake ?? '', /^DATABASE_URL must be/, url);
    t.deepEqual(more, []);
    t.notRegex(mistake ?? '', /hunter2/);
  }
  for (const rest of ['u:a%2Fb%40c@h/db', 'u:p@10.0.0.1:3307/db', 'u:p@[::1]:3307/db', 'u@h/db%2Fx']) {
    t.notThrows(() => readConfig({ DATABASE_URL: `mysql://${rest}` }), rest);
  }
});

test('the master key file is written once and completely, and only its owner can read it', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-key-'));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const file = join(folder, 'deep', 'master.key');
  const key = masterKeyFile(file);
  t.is(key.length, 32);
  t.deepEqual(masterKeyFile(file), key);
  t.is(statSync(file).mode & 0o777, 0o600);
  t.regex(readFileSync(file, 'utf8'), /^[A-Za-z0-9+/=]{44}\n$/);
});

test('freshness is strict, or bounded by so many milliseconds', (t) => {
  t.is(readConfig({}).freshnessMs, 0);
  t.is(readConfig({ FRESHNESS: 'strict' }).freshnessMs, 0);
  t.is(readConfig({ FRESHNESS: 'bounded:60000' }).freshnessMs, 60_000);
});
