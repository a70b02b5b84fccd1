/** How replicas find each other, and why a client gains nothing by pretending to be a replica. */
import { randomUUID } from 'node:crypto';
import { createServer, request as httpRequest, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { createVault } from '../../src/auth/vault.ts';
import { createLog } from '../../src/base/log.ts';
import { readConfig } from '../../src/config/config.ts';
import { openDatabase } from '../../src/db/database.ts';
import { createGateway } from '../../src/gateway.ts';
import { createPeers, type Peers } from '../../src/replicas/peers.ts';
import { createPresence } from '../../src/replicas/presence.ts';
import { replicaStore } from '../../src/replicas/replica-store.ts';
import { cuttable } from '../support/cuttable.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachServer } from '../support/databases/each-engine.ts';
import { startGateway } from '../support/gateway.ts';
import { until } from '../support/listener.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { dataDir } from '../support/process.ts';
import { world } from '../support/world.ts';

const MASTER_KEY = Buffer.alloc(32, 7);
const silent = createLog('silent');
const STATE = { sequence: 3, revision: 2, engine_hash: 'e'.repeat(64) };

eachServer(test.serial, 'a replica is live while it announces itself, by the clock of the database server', async (t, at) => {
  const store = replicaStore((await openTestDatabase(t, at)).knex);
  const id = randomUUID();
  t.is(await store.find(id), null);
  t.false(await store.seen(id, STATE));
  await store.insert(id, 'sealed', STATE);
  const row = await store.find(id);
  t.is(row?.address, 'sealed');
  t.true(row !== null && row.unseen_ms >= 0 && row.unseen_ms < 5_000);
  t.true(await store.seen(id, STATE));
  await store.deleteUnseenFor(60_000);
  t.truthy(await store.find(id));
  await new Promise((resolve) => setTimeout(resolve, 20));
  await store.deleteUnseenFor(5);
  t.is(await store.find(id), null);
});

eachServer(test.serial, 'requests go only to addresses that replicas have announced', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const vault = createVault(MASTER_KEY);
  const [here, there] = [randomUUID(), randomUUID()];
  const parts = { database, vault, state: async () => STATE, now: Date.now, log: silent };
  const presence = await createPresence({ ...parts, id: here, address: 'http://here' });
  const other = await createPresence({ ...parts, id: there, address: 'http://there' });
  t.teardown(async () => {
    await presence.stop();
    await other.stop();
  });
  t.is(await presence.addressOf(there), 'http://there');
  t.deepEqual(
    (await presence.live()).map(({ id, sequence }) => [id, sequence]).sort(),
    [here, there].sort().map((id) => [id, 3]),
  );
  t.is(await presence.addressOf(randomUUID()), null);
  const rows = database.knex('replicas');
  const { address } = (await rows.clone().where({ id: there }).first<{ address: string }>('address')) ?? {};
  t.false(address?.includes('there'));
  const own = (await rows.clone().where({ id: here }).first<{ address: string }>('address'))?.address;
  for (const changed of [
    'http://evil',
    own,
    createVault(Buffer.alloc(32, 8)).seal(`replica:${there}`, Buffer.from('http://evil')),
  ]) {
    await rows.clone().where({ id: there }).update({ address: changed });
    t.is(await presence.addressOf(there), null);
  }
  await rows.clone().where({ id: there }).update({ address });
  await other.leave();
  t.is(await presence.addressOf(there), null, 'leaving');
  t.true(await presence.isSeen(there), 'it still answers the requests that it has');
  await rows.clone().where({ id: there }).update({ address, seen_at: 0 });
  t.is(await presence.addressOf(there), null, 'silent for too long');
  t.false(await presence.isSeen(there));
  t.deepEqual(
    (await presence.live()).map(({ id }) => id),
    [here],
  );
  await other.stop();
  t.is(await rows.clone().where({ id: there }).first(), undefined, 'a replica that stops removes its row');
});

eachServer(
  test.serial,
  'a first announcement that takes longer than replicas are remembered does not end the start',
  async (t, at) => {
    const { now } = performance;
    let passed = 0;
    performance.now = () => now.call(performance) + passed;
    t.teardown(() => {
      performance.now = now;
    });
    const config = readConfig({ DATABASE_URL: at.url, MASTER_KEY: MASTER_KEY.toString('base64'), DATA_DIR: dataDir(t) });
    const gateway = await createGateway(config, silent, async (...given) => {
      const database = await openDatabase(...given);
      database.knex.on('query', ({ sql }: { sql: string }) => {
        if (/^insert into .replicas/.test(sql)) passed += 20_000;
      });
      return database;
    });
    t.true(passed > 0, 'the announcement was slow');
    await gateway.close();
  },
);

interface Exchange {
  readonly peers: Peers;
  /** Sends a request through `forward` and returns what arrived. */
  pass(changes?: { address?: string }): Promise<IncomingMessage | undefined>;
  /** Returns whether a request with these parts counts as one of a replica. */
  judge(changes: { url?: string; method?: string; authorization?: string; peer?: string | string[] }): boolean;
  now: number;
}

const ID = '01a1fe21-97ac-7680-92df-61af8115494e';

async function exchange(t: ExecutionContext): Promise<Exchange> {
  const state = { now: 1_800_000_000_000 };
  const peers = createPeers({ vault: createVault(MASTER_KEY), now: () => state.now, log: silent });
  t.teardown(() => peers.close());
  let arrived: IncomingMessage | undefined;
  const holder = createServer((req, res) => {
    arrived = req;
    res.writeHead(200, { 'x-of-holder': 'yes', 'keep-alive': 'timeout=1' }).end('answer');
  });
  const front = createServer((req, res) => {
    const { port } = holder.address() as AddressInfo;
    const peer = { id: ID, address: `http://127.0.0.1:${port}` };
    void peers.forward(peer, req, Buffer.from('{}'), res, new AbortController().signal);
  });
  for (const server of [holder, front]) {
    await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
    t.teardown(() => {
      server.closeAllConnections();
      server.close();
    });
  }
  return Object.assign(state, {
    peers,
    async pass() {
      const { port } = front.address() as AddressInfo;
      const headers = {
        authorization: 'Bearer token',
        origin: 'http://page',
        'portcullis-peer': 'a forgery',
        'x-other': 'goes on',
        'content-type': 'application/json',
      };
      const answer = await new Promise<IncomingMessage>((resolve) => {
        httpRequest({ port, host: '127.0.0.1', method: 'POST', path: '/mcp/t?x=1', headers }, resolve).end('{}');
      });
      answer.resume();
      t.is(answer.headers['x-of-holder'], 'yes');
      return arrived;
    },
    judge({ url = '/mcp/t?x=1', method = 'POST', authorization = 'Bearer token', peer }: Parameters<Exchange['judge']>[0]) {
      const headers = { authorization, ...(peer === undefined ? {} : { 'portcullis-peer': peer }) };
      return peers.isFromPeer({ url, method, headers } as unknown as IncomingMessage);
    },
  });
}

test.serial('a forwarded request is recognised by its signature, and only for that request', async (t) => {
  const e = await exchange(t);
  const arrived = await e.pass();
  t.is(arrived?.headers['x-other'], 'goes on');
  t.is(arrived?.headers.origin, undefined);
  t.is(arrived?.headers.authorization, 'Bearer token');
  const peer = String(arrived?.headers['portcullis-peer']);
  t.true(e.judge({ peer }));
  const [time = '', mac = ''] = peer.split('.');
  for (const [what, changes] of Object.entries({
    'a different path': { peer, url: '/mcp/u?x=1' },
    'a different query': { peer, url: '/mcp/t' },
    'a different method': { peer, method: 'DELETE' },
    'a different token': { peer, authorization: 'Bearer other' },
    'no token': { peer, authorization: '' },
    'a different time': { peer: [Number(time) + 1, mac].join('.') },
    'a signature that is cut off': { peer: peer.slice(0, -1) },
    'a signature that is too long': { peer: `${peer}A` },
    'two signatures': { peer: `${peer}, ${peer}` },
    'no signature': {},
    'an empty signature': { peer: '' },
  })) {
    t.false(e.judge(changes), what);
  }
  e.now += 31_000;
  t.false(e.judge({ peer }), 'an old signature');
  e.now -= 62_000;
  t.false(e.judge({ peer }), 'a signature of the future');
  const foreign = createPeers({ vault: createVault(Buffer.alloc(32, 8)), now: () => e.now + 31_000, log: silent });
  t.teardown(() => foreign.close());
  const again = { url: '/mcp/t?x=1', method: 'POST', headers: { authorization: 'Bearer token', 'portcullis-peer': peer } };
  t.false(foreign.isFromPeer(again as unknown as IncomingMessage), 'a signature under a different master key');
});

test.serial('a peer that cannot be reached, a different replica and a peer that fails get different results', async (t) => {
  const peers = createPeers({ vault: createVault(MASTER_KEY), now: Date.now, log: silent });
  t.teardown(() => peers.close());
  let behave: (res: import('node:http').ServerResponse) => void = () => undefined;
  const holder = createServer((_, res) => behave(res));
  await new Promise<void>((resolve) => holder.listen(0, '127.0.0.1', resolve));
  const { port } = holder.address() as AddressInfo;
  t.teardown(() => {
    holder.closeAllConnections();
    holder.close();
  });
  const gone = new AbortController();
  const results: string[] = [];
  const passed = async (address: string): Promise<string> => {
    const front = createServer((req, res) => {
      void peers.forward({ id: ID, address }, req, Buffer.from('{}'), res, gone.signal).then((result) => {
        results.push(result);
        if (result !== 'answered') res.end();
      });
    });
    await new Promise<void>((resolve) => front.listen(0, '127.0.0.1', resolve));
    await fetch(`http://127.0.0.1:${(front.address() as AddressInfo).port}/mcp`, { method: 'POST', body: '{}' }).catch(
      () => undefined,
    );
    front.closeAllConnections();
    front.close();
    return results.at(-1) ?? 'none';
  };
  const there = `http://127.0.0.1:${port}`;
  const closed = createServer();
  await new Promise<void>((resolve) => closed.listen(0, '127.0.0.1', resolve));
  const nobody = `http://127.0.0.1:${(closed.address() as AddressInfo).port}`;
  await new Promise((resolve) => closed.close(resolve));
  t.is(await passed(nobody), 'unreachable');
  behave = (res) => void res.writeHead(421).end();
  t.is(await passed(there), 'misdirected');
  behave = (res) => void res.destroy();
  t.is(await passed(there), 'broken');
  behave = () => void setTimeout(() => gone.abort(), 20);
  t.is(await passed(there), 'broken', 'it stands still');
});

const forgery = (mac = 'A'.repeat(43)): string => `${Date.now()}.${mac}`;

test.serial('a request that only claims to come from a replica is checked like any other', async (t) => {
  const w = await world(t, null, null, { MCP_RATE_LIMIT: '5' });
  await w.allow({ name: 'all' });
  const { port } = new URL(w.gateway.url);
  const send = (headers: Record<string, string>) =>
    new Promise<number>((resolve, reject) => {
      const req = httpRequest(
        {
          port,
          host: '127.0.0.1',
          method: 'POST',
          path: '/mcp/everything',
          headers: {
            authorization: `Bearer ${w.token}`,
            'content-type': 'application/json',
            accept: 'application/json, text/event-stream',
            'portcullis-peer': forgery(),
            ...headers,
          },
        },
        (res) => {
          res.resume();
          resolve(res.statusCode ?? 0);
        },
      );
      req.on('error', reject);
      req.end('{}');
    });
  t.is(await send({ host: 'evil.example' }), 403);
  t.is(await send({ origin: 'https://evil.example' }), 403);
  t.is(await send({ authorization: 'Bearer nonsense' }), 401);
  const statuses = [];
  for (let n = 0; n < 10; n++) statuses.push(await send({}));
  t.true(statuses.includes(429), String(statuses));
});

eachServer(
  test.serial,
  'a forwarded request that reaches the wrong replica is refused, and the session continues',
  async (t, at) => {
    const w = await world(t, at.url);
    await w.allow({ name: 'all' });
    const session = await openSession(`${w.gateway.url}/mcp`, w.token);
    // As with a wrong REPLICA_URL: the owner of the session announces the address of the other replica.
    const other = await startGateway(t, at.url);
    const config = readConfig({ DATABASE_URL: at.url });
    const database = await openDatabase(config.database, async () => undefined);
    t.teardown(() => database.close());
    const vault = createVault(MASTER_KEY);
    const { id } = (await database.knex('replicas').orderBy('started_at').orderBy('id').first<{ id: string }>('id')) ?? {};
    await database
      .knex('replicas')
      .where({ id })
      .update({ address: vault.seal(`replica:${id}`, Buffer.from(other.url)) });
    const echo = await post(`${other.url}/mcp`, w.token, call('everything__echo', { message: 'x' }), {
      'mcp-session-id': session,
    });
    t.truthy(echo.message?.result, JSON.stringify(echo));
    const row = await database.knex('sessions').first<{ holder: string }>('holder');
    t.not(row?.holder, id);
  },
);

for (const trouble of ['cut', 'freeze'] as const) {
  eachServer(test.serial, `database ${trouble}: requests of a held session are refused in bounded time`, async (t, at) => {
    const way = await cuttable(t, at.url);
    const w = await world(t, way.url);
    await w.allow({ name: 'all' });
    const mcp = `${w.gateway.url}/mcp`;
    const session = await openSession(mcp, w.token);
    const echo = () => post(mcp, w.token, call('everything__echo', { message: 'x' }), { 'mcp-session-id': session });
    t.truthy((await echo()).message?.result);
    way[trouble]();
    const began = performance.now();
    const refused = await echo();
    t.is(refused.status, 503);
    t.truthy(refused.headers.get('retry-after'));
    t.true(performance.now() - began < 15_000);
    way.mend();
    await until('all is well again', async () => (await echo()).message?.result !== undefined);
  });
}
