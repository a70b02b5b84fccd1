/**
 * A database that fails under load, in every way in which databases fail: nothing has an effect without its record, every
 * caller gets an answer in limited time, and the gateway recovers without a restart.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { type Connection, createConnection } from 'mysql2/promise';
import { readConfig } from '../../src/config/config.ts';
import { createChanges, makeCounter } from '../../src/db/changes.ts';
import { openDatabase } from '../../src/db/database.ts';
import { enginesFor } from '../support/databases/each-engine.ts';
import type { EngineName } from '../support/databases/engines.ts';
import { createGuardian, type Guardian, lastLines } from '../support/databases/guardian.ts';
import { endConnections, type OwnDatabase, type OwnServer, startOwn, withAdmin } from '../support/databases/own.ts';
import { rest } from '../support/gateway.ts';
import { until } from '../support/listener.ts';
import { isServed, type Load, PERSONAL, startLoad } from '../support/load.ts';
import { smallDisk } from '../support/small-disk.ts';

/** The gate waits 5 s, a record 10 s and a statement 15 s, a connection for it 5 s; the rest is for a busy machine. */
const BOUND_MS = 25_000;
/** How long the fault lasts after the first refusal, in milliseconds. */
const HOLD_MS = Number(process.env['PORTCULLIS_TEST_FAULT_MS'] ?? 500);
/** The time that a gateway may take for its shutdown after its open requests have ended. */
const RELEASE_MS = 8_000;
const BUSY_MS = 6_000;
const CALLERS = 8;
const PAUSE_MS = 10;
const SQLITE_MEGABYTES = 24;
const MOST_CONNECTIONS = 20;

interface Fault {
  strike(): Promise<void> | void;
  lift(): Promise<void> | void;
}

type Server = Exclude<EngineName, 'sqlite'>;
type MakeFault = (t: ExecutionContext, server: OwnServer, database: OwnDatabase) => Fault;

const guardians: Guardian[] = [];
const started = new Map<Server, Promise<OwnServer>>();
test.after.always(() => Promise.all(guardians.map((guardian) => guardian.close())));

function guarded(): Guardian {
  const guardian = createGuardian();
  guardians.push(guardian);
  return guardian;
}

function own(engine: Server): Promise<OwnServer> {
  const starting = started.get(engine) ?? startOwn(guarded(), engine);
  started.set(engine, starting);
  return starting;
}

/** The servers of this run. Faults are caused one after the other. */
function eachOwnServer(
  title: string,
  run: (t: ExecutionContext, server: OwnServer, database: OwnDatabase) => Promise<void>,
): void {
  for (const { name } of enginesFor(title)) {
    if (name === 'sqlite') continue;
    test.serial(`${title} [${name}]`, async (t) => {
      t.timeout(180_000 + 4 * HOLD_MS);
      const server = await own(name);
      await run(t, server, await server.createDatabase());
    });
  }
}

async function endures(t: ExecutionContext, load: Load, { strike, lift }: Fault): Promise<void> {
  const { child, url, output } = load.gateway;
  t.teardown(() => {
    if (!t.passed) t.log(lastLines(output(), 20));
  });
  const health = async (path: string): Promise<number> => (await rest(url, 'GET', `/health/${path}`)).status;
  const body = { email: 'nobody@example.com', password: 'a long passphrase' };
  const login = async (): Promise<number> => (await rest(url, 'POST', '/api/auth/login', { body })).status;
  load.begin(CALLERS, PAUSE_MS);
  await load.next(100, 'allowed', 'denied', 'listed');
  await load.next(2, 'changed');
  const struck = performance.now();
  await strike();
  const bounded = async (what: string, asked: Promise<number>, ...expected: number[]): Promise<void> => {
    const askedAt = performance.now();
    const status = await asked;
    t.true(expected.includes(status), `${what}: ${status}`);
    t.true(performance.now() - askedAt < BOUND_MS, `${what} in bounded time`);
  };
  // A database that can be read can refuse a login, too.
  const loggingIn = bounded('a login', login(), 401, 503);
  await Promise.all([
    load.next(4, 'refused'),
    bounded('liveness', health('live'), 200),
    until('it says that it is not ready', async () => (await health('ready')) === 503, BOUND_MS),
  ]);
  await sleep(HOLD_MS);
  const lifted = performance.now();
  await lift();
  await load.next(100, 'allowed', 'denied', 'listed');
  await load.next(2, 'changed');
  const recovered = performance.now();
  await until('it says that it is ready', async () => (await health('ready')) === 200);
  await Promise.all([load.halt(), loggingIn]);
  await until('what became of each call is recorded', async () => (await load.unfinished()) === 0);

  t.is(child.exitCode, null, 'it is the same process');
  t.false(output().includes(PERSONAL), 'what the database was asked is not in the log');
  const ofFault = load.replies.filter(({ askedAt, tookMs }) => askedAt + tookMs > struck && askedAt < lifted);
  t.log(
    `${ofFault.length} replies in ${(lifted - struck).toFixed(0)} ms of fault; well ${(recovered - lifted).toFixed(0)} ms later`,
  );
  t.deepEqual(
    load.replies.filter(({ kind }) => kind === 'other' || kind === 'broken').map(({ text }) => text),
    [],
    'nobody is told anything but that it is refused, and when to try again',
  );
  t.deepEqual(
    load.replies.filter(({ tookMs }) => tookMs > BOUND_MS),
    [],
    'in bounded time',
  );
  t.true(load.replies.some((reply) => reply.askedAt > lifted && isServed(reply)));
  await load.check(t);
}

function faultOnServers(title: string, make: MakeFault): void {
  eachOwnServer(
    `${title}: requests are refused in limited time, nothing is lost, and the gateway recovers without a restart`,
    async (t, server, database) => {
      const fault = make(t, server, database);
      // The next test needs the server, also if this one fails.
      t.teardown(() => fault.lift());
      const load = await startLoad(t, { DATABASE_URL: database.url });
      await endures(t, load, fault);
    },
  );
}

faultOnServers('frozen', (_t, server) => ({ strike: server.freeze, lift: server.thaw }));

async function startAgain(server: OwnServer): Promise<void> {
  if (server.hasEnded()) await server.start();
}

faultOnServers('killed, and started again', (_t, server) => ({ strike: server.kill, lift: () => startAgain(server) }));

faultOnServers('read-only', (_t, server) => ({
  strike: () => withAdmin(server, async (admin) => void (await admin.query('set global read_only = 1'))),
  lift: () => withAdmin(server, async (admin) => void (await admin.query('set global read_only = 0'))),
}));

eachOwnServer(
  'after a failover, a connection to the old primary, which is read-only, is not used again',
  async (t, server, { url }) => {
    const database = await openDatabase(readConfig({ DATABASE_URL: url }).database, makeCounter);
    t.teardown(() => database.close());
    const changes = await createChanges(database, Date.now);
    const idOf = async (pool: 'knex' | 'reader'): Promise<number> =>
      (await database[pool].raw('select connection_id() as id'))[0][0].id;
    const setReadOnly = (value: 0 | 1) => withAdmin(server, (admin) => admin.query('set global read_only = ?', [value]));
    t.teardown(() => setReadOnly(0));
    const before = [await idOf('knex'), await idOf('reader')] as const;
    await setReadOnly(1);
    await t.throwsAsync(changes.position(), { message: /read-only/ });
    await t.throwsAsync(database.probe(), { message: /read.only/ });
    await setReadOnly(0);
    t.not(await idOf('knex'), before[0]);
    t.not(await idOf('reader'), before[1]);
  },
);

/** Other clients take all connections of the server, and the gateway loses its own. */
function crowded(
  limit: (admin: Connection, user: string, connections: number) => Promise<unknown>,
  isOwnUser: boolean,
): MakeFault {
  return (_t, server, { url, user }) => {
    const others: Connection[] = [];
    // The connection of the administrator counts, too. If it were closed, the gateway could use its place.
    let admin: Connection | undefined;
    const take = async (theirs: string): Promise<boolean> => {
      const other = await createConnection(theirs).catch(() => null);
      if (other !== null) others.push(other);
      return other !== null;
    };
    return {
      async strike() {
        const theirs = isOwnUser ? url : (await server.createDatabase()).url;
        const asking = await createConnection(server.url);
        admin = asking;
        await limit(asking, user, MOST_CONNECTIONS);
        // One that is being made has no name yet.
        let looks = 0;
        await until(
          'the gateway has no connection',
          async () => {
            while (await take(theirs)) looks = 0;
            const kept = new Set(others.map(({ threadId }) => threadId));
            looks = (await endConnections(asking, user, kept)) === 0 ? looks + 1 : 0;
            return looks === 3;
          },
          BOUND_MS,
        );
      },
      async lift() {
        for (const other of others) other.destroy();
        if (admin === undefined) return;
        await limit(admin, user, 0);
        admin.destroy();
        admin = undefined;
      },
    };
  };
}

faultOnServers(
  'out of connections',
  crowded((admin, _user, connections) => admin.query(`set global max_connections = ${connections || 500}`), false),
);

faultOnServers(
  'out of connections of its user',
  crowded((admin, user, connections) => admin.query(`alter user '${user}'@'%' with max_user_connections ${connections}`), true),
);

function noDisk(t: ExecutionContext, reason: string): void {
  t.log(`NOT RUN, NOTHING IS SHOWN HERE: ${reason}`);
  if (process.env['CI'] === 'true') t.fail(`CI must fill a disk: ${reason}`);
  else t.pass();
}

eachOwnServer(
  'disk full: requests are refused in limited time, nothing is lost, and the gateway recovers without a restart',
  async (t, server, { url }) => {
    const { disk } = server;
    if ('missing' in disk) return noDisk(t, disk.missing);
    let isOver = false;
    /** MariaDB may end itself on a full disk, even a while after it was freed. Who runs it starts it again. */
    async function supervise(): Promise<void> {
      for (; !isOver; await sleep(200)) await startAgain(server);
    }
    let supervised: Promise<void> | undefined;
    const lift = async (): Promise<void> => {
      disk.free();
      await startAgain(server);
      supervised ??= supervise();
    };
    t.teardown(async () => {
      isOver = true;
      await supervised;
      disk.free();
      await startAgain(server);
    });
    const load = await startLoad(t, { DATABASE_URL: url });
    await endures(t, load, { strike: disk.fill, lift });
  },
);

test.serial(
  'disk full: requests are refused in limited time, nothing is lost, and the gateway recovers without a restart [sqlite]',
  async (t) => {
    const disk = await smallDisk(guarded(), SQLITE_MEGABYTES).catch((error: Error) => error.message);
    if (typeof disk === 'string') return noDisk(t, disk);
    const data = `${disk.folder}/data`;
    const load = await startLoad(t, { DATA_DIR: data, DATABASE_URL: `sqlite:${data}/portcullis.db` }, disk.within);
    await endures(t, load, { strike: disk.fill, lift: disk.free });
    const said = load.gateway
      .output()
      .split('\n')
      .filter((line) => line.includes('SQLITE_FULL'));
    t.is(said.length, 1, 'one line a minute, and not one for each refused request');
    t.true(said[0]?.includes('"disk_full":true'));
  },
);

eachOwnServer('a gateway with a frozen database shuts down in limited time, and nothing is lost', async (t, server, { url }) => {
  const drainMs = 500;
  const load = await startLoad(t, { DATABASE_URL: url, DRAIN_MS: String(drainMs) });
  t.teardown(server.thaw);
  load.begin(CALLERS, 0);
  await load.next(200, 'allowed', 'denied', 'listed');
  server.freeze();
  const { child, ended, output } = load.gateway;
  const asked = performance.now();
  child.kill('SIGTERM');
  t.is(await ended, 1);
  t.true(performance.now() - asked < drainMs + RELEASE_MS + BUSY_MS, `${performance.now() - asked} ms`);
  t.regex(output(), /portcullis: shutdown failed: .* the database did not confirm \d+ decisions, which took no effect/);
  await load.halt();
  server.thaw();
  await load.restart();
  await load.check(t);
});
