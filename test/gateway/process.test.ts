import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import { portcullis } from '../cli/cli.ts';
import { eachServer } from '../support/databases/each-engine.ts';
import { rest } from '../support/gateway.ts';
import { until } from '../support/listener.ts';
import { dataDir, program, runGateway, spawnGateway } from '../support/process.ts';

const account = { email: 'admin@example.com', password: 'a long passphrase' };
const key = (byte: number) => Buffer.alloc(32, byte).toString('base64');

test.serial('the gateway names every mistake in the environment, prints no value and does not start', async (t) => {
  const gateway = await spawnGateway(t, { PORT: 'x', REGISTRATION: 'y', MASTER_KEY: 'hunter2' });
  t.is(await gateway.ended, 1);
  t.regex(gateway.output(), /PORT must/);
  t.regex(gateway.output(), /REGISTRATION must/);
  t.regex(gateway.output(), /MASTER_KEY must/);
  t.notRegex(gateway.output(), /hunter2|at .*\.ts/);
});

test.serial('a missing database is reported in one clear line', async (t) => {
  const gateway = await spawnGateway(t, { DATA_DIR: dataDir(t), DATABASE_URL: 'mysql://root:hunter2@127.0.0.1:1/x' });
  t.is(await gateway.ended, 1);
  t.regex(gateway.output(), /^portcullis: The database at 127\.0\.0\.1:1\/x cannot be used: .*\n$/);
  t.notRegex(gateway.output(), /hunter2/);
});

test.serial('an unusable data folder or master key is reported in one clear line', async (t) => {
  const folder = dataDir(t);
  writeFileSync(join(folder, 'master.key'), 'no key at all');
  const [withKey, inFile] = await Promise.all([
    spawnGateway(t, { DATA_DIR: folder }),
    spawnGateway(t, { DATA_DIR: join(folder, 'master.key', 'x') }),
  ]);
  t.is(await withKey.ended, 1);
  t.regex(
    withKey.output(),
    /^portcullis: The master key file .* does not contain 32 bytes in base64\. Restore the file, or set MASTER_KEY\.\n$/,
  );
  t.is(await inFile.ended, 1);
  t.regex(inFile.output(), /^portcullis: The master key file cannot be used: .*\n$/);
});

/** Sends the process SIGTERM as soon as it listens. */
const ENDS_ON_LISTENING = `
  import { Server } from 'node:http';
  const { listen } = Server.prototype;
  Server.prototype.listen = function (...args) {
    return listen.apply(this.once('listening', () => process.kill(process.pid, 'SIGTERM')), args);
  };`;

test.serial('a gateway that is told to end as soon as it listens shuts down gracefully, too', async (t) => {
  const preload = `data:text/javascript,${encodeURIComponent(ENDS_ON_LISTENING)}`;
  const gateway = await spawnGateway(t, { DATA_DIR: dataDir(t), NODE_OPTIONS: `--import=${preload}` });
  t.is(await gateway.ended, 0, gateway.output());
});

test.serial('a failed start leaves no new master key, and a successful start makes one', async (t) => {
  const taken = dataDir(t);
  const running = await runGateway(t, { DATA_DIR: taken });
  t.true(existsSync(join(taken, 'master.key')));
  const folder = dataDir(t);
  const wrong: Record<string, string>[] = [
    { PORT: 'x' },
    { DATABASE_URL: 'mysql://root:hunter2@127.0.0.1:1/x' },
    { DATABASE_URL: `sqlite:${folder}` },
    { DATABASE_URL: `sqlite:${join(taken, 'portcullis.db')}` },
    { AUDIT_CHECKPOINTS: folder },
    { PORT: new URL(running.url).port },
    { LOCAL_SIGN_IN: '00000000-0000-7000-8000-000000000000' },
  ];
  for (const environment of wrong) {
    const gateway = await spawnGateway(t, { DATA_DIR: folder, ...environment });
    t.is(await gateway.ended, 1, JSON.stringify(environment));
    t.false(existsSync(join(folder, 'master.key')), JSON.stringify(environment));
  }

  // A database that was made with another key, which is not set here.
  const first = await runGateway(t, { DATA_DIR: folder });
  first.child.kill('SIGTERM');
  t.is(await first.ended, 0);
  const made = readFileSync(join(folder, 'master.key'), 'utf8');
  rmSync(join(folder, 'master.key'));
  const without = await spawnGateway(t, { DATA_DIR: folder });
  t.is(await without.ended, 1);
  t.regex(without.output(), /made with a different master key/);
  t.false(existsSync(join(folder, 'master.key')));
  const replaced = await runGateway(t, { DATA_DIR: folder, MASTER_KEY_PREVIOUS: made.trim() });
  t.not(readFileSync(join(folder, 'master.key'), 'utf8'), made, 'the key is replaced by a new one');
  replaced.child.kill('SIGTERM');
  t.is(await replaced.ended, 0);
});

test.serial('an unwritable checkpoint file is reported in one clear line at the start', async (t) => {
  const folder = dataDir(t);
  const file = join(folder, 'file');
  writeFileSync(file, '');
  const start = runGateway(t, { DATA_DIR: folder, AUDIT_CHECKPOINTS: join(file, 'checkpoints.jsonl') });
  const line =
    /^the gateway ended: portcullis: Checkpoints of the audit log cannot be written: .* Let the gateway write there, or set DATA_DIR or AUDIT_CHECKPOINTS to .*\n$/;
  await t.throwsAsync(start, { message: line });
  // It can be opened, but accepts nothing.
  const device = runGateway(t, { DATA_DIR: folder, AUDIT_CHECKPOINTS: '/dev/full' });
  await t.throwsAsync(device, { message: /cannot be written: \/dev\/full is not a regular file\. Let the gateway/ });
  // Opening a pipe waits for a reader, and Node 20 tries for ever to make a folder in /proc.
  const pipe = join(folder, 'pipe');
  execFileSync('mkfifo', [pipe]);
  for (const place of [pipe, '/proc/nowhere/checkpoints.jsonl'])
    await t.throwsAsync(runGateway(t, { DATA_DIR: folder, AUDIT_CHECKPOINTS: place }), { message: line }, place);
  t.false(existsSync(join(folder, 'portcullis.db')), 'the database is not touched');
});

test.serial('the gateway reads its master key and the address of its database from files', async (t) => {
  const folder = dataDir(t);
  const database = join(folder, 'elsewhere.db');
  writeFileSync(join(folder, 'key'), `${key(3)}\n`);
  writeFileSync(join(folder, 'url'), `sqlite:${database}\n`);
  const files = { MASTER_KEY_FILE: join(folder, 'key'), DATABASE_URL_FILE: join(folder, 'url') };
  await runGateway(t, { DATA_DIR: folder, ...files });
  t.true(existsSync(database));
  t.false(existsSync(join(folder, 'master.key')), 'no key is made');
});

test.serial('a port that is in use is reported in one clear line', async (t) => {
  const first = await runGateway(t, { DATA_DIR: dataDir(t) });
  const second = await spawnGateway(t, { DATA_DIR: dataDir(t), PORT: new URL(first.url).port });
  t.is(await second.ended, 1);
  t.regex(second.output(), /^portcullis: cannot listen: .*EADDRINUSE/);
});

test.serial(
  'SIGTERM ends the gateway with exit code 0 and closes the database, and SIGKILL loses nothing that was answered',
  async (t) => {
    const folder = dataDir(t);
    const first = await runGateway(t, { DATA_DIR: folder });
    t.is((await rest(first.url, 'POST', '/api/auth/register', { body: account })).status, 201);
    first.child.kill('SIGTERM');
    t.is(await first.ended, 0);

    const second = await runGateway(t, { DATA_DIR: folder });
    const { body } = await rest<{ token: string }>(second.url, 'POST', '/api/auth/login', { body: account });
    second.child.kill('SIGKILL');
    t.is(await second.ended, 'SIGKILL');

    const third = await runGateway(t, { DATA_DIR: folder });
    t.is((await rest(third.url, 'GET', '/api/auth/me', { token: body.token })).status, 200, 'the login outlives the process');
  },
);

test.serial('a gateway whose log cannot be written works and ends', async (t) => {
  const gateway = await runGateway(t, { DATA_DIR: dataDir(t) }, ['sh', '-c', 'exec "$0" "$@" > /dev/full']);
  for (let n = 0; n < 100; n++) t.is((await fetch(`${gateway.url}/api/users`)).status, 401);
  gateway.child.kill('SIGTERM');
  t.is(await gateway.ended, 0);
});

test.serial('log lines are JSON without secrets', async (t) => {
  const gateway = await runGateway(t, { DATA_DIR: dataDir(t), LOG_LEVEL: 'trace' });
  await rest(gateway.url, 'POST', '/api/auth/register', { body: account });
  const { body } = await rest<{ token: string }>(gateway.url, 'POST', '/api/auth/login', { body: account });
  await rest(gateway.url, 'GET', `/api/users?limit=1&token=${body.token}`, { token: body.token });
  await rest(gateway.url, 'GET', '/api/users', { token: `${body.token}x` });
  gateway.child.kill('SIGTERM');
  await gateway.ended;
  // The instructions for the first registration are not part of the log.
  const lines = gateway
    .output()
    .trim()
    .split('\n')
    .filter((line) => !/^(portcullis:|curl) /.test(line));
  t.true(lines.length >= 4);
  for (const line of lines) t.notThrows(() => JSON.parse(line), line);
  t.false(gateway.output().includes(account.password));
  t.false(gateway.output().includes(body.token));
});

test.serial('the gateway prints a working command for the first registration until there is an administrator', async (t) => {
  const folder = dataDir(t);
  const first = await runGateway(t, { DATA_DIR: folder, LOG_LEVEL: 'silent', PUBLIC_URL: 'http://127.0.0.1:1' });
  await until('it is said', () => first.output().includes('\ncurl '));
  t.regex(first.output(), /^portcullis: there is no administrator yet; register the first one/m);
  const [command = ''] = /^curl .*$/m.exec(first.output()) ?? [];
  t.true(command.includes('http://127.0.0.1:1/api/auth/register'), command);
  const [, body = ''] = /-d '(.*)'$/.exec(command) ?? [];
  const register = (text: string) => rest(first.url, 'POST', '/api/auth/register', { body: text });
  t.is((await register(body)).status, 400, 'nobody gets a password that is known');
  t.is((await register(body.replace('...', account.password))).status, 201);
  first.child.kill('SIGTERM');
  await first.ended;
  const second = await runGateway(t, { DATA_DIR: folder, LOG_LEVEL: 'silent' });
  second.child.kill('SIGTERM');
  await second.ended;
  t.is(second.output(), '');

  const reachable = await runGateway(t, { DATA_DIR: dataDir(t), PUBLIC_URL: 'https://gateway.example.com', LOG_LEVEL: 'silent' });
  await until('it is said', () => reachable.output().includes('\ncurl '));
  const [, code] = /the setup code (\S+) /.exec(reachable.output()) ?? [];
  t.true(reachable.output().includes(`-H 'Portcullis-Setup-Code: ${code}'`));
});

test.serial('a replica with a different master key does not start', async (t) => {
  const folder = dataDir(t);
  const first = await runGateway(t, { DATA_DIR: folder, MASTER_KEY: key(1) });
  first.child.kill('SIGTERM');
  await first.ended;
  const second = await spawnGateway(t, { DATA_DIR: folder, MASTER_KEY: key(2) });
  t.is(await second.ended, 1);
  t.regex(second.output(), /master key/i);
});

eachServer(test.serial, 'four replicas can start at the same time on an empty database', async (t, at) => {
  const environment = { DATABASE_URL: at.url, MASTER_KEY: key(1), LOG_LEVEL: 'error' };
  const gateways = await Promise.all(Array.from({ length: 4 }, () => runGateway(t, { ...environment, DATA_DIR: dataDir(t) })));
  const [first] = gateways;
  await rest(first?.url ?? '', 'POST', '/api/auth/register', { body: account });
  const { body } = await rest<{ token: string }>(first?.url ?? '', 'POST', '/api/auth/login', { body: account });
  for (const gateway of gateways) t.is((await rest(gateway.url, 'GET', '/api/users', { token: body.token })).status, 200);
});

test.serial('the gateway listens on loopback by default', async (t) => {
  const gateway = await runGateway(t, { DATA_DIR: dataDir(t) });
  if (process.platform !== 'linux') {
    t.pass('only Linux shows this as a file');
    return;
  }
  const port = Number(new URL(gateway.url).port).toString(16).toUpperCase().padStart(4, '0');
  const listening = ['/proc/net/tcp', '/proc/net/tcp6']
    .flatMap((file) => readFileSync(file, 'utf8').split('\n'))
    .map((line) => line.trim().split(/\s+/))
    .filter(([, local, , state]) => state === '0A' && local?.endsWith(`:${port}`));
  t.deepEqual(
    listening.map(([, local]) => local),
    [`0100007F:${port}`],
  );
});

test.serial('portcullis user reset-password sets a new password and ends earlier logins', async (t) => {
  const folder = dataDir(t);
  const first = await runGateway(t, { DATA_DIR: folder });
  await rest(first.url, 'POST', '/api/auth/register', { body: account });
  const { body: before } = await rest<{ token: string }>(first.url, 'POST', '/api/auth/login', { body: account });
  const command = async (...args: string[]) => {
    const child = spawn(process.execPath, [...program('cli/portcullis'), ...args], {
      env: { PATH: process.env['PATH'], DATA_DIR: folder },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let out = '';
    let err = '';
    child.stdout.setEncoding('utf8').on('data', (text: string) => {
      out += text;
    });
    child.stderr.setEncoding('utf8').on('data', (text: string) => {
      err += text;
    });
    const [code] = await once(child, 'close');
    return { code, out, err };
  };
  t.like(await command('user', 'reset-password', account.email), { code: 1 }, 'the gateway holds the file');
  first.child.kill('SIGTERM');
  await first.ended;

  t.is((await command()).code, 0);
  t.regex((await command('setup-code')).out, /^[0-9a-f]{5}(-[0-9a-f]{5}){3}\n$/);
  t.is((await command('user', 'remove')).code, 2);
  const empty = dataDir(t);
  const without = await portcullis({ DATA_DIR: empty }, 'setup-code');
  t.deepEqual([without.code, without.out, readdirSync(empty)], [1, '', []], 'no key is made');
  t.regex(without.err, /^portcullis: No master key was found at .*: start the gateway once, or set MASTER_KEY or DATA_DIR to/);
  const unknown = await command('user', 'reset-password', 'nobody@example.com');
  t.is(unknown.code, 1);
  t.regex(unknown.err, /No user has the e-mail nobody@example\.com/);
  const reset = await command('user', 'reset-password', account.email.toUpperCase());
  t.is(reset.code, 0, reset.err);

  const second = await runGateway(t, { DATA_DIR: folder });
  t.is((await rest(second.url, 'GET', '/api/auth/me', { token: before.token })).status, 401);
  t.is((await rest(second.url, 'POST', '/api/auth/login', { body: account })).status, 401);
  t.is((await rest(second.url, 'POST', '/api/auth/login', { body: { ...account, password: reset.out.trim() } })).status, 200);
});

test.serial('commands work for an account that has only a number, as in a container', async (t) => {
  const DATA_DIR = dataDir(t);
  const gateway = await runGateway(t, { DATA_DIR });
  await rest(gateway.url, 'POST', '/api/auth/register', { body: account });
  const { body } = await rest<{ token: string }>(gateway.url, 'POST', '/api/auth/login', { body: account });
  const stub = `import os from 'node:os';
import { syncBuiltinESMExports } from 'node:module';
os.userInfo = os.homedir = () => { throw new Error('no such account'); };
syncBuiltinESMExports();`;
  const numbered = { NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(stub)}` };
  const client = { ...numbered, PORTCULLIS_URL: gateway.url };
  t.like(await portcullis({ ...client, PORTCULLIS_TOKEN: body.token }, 'target', 'list'), { code: 0, err: '' });
  t.regex((await portcullis(client, 'target', 'list')).err, /you are not signed in at/);
  t.is((await portcullis({ ...client, PORTCULLIS_TOKEN: body.token }, 'connect', 'cursor')).code, 0);

  gateway.child.kill('SIGTERM');
  await gateway.ended;
  t.like(await portcullis({ ...numbered, DATA_DIR }, 'user', 'reset-password', account.email), { code: 0, err: '' });
  const again = await runGateway(t, { DATA_DIR });
  t.is((await rest(again.url, 'POST', '/api/auth/login', { body: account })).status, 401);
});
