/** What strangers can send at once, beside the requests of a user. The order of the answers counts, and not their time. */
import { once } from 'node:events';
import { IncomingMessage, ServerResponse } from 'node:http';
import { connect, Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { beginUnknown, endingHeads, packetInTurn } from '../../../src/http/limits/strangers.ts';
import { person, startGateway } from '../../support/gateway.ts';
import { registration, startProvider } from '../../support/provider.ts';

const STRANGERS = 300;
const SENDER = { sender: '192.0.2.1', isStranger: true, isBody: false, isHealth: false };
const CALLS = 10;
const HEAD = 'GET / HTTP/1.1\r\n\r\n';
const refuse = (): void => {
  throw new Error('refused');
};

const FLOODS: Readonly<Record<string, string>> = {
  'unknown endpoints': 'GET /mcp/NO HTTP/1.1',
  'the authorization server': 'GET /oauth/authorize?client_id=unknown&response_type=code HTTP/1.1',
  'sign-ins with a provider': 'GET /signin/with/company HTTP/1.1\r\nsec-fetch-site: same-origin',
  directories: `GET /scim/v2/company/Users HTTP/1.1\r\nauthorization: Bearer portcullis_scim_${'A'.repeat(43)}`,
};

async function open(t: ExecutionContext, port: string): Promise<Socket> {
  const socket = connect(Number(port), '127.0.0.1');
  t.teardown(() => void socket.destroy());
  await once(socket, 'connect');
  return socket;
}

for (const [what, head] of Object.entries(FLOODS))
  test.serial(`requests of many strangers to ${what} do not all begin before those of a user`, async (t) => {
    const many = '1000000';
    const gateway = await startGateway(t, null, {
      TRUST_PROXY: 'true',
      FIRST_ADMIN: 'open',
      LOGIN_RATE_LIMIT: many,
      OAUTH_RATE_LIMIT: many,
    });
    const admin = await person(gateway, 'admin@example.com');
    await gateway.rest(201, 'POST', '/api/providers', { token: admin.token, body: registration(await startProvider(t)) });
    await gateway.gateway.loadLibraries();
    const { host, port } = new URL(gateway.url);

    const [user, ...strangers] = await Promise.all(Array.from({ length: STRANGERS + 1 }, () => open(t, port)));
    if (user === undefined) throw new Error('there is no connection');
    let answered = 0;
    strangers.forEach((socket, i) => {
      socket.once('data', () => answered++);
      socket.write(`${head}\r\nhost: ${host}\r\nx-forwarded-for: 192.0.${2 + (i >> 8)}.${i & 255}\r\n\r\n`);
    });
    for (let i = 0; i < CALLS; i++) {
      user.write(`GET /api/auth/me HTTP/1.1\r\nhost: ${host}\r\nauthorization: Bearer ${admin.token}\r\n\r\n`);
      const [data] = (await once(user, 'data')) as [Buffer];
      t.is(data.toString('latin1', 9, 12), '200');
    }
    t.true(answered < STRANGERS / 2, `${answered} of ${STRANGERS} strangers were answered first`);
  });

/** Requests whose bodies are held back, and then sent together. */
const HELD: Readonly<Record<string, (token: string) => readonly string[]>> = {
  'sign-ins of strangers': () => [
    'POST /api/auth/login HTTP/1.1\r\ncontent-type: application/json',
    '{"email":"","password":""}',
  ],
  'calls of one user': (token) => [
    `POST /mcp/none HTTP/1.1\r\ncontent-type: application/json\r\naccept: application/json, text/event-stream\r\nauthorization: Bearer ${token}`,
    '{"jsonrpc":"2.0","id":1,"method":"ping"}',
  ],
};

for (const [what, request] of Object.entries(HELD))
  test.serial(`${what} whose bodies arrive together do not all begin before the requests of another user`, async (t) => {
    const gateway = await startGateway(t, null, { TRUST_PROXY: 'true', FIRST_ADMIN: 'open' });
    const admin = await person(gateway, 'admin@example.com');
    const { token } = await person(gateway, 'user@example.com');
    // From now on its requests are not those of a stranger.
    await gateway.rest(200, 'GET', '/api/auth/me', { token });
    const [head = '', body = ''] = request(token);
    const { host, port } = new URL(gateway.url);
    const [user, ...others] = await Promise.all(Array.from({ length: STRANGERS + 1 }, () => open(t, port)));
    if (user === undefined) throw new Error('there is no connection');
    const call = async (): Promise<void> => {
      user.write(`GET /api/auth/me HTTP/1.1\r\nhost: ${host}\r\nauthorization: Bearer ${admin.token}\r\n\r\n`);
      const [data] = (await once(user, 'data')) as [Buffer];
      t.is(data.toString('latin1', 9, 12), '200');
    };
    let answered = 0;
    others.forEach((socket, i) => {
      socket.once('data', () => answered++);
      const from = `x-forwarded-for: 192.0.${2 + (i >> 8)}.${i & 255}`;
      socket.write(`${head}\r\nhost: ${host}\r\n${from}\r\ncontent-length: ${body.length}\r\n\r\n`);
    });
    // Meanwhile the requests begin.
    for (let i = 0; i < 10 * CALLS; i++) await call();
    t.is(answered, 0);
    for (const socket of others) socket.write(body);
    await call();
    t.true(answered < STRANGERS / 2, `${answered} of ${STRANGERS} others were answered first`);
  });

test.serial('health checks do not wait behind other requests from their address', async (t) => {
  const gateway = await startGateway(t, null, { API_RATE_LIMIT: '1000000' });
  const { host, port } = new URL(gateway.url);
  const others = await Promise.all(Array.from({ length: STRANGERS }, () => open(t, port)));
  const balancer = await open(t, port);
  let answered = 0;
  for (const socket of others) {
    socket.once('data', () => answered++);
    socket.write(`GET /nothing HTTP/1.1\r\nhost: ${host}\r\n\r\n`);
  }
  balancer.write(`GET /health/live HTTP/1.1\r\nhost: ${host}\r\n\r\n`);
  const [data] = (await once(balancer, 'data')) as [Buffer];
  t.is(data.toString('latin1', 9, 12), '200');
  t.true(answered < STRANGERS / 2, `${answered} of ${STRANGERS} others were answered first`);
});

test.serial(
  'a request of a stranger has its turn with its packet, and one behind it in the packet has one of its own',
  async (t) => {
    const socket = new Socket();
    const req = new IncomingMessage(socket);
    const begun: number[] = [];
    const begin = (n: number): Promise<void> => beginUnknown(req, new ServerResponse(req), '192.0.2.1', () => void begun.push(n));
    await new Promise<void>((handOver) =>
      packetInTurn(socket, Buffer.from(HEAD), { known: SENDER, look: () => SENDER, handOver, refuse }),
    );
    const [first, second] = [begin(1), begin(2)];
    t.deepEqual(begun, [1]);
    await Promise.all([first, second]);
    t.deepEqual(begun, [1, 2]);
  },
);

test.serial('heads that are only begun take no turns of strangers, and all of a head belongs to who began it', async (t) => {
  const socket = new Socket();
  const looked: string[] = [];
  let handed = 0;
  const hand = (text: string): Promise<void> =>
    new Promise((done) => {
      const look = (): typeof SENDER => {
        looked.push(text);
        return SENDER;
      };
      const handOver = (): void => {
        handed++;
        done();
      };
      packetInTurn(socket, Buffer.from(text), { known: null, look, handOver, refuse });
    });
  const first = hand('GET / HTTP/1.1\r\n');
  t.is(handed, 1, 'at once');
  await first;
  await hand('X-Forwarded-For: 192.0.2.2\r\n\r\n');
  await hand('GET /second HTTP/1.1\r\n\r\n');
  await hand('GET /third HTTP/1.1\r\nHost: x\r\n\r');
  await hand('\n');
  endingHeads(() => undefined)(new IncomingMessage(socket), new ServerResponse(new IncomingMessage(socket)));
  await hand('GET /fourth HTTP/1.1\r\n\r\n');
  t.deepEqual(looked, [
    'GET / HTTP/1.1\r\n',
    'GET /second HTTP/1.1\r\n\r\n',
    'GET /third HTTP/1.1\r\nHost: x\r\n\r',
    'GET /fourth HTTP/1.1\r\n\r\n',
  ]);
});

test.serial('so many packets of an address wait, and no more: behind a proxy nothing else limits them', async (t) => {
  let refused = 0;
  const count = (): void => void refused++;
  const handed = Array.from(
    { length: 1_100 },
    () =>
      new Promise<void>((handOver) => {
        const done = (): void => {
          count();
          handOver();
        };
        packetInTurn(new Socket(), Buffer.from(HEAD), { known: SENDER, look: () => SENDER, handOver, refuse: done });
      }),
  );
  t.true(refused >= 1_100 - 1_024 - 8 && refused < 100, `${refused}`);
  await Promise.all(handed);
});
