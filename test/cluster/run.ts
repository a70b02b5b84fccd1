/**
 * `npm run test:cluster -- galera` (or `group-replication`): starts three nodes of the cluster on loopback and a gateway on each,
 * races registrations, and logins with changes of the password, runs the new-enemy test with and without what makes reads causal, kills
 * a node in mid-load and brings it back, and stops everything. `--rounds=n` (100) says how many revocations of each kind. The exit code is 0 if all held.
 */
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import { callOnce, newEnemy, scoreLine } from '../gateway/new-enemy.ts';
import { startGalera } from '../support/databases/cluster-galera.ts';
import { startGroupReplication } from '../support/databases/cluster-group-replication.ts';
import { type Cluster, withConnection } from '../support/databases/cluster-node.ts';
import { createGuardian, type Guardian, killGroup } from '../support/databases/guardian.ts';
import { rest } from '../support/gateway.ts';
import { openSession } from '../support/mcp.ts';
import { freePort } from '../support/port.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';

const KINDS = ['galera', 'group-replication'];
const REGISTRATIONS = 50;
const LOADERS = 4;
const PASSWORD_CHANGES = 20;
const ROWS_OF_OTHERS = 5_000;
/** How long a gateway may take to answer while its node is gone: the gate waits 5 s. */
const ANSWER_MS = 15_000;
/** How long a member may take to join again. */
const BACK_MS = 120_000;
const PASSWORD = 'a long passphrase';

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { rounds: { type: 'string', default: '100' } },
});
const kind = positionals[0] ?? '';
const rounds = Number(values.rounds);
if (!KINDS.includes(kind) || !(rounds > 0)) throw new Error('usage: test:cluster -- galera|group-replication [--rounds=n]');

const failures: string[] = [];
function check(holds: boolean, what: string): void {
  console.log(`${holds ? 'ok  ' : 'FAIL'} ${what}`);
  if (!holds) failures.push(what);
}

interface Replica {
  readonly url: string;
  readonly process: ChildProcess;
}

interface Place {
  readonly port: number;
  /** The address that people use, of all replicas. */
  readonly publicUrl: string;
}

async function startReplica(
  guardian: Guardian,
  databaseUrl: string,
  causal: boolean,
  { port, publicUrl }: Place,
): Promise<Replica> {
  const program = join(import.meta.dirname, 'replica.ts');
  const process_ = guardian.start(
    process.execPath,
    ['--import=./scripts/loader/register.js', program, ...(causal ? [] : [kind])],
    {
      cwd: join(import.meta.dirname, '../..'),
      env: {
        PATH: process.env['PATH'],
        PORT: String(port),
        PUBLIC_URL: publicUrl,
        DATABASE_URL: databaseUrl,
        DATA_DIR: guardian.folder,
        MASTER_KEY: Buffer.alloc(32, 3).toString('base64'),
        LOG_LEVEL: 'error',
        MCP_RATE_LIMIT: '10000000',
        API_RATE_LIMIT: '10000000',
        DENIAL_RATE_LIMIT: '10000000',
        LOGIN_RATE_LIMIT: '100000',
        CHANGE_RATE_LIMIT: '100000',
        OAUTH_RATE_LIMIT: '10000000',
        CLIENT_REGISTRATION_RATE_LIMIT: '100000',
        DRAIN_MS: '500',
      },
    },
  );
  process_.stdout?.pipe(process.stdout);
  process_.stderr?.pipe(process.stderr);
  let over = false;
  // After its last words.
  process_.once('close', () => {
    over = true;
  });
  const url = `http://127.0.0.1:${port}`;
  while (!(await isReady(url))) {
    if (over) throw new Error('a gateway did not start');
    await sleep(100);
  }
  return { url, process: process_ };
}

const isReady = (url: string): Promise<boolean> =>
  fetch(`${url}/health/ready`).then(
    (answer) => answer.status === 200,
    () => false,
  );

async function stop(replicas: readonly Replica[]): Promise<void> {
  for (const replica of replicas) {
    const ended = once(replica.process, 'exit');
    if (replica.process.pid !== undefined) killGroup(replica.process.pid, 'SIGTERM');
    await ended;
  }
}

/** All at once: one of them brings the schema up to date. */
async function startReplicas(guardian: Guardian, databaseUrls: readonly string[], causal: boolean): Promise<Replica[]> {
  const ports = await Promise.all(databaseUrls.map(() => freePort()));
  const publicUrl = `http://127.0.0.1:${ports[0]}`;
  return Promise.all(databaseUrls.map((url, n) => startReplica(guardian, url, causal, { port: ports[n] ?? 0, publicUrl })));
}

/** Registers at every replica at once; resolves with the administrator's login token. */
async function registrations(urls: readonly string[]): Promise<string> {
  const answers = await Promise.all(
    Array.from({ length: REGISTRATIONS }, (_, n) => {
      const account = { email: `user${n}@example.com`, password: PASSWORD };
      return rest<{ role: string; email: string }>(urls[n % urls.length] ?? '', 'POST', '/api/auth/register', { body: account });
    }),
  );
  const made = answers.filter(({ status }) => status === 201).map(({ body }) => body);
  const administrators = made.filter(({ role }) => role === 'admin');
  check(made.length === REGISTRATIONS, `${made.length} of ${REGISTRATIONS} registrations at once on three nodes succeed`);
  check(administrators.length === 1, `${administrators.length} of them became administrator`);
  return logIn(urls[0] ?? '', administrators[0]?.email ?? '');
}

async function logIn(url: string, email: string): Promise<string> {
  const { body } = await rest<{ token: string }>(url, 'POST', '/api/auth/login', { body: { email, password: PASSWORD } });
  return body.token;
}

/**
 * Runs `work` while large transactions of a different program keep the nodes busy, on each node in turn. A commit on one node is then
 * applied on another some time later, as in busy clusters.
 */
async function amongOthers<T>(databaseUrls: readonly string[], work: () => Promise<T>): Promise<T> {
  const [first = ''] = databaseUrls;
  await withConnection(first, async (connection) => {
    await connection.query('create table if not exists others (id int primary key auto_increment, n int not null)');
    const rows = Array.from({ length: ROWS_OF_OTHERS }, () => '(0)').join();
    await connection.query(`insert into others (n) values ${rows}`);
  });
  let over = false;
  const others = (async () => {
    for (let n = 0; !over; n++) {
      const url = databaseUrls[n % databaseUrls.length] ?? '';
      // Two of them may meet in a certification conflict with the one before.
      await withConnection(url, (connection) => connection.query('update others set n = n + 1')).catch(() => {});
      await sleep(20);
    }
  })();
  try {
    return await work();
  } finally {
    over = true;
    await others;
  }
}

/** A user changes the password at one replica, while somebody who knows the old one logs in with it at a different one, again and again. */
async function oldPasswords([first = '', second = '']: readonly string[]): Promise<void> {
  const email = 'changing@example.com';
  const login = (url: string, password: string) =>
    rest<{ token: string }>(url, 'POST', '/api/auth/login', { body: { email, password } });
  let password = PASSWORD;
  await rest(first, 'POST', '/api/auth/register', { body: { email, password } });
  let [made, alive, failed] = [0, 0, 0];
  for (let round = 0; round < PASSWORD_CHANGES; round++) {
    const token = (await login(first, password)).body.token;
    const old = password;
    const tokens: string[] = [];
    const begun: Promise<void>[] = [];
    const attackers = Array.from({ length: LOADERS }, async (_, n) => {
      begun[n] = login(second, old).then(({ body }) => void tokens.push(body.token));
      await begun[n];
      for (let answer = await login(second, old); answer.status === 200; answer = await login(second, old))
        tokens.push(answer.body.token);
    });
    await Promise.all(begun);
    password = `${PASSWORD} ${round}`;
    const body = { current_password: old, new_password: password };
    const { status } = await rest(first, 'PUT', '/api/auth/password', { token, body });
    if (status !== 204) failed++;
    await Promise.all(attackers);
    made += tokens.length;
    const answers = await Promise.all(tokens.map((token) => rest(first, 'GET', '/api/auth/me', { token })));
    alive += answers.filter((answer) => answer.status !== 401).length;
  }
  check(failed === 0, `${PASSWORD_CHANGES} changes of a password at one node succeed`);
  check(alive === 0, `${alive} of ${made} logins with the old passwords at a different node outlive the changes`);
}

/** Names of the allowed calls in the audit log, as a node has it. */
async function recorded(databaseUrl: string): Promise<Set<string>> {
  return withConnection(databaseUrl, async (connection) => {
    const [rows] = await connection.query(
      `select coalesce(t.name, o.resource_name) as resource_name from log_decisions as t
       join log_objects as o on o.id = t.object join log_verdicts as v on v.id = t.verdict
       where v.effect = 'allow' and o.method = 'tools/call'`,
    );
    return new Set((rows as { resource_name: string }[]).map((row) => row.resource_name));
  });
}

async function killAndReturn(
  cluster: Cluster,
  databaseUrls: readonly string[],
  urls: readonly string[],
  admin: string,
): Promise<void> {
  const upstream = await startRecording(byMethod({ 'tools/call': () => ({ content: [] }) }));
  try {
    const [first = '', , last = ''] = urls;
    const asAdmin = <T>(method: string, path: string, body: object) => rest<T>(first, method, path, { token: admin, body });
    await asAdmin('POST', '/api/targets', { name: 'load', transport: 'streamable-http', url: upstream.url });
    const { body: policy } = await asAdmin<{ id: string }>('POST', '/api/policies', {
      name: 'load',
      resource_type: 'tool',
      resource_pattern: '^load-',
      effect: 'allow',
      priority: 5,
      subjects: [{ subject_type: 'everyone' }],
    });
    const { body: made } = await asAdmin<{ token: string }>('POST', '/api/auth/tokens', { name: 'load' });
    const mcp = (url: string): string => `${url}/mcp/load`;
    const session = await openSession(mcp(first), made.token);

    const tallies = urls.map(() => ({ allowed: 0, denied: 0, error: 0 }));
    let number = 0;
    let slowest = 0;
    let over = false;
    const loaders = urls.flatMap((url, at) =>
      Array.from({ length: LOADERS }, async () => {
        while (!over) {
          const tool = `load-${number++}`;
          const began = performance.now();
          const answer = await callOnce(mcp(url), made.token, session, tool, tool);
          slowest = Math.max(slowest, performance.now() - began);
          const tally = tallies[at];
          if (tally) tally[answer]++;
          // The gateway of a dead node refuses faster than the others work.
          if (answer === 'error') await sleep(20);
        }
      }),
    );
    const allowedAt = (at: number): number => tallies[at]?.allowed ?? 0;
    /** Resolves once `enough` more calls were allowed at each of these replicas. */
    const flowing = async (at: readonly number[], enough: number, ms: number): Promise<boolean> => {
      const before = at.map(allowedAt);
      const deadline = performance.now() + ms;
      while (performance.now() < deadline) {
        if (at.every((n, i) => allowedAt(n) >= (before[i] ?? 0) + enough)) return true;
        await sleep(50);
      }
      return false;
    };
    const once_ = (url: string, tool: string) => callOnce(mcp(url), made.token, session, tool, tool);

    check(await flowing([0, 1, 2], 50, 60_000), 'three replicas serve');
    await cluster.nodes[2]?.kill();
    const killed = performance.now();
    const answer = await rest<{ code?: string }>(last, 'GET', '/api/auth/me', { token: made.token });
    check(answer.status === 503 && answer.body.code === 'unavailable', `the gateway of the dead node answers ${answer.status}`);
    check((await once_(last, 'load-dead')) === 'error', 'and refuses calls');
    const beforeOthers = performance.now();
    check(await flowing([0, 1], 50, 60_000), 'the others go on');
    console.log(`     ${((performance.now() - beforeOthers) / 1_000).toFixed(1)} s until 50 more calls had passed at each`);

    // A right that is removed while a node is down must be gone when the node is back.
    let revoked = false;
    for (let tried = 0; tried < 20 && !revoked; tried++) {
      revoked = (await asAdmin('PUT', `/api/policies/${policy.id}`, { resource_pattern: '^load-[0-9]' })).status === 200;
    }
    check(revoked, 'a policy is narrowed while the node is gone');
    await cluster.nodes[2]?.start();
    console.log(`     the node is back after ${((performance.now() - killed) / 1_000).toFixed(1)} s`);
    check(await flowing([0, 1, 2], 50, 60_000), 'its gateway serves again, without a restart');
    check((await once_(last, 'load-dead')) === 'denied', 'and decides with what changed meanwhile');
    over = true;
    await Promise.all(loaders);
    check(slowest < ANSWER_MS, `no call waited longer than ${(slowest / 1_000).toFixed(1)} s`);

    const forwarded = upstream.received.flatMap(({ message }) =>
      message?.method === 'tools/call' ? [String(message.params?.['name'])] : [],
    );
    for (const [n, { allowed, error }] of tallies.entries())
      console.log(`     replica ${n}: ${allowed} allowed, ${error} refused or lost`);
    for (const [n, url] of databaseUrls.entries()) {
      const rows = await recorded(url);
      const missing = forwarded.filter((name) => !rows.has(name));
      check(missing.length === 0, `node ${n} has the audit rows of all ${forwarded.length} calls that reached the target`);
    }
    check(!forwarded.includes('load-dead'), 'none of the refused ones reached it');
  } finally {
    await upstream.stop();
  }
}

/** Freezes a node until the others continue without it. When it continues, it does not know yet that it was excluded. */
async function freezeAndThaw(cluster: Cluster, urls: readonly string[], admin: string): Promise<void> {
  const upstream = await startRecording(byMethod({ 'tools/call': () => ({ content: [] }) }));
  try {
    const [first = '', , last = ''] = urls;
    const asAdmin = <T>(method: string, path: string, body: object) => rest<T>(first, method, path, { token: admin, body });
    await asAdmin('POST', '/api/targets', { name: 'frozen', transport: 'streamable-http', url: upstream.url });
    const { body: policy } = await asAdmin<{ id: string }>('POST', '/api/policies', {
      name: 'frozen',
      resource_type: 'tool',
      resource_pattern: '^frozen$',
      effect: 'allow',
      priority: 5,
      subjects: [{ subject_type: 'everyone' }],
    });
    const { body: made } = await asAdmin<{ token: string }>('POST', '/api/auth/tokens', { name: 'frozen' });
    const mcp = `${last}/mcp/frozen`;
    const session = await openSession(mcp, made.token);
    const ask = () => callOnce(mcp, made.token, session, 'frozen', 'frozen');
    check((await ask()) === 'allowed', 'a call is allowed at the third replica');

    cluster.nodes[2]?.freeze();
    let revoked = false;
    for (let tried = 0; tried < 20 && !revoked; tried++) {
      revoked = (await asAdmin('PUT', `/api/policies/${policy.id}`, { enabled: false })).status === 200;
    }
    check(revoked, 'its node is frozen, and the policy disabled');
    const before = upstream.received.length;
    const answers = Array.from({ length: 4 }, ask);
    await sleep(100);
    cluster.nodes[2]?.thaw();
    const tally = { allowed: 0, denied: 0, error: 0 };
    for (const answer of await Promise.all(answers)) tally[answer]++;
    const deadline = performance.now() + BACK_MS;
    while (tally.denied === 0 && performance.now() < deadline) tally[await ask()]++;
    check(
      tally.allowed === 0 && upstream.received.length === before,
      `none of the calls before and after it thaws is allowed (${tally.error} refused)`,
    );
    check(tally.denied > 0, 'its gateway decides again, without a restart');
  } finally {
    await upstream.stop();
  }
}

/**
 * Kills two of three nodes. The last one cannot know what the others commit, so it must refuse as soon as it notices that it is alone.
 * Until then the others commit nothing.
 */
async function leaveAlone(cluster: Cluster, [first = '']: readonly string[], admin: string): Promise<void> {
  await Promise.all([cluster.nodes[1]?.kill(), cluster.nodes[2]?.kill()]);
  const began = performance.now();
  let status = 0;
  while (status !== 503 && performance.now() < began + 2 * ANSWER_MS) {
    ({ status } = await rest(first, 'GET', '/api/users', { token: admin }));
  }
  check(
    status === 503,
    `a node without the others: its gateway answers ${status} after ${((performance.now() - began) / 1_000).toFixed(1)} s`,
  );
}

async function main(guardian: Guardian): Promise<void> {
  const began = performance.now();
  const cluster = kind === 'galera' ? await startGalera(guardian) : await startGroupReplication(guardian, console.log);
  console.log(
    `     ${kind} of ${cluster.nodes.length} nodes, ${cluster.version}, up in ${((performance.now() - began) / 1_000).toFixed(1)} s`,
  );
  const databaseUrls = await cluster.createDatabase();

  const replicas = await startReplicas(guardian, databaseUrls, true);
  const urls = replicas.map(({ url }) => url);
  const admin = await registrations(urls);
  const score = await amongOthers(databaseUrls, () => newEnemy({ urls, admin, rounds }));
  console.log(`     ${scoreLine(score)}`);
  check(score.stale === 0, 'no stale allow');
  check(score.errors === 0 && score.traffic.error === 0, 'no errors');
  check(score.lateAllows === 0, 'nothing granted was late');
  await oldPasswords(urls);

  const uncausal = await startReplicas(guardian, databaseUrls, false);
  const weaker = await amongOthers(databaseUrls, () => newEnemy({ urls: uncausal.map(({ url }) => url), admin, rounds }));
  console.log(`     ${scoreLine(weaker)}`);
  check(weaker.stale > 0, 'without what the gateway sets on its connections there are stale allows');
  await stop(uncausal);

  await killAndReturn(cluster, databaseUrls, urls, admin);
  await freezeAndThaw(cluster, urls, admin);
  // They end with the guardian: nothing answers them any more.
  await leaveAlone(cluster, urls, admin);
}

const guardian = createGuardian();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) {
  process.on(signal, () => void guardian.close().then(() => process.exit(1)));
}
try {
  await main(guardian);
} catch (error) {
  console.error(error);
  failures.push('it did not come to its end');
} finally {
  await guardian.close();
}
console.log(failures.length === 0 ? 'all held' : `did not hold: ${failures.join('; ')}`);
process.exitCode = failures.length === 0 ? 0 : 1;
