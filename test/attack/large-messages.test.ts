/** Large messages of one caller or target are refused before they are read, are read in turns, and do not delay others. */
import { connect, type Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import { DEFAULT_LIMITS, type McpLimits } from '../../src/mcp/limits/limits.ts';
import { routed, startGateway, type TestGateway } from '../mcp/gateway.ts';
import { inSession, open, send } from '../mcp/raw.ts';
import { answerText, byMethod, type RecordingUpstream, type Script, startRecording } from '../support/upstreams/recording.ts';

interface World {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  readonly alice: string;
  readonly bob: string;
}

async function start(t: ExecutionContext, limits: Partial<McpLimits> = {}, script?: Script): Promise<World> {
  const upstream = await startRecording(script ?? byMethod({ 'tools/call': { content: [] } }));
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { alice: () => true, bob: () => true },
    limits,
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, upstream, alice: await open(gateway), bob: await open(gateway, { user: 'bob' }) };
}

const keys = (count: number): string => `{${Array.from({ length: count }, (_, i) => `"${i.toString(36)}":0`).join()}}`;
const toolCall = (args: string): string =>
  `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","arguments":${args}}}`;

/** A connection with a request whose body is not sent yet. */
function begin(gateway: TestGateway, length: string, session = 'none'): Socket {
  const socket = connect(Number(new URL(gateway.origin).port), '127.0.0.1');
  socket.setEncoding('latin1');
  socket.write(
    [
      'POST /mcp/t HTTP/1.1',
      'Host: 127.0.0.1',
      'Authorization: Bearer alice',
      'Connection: close',
      `Mcp-Session-Id: ${session}`,
      'Content-Type: application/json',
      length,
      '',
      '',
    ].join('\r\n'),
  );
  return socket;
}

async function rest(socket: Socket): Promise<string> {
  let text = '';
  for await (const chunk of socket) text += String(chunk);
  return text;
}

for (const [what, length] of [
  ['a large body', 'Content-Length: 4000000'],
  ['a body of unknown length', 'Transfer-Encoding: chunked'],
] as const) {
  test.serial(`a revoked token is refused before ${what} is read`, async (t) => {
    const { gateway } = await start(t);
    gateway.revoked.add('alice');
    const decided = gateway.decisions.length;
    // Not a byte of the body is ever sent.
    t.regex(await rest(begin(gateway, length)), /^HTTP\/1\.1 401 [\s\S]*\r\nConnection: close\r\n/i);
    t.is(gateway.decisions.length, decided);
  });

  test.serial(`a token that is revoked while ${what} arrives is refused after its last byte`, async (t) => {
    const { gateway, upstream, alice } = await start(t);
    const body = toolCall(keys(50_000));
    const isChunked = length.startsWith('Transfer');
    const socket = begin(gateway, isChunked ? length : `Content-Length: ${body.length}`, alice);
    const before = gateway.admissions;
    const seen = upstream.received.length;
    socket.write(isChunked ? `${(1000).toString(16)}\r\n${body.slice(0, 1000)}\r\n` : body.slice(0, 1000));
    while (gateway.admissions === before) await new Promise((resolve) => setImmediate(resolve));
    gateway.revoked.add('alice');
    const left = body.slice(1000);
    socket.write(isChunked ? `${left.length.toString(16)}\r\n${left}\r\n0\r\n\r\n` : left);
    t.regex(await rest(socket), /^HTTP\/1\.1 401 /);
    t.is(upstream.received.length, seen);
  });
}

test.serial('an ordinary call passes the gate once, one with a large body twice', async (t) => {
  const { gateway, alice } = await start(t);
  /** The least of a few calls: on a busy machine, a call waits so long that it is looked at again before it is sent. */
  const admissionsOf = async (args: string): Promise<number> => {
    let least = Number.POSITIVE_INFINITY;
    for (let i = 0; i < 5; i++) {
      const before = gateway.admissions;
      t.is((await send(gateway, inSession(alice, toolCall(args)))).status, 200);
      least = Math.min(least, gateway.admissions - before);
    }
    return least;
  };
  t.is(await admissionsOf('{}'), 1);
  t.is(await admissionsOf(keys(50_000)), 2);
});

test.serial('a client that sends its whole body before it reads still gets the refusal', async (t) => {
  const { gateway } = await start(t);
  gateway.revoked.add('alice');
  for (let i = 0; i < 5; i++) {
    const size = 8 * 1024 * 1024;
    const socket = begin(gateway, `Content-Length: ${size}`);
    // The client reads nothing before it has sent everything.
    socket.pause();
    const written = new Promise<void>((resolve, reject) => {
      socket.on('error', reject);
      socket.write('x'.repeat(size), () => resolve());
    });
    await written;
    t.regex(await rest(socket), /^HTTP\/1\.1 401 /);
  }
});

test.serial(
  'the bytes of bodies in flight are limited for each principal, and a slow sender above the limit is refused',
  async (t) => {
    const { gateway, bob } = await start(t, { bodyBytesOfPrincipal: 3_000_000 });
    const slow = [0, 1, 2].map(() => begin(gateway, 'Content-Length: 4000000'));
    const answers = slow.map(rest);
    for (const socket of slow) socket.write('x'.repeat(1_500_000));
    const refused = await Promise.race(answers);
    t.regex(refused, /^HTTP\/1\.1 429 [\s\S]*Retry-After[\s\S]*bytes of your requests are in flight: the limit is 3000000/i);
    const reply = await send(gateway, inSession(bob, toolCall(keys(20_000)), { user: 'bob' }));
    t.is(reply.status, 200, 'a different principal has its own limit');
    for (const socket of slow) socket.destroy();
    await Promise.allSettled(answers);
  },
);

test.serial('what was read from a body counts until the call has ended', async (t) => {
  const waiting: (() => void)[] = [];
  const usual = byMethod({ 'tools/call': { content: [] } });
  const script: Script = (received, res) => {
    if (received.message?.method === 'tools/call') waiting.push(() => usual(received, res));
    else usual(received, res);
  };
  const { gateway, alice } = await start(t, { bodyBytesOfPrincipal: 6_000_000 }, script);
  const medium = toolCall(`[${'{},'.repeat(20_000)}0]`);
  const sent = [0, 1].map(() => send(gateway, inSession(alice, medium)));
  while (waiting.length < 2) await new Promise((resolve) => setImmediate(resolve));
  const refused = await send(gateway, inSession(alice, medium));
  t.is(refused.status, 429);
  t.regex(refused.text, /the limit is 6000000, and each value that the gateway looks at counts as 100 bytes/);
  for (const go of waiting.splice(0)) go();
  for (const reply of sent) t.is((await reply).status, 200);
  const again = send(gateway, inSession(alice, medium));
  while (waiting.length < 1) await new Promise((resolve) => setImmediate(resolve));
  for (const go of waiting) go();
  t.is((await again).status, 200);
});

test.serial('a caller whose budget of values is used up must wait with large bodies, but not with small ones', async (t) => {
  const { gateway, alice, bob } = await start(t, { readingOfPrincipal: { perSecond: 1, burst: 100_000 } });
  const medium = toolCall(`[${'0,'.repeat(30_000)}0]`);
  t.true(medium.length < 64 * 1024);
  const statuses: number[] = [];
  for (let i = 0; i < 5; i++) statuses.push((await send(gateway, inSession(alice, medium))).status);
  t.deepEqual(statuses, [200, 200, 200, 200, 429]);
  const refused = await send(gateway, inSession(alice, medium));
  t.regex(refused.text, /more values and bytes than the gateway reads for one caller/);
  t.true(Number(refused.headers['retry-after']) > 1_000);
  t.is((await send(gateway, inSession(alice, toolCall('{}')))).status, 200);
  t.is((await send(gateway, inSession(bob, medium, { user: 'bob' }))).status, 200);
});

/** Makes small calls of bob until the promise is settled, and returns how many were answered. */
async function servedWhile(world: World, pending: Promise<unknown>): Promise<number> {
  let over = false;
  const settled = pending.finally(() => {
    over = true;
  });
  let served = 0;
  while (!over) {
    const { status } = await send(world.gateway, inSession(world.bob, toolCall('{}'), { user: 'bob' }));
    if (status === 200 && !over) served++;
  }
  await settled;
  return served;
}

test.serial('others are served while a body of many members is read', async (t) => {
  const world = await start(t);
  const body = toolCall(keys(199_000));
  const large = send(world.gateway, inSession(world.alice, body));
  const served = await servedWhile(world, large);
  t.is((await large).status, 200);
  t.log(`${served} calls were answered meanwhile`);
  t.true(served >= 10, `${served} calls`);
});

const answerOf = (result: string): Script => {
  const usual = byMethod({ 'tools/call': { content: [] } });
  const text = `{"jsonrpc":"2.0","id":1,"result":${result}}`;
  return (received, res) =>
    (received.message?.params?.['arguments'] as { large?: boolean } | undefined)?.large
      ? answerText(res, text)
      : usual(received, res);
};

test.serial('others are served while an answer of a million members is read, and its text stays unchanged', async (t) => {
  const content = `{"content":[],"structuredContent":${keys(1_150_000)}}`;
  const world = await start(t, {}, answerOf(content));
  const large = send(world.gateway, inSession(world.alice, toolCall('{"large":true}')));
  const served = await servedWhile(world, large);
  const reply = await large;
  t.is(reply.status, 200);
  t.true(reply.text === `{"jsonrpc":"2.0","id":1,"result":${content}}`);
  t.log(`${served} calls were answered meanwhile`);
  t.true(served >= 30, `${served} calls`);
});

test.serial('others are served while an answer of a million members passes the aggregate endpoint', async (t) => {
  const content = `{"content":[{"type":"resource_link","uri":"x:1","name":"x"}],"structuredContent":${keys(500_000)}}`;
  const world = await start(t, {}, answerOf(content));
  const path = '/mcp';
  const params = { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } };
  const opened = await send(world.gateway, { path, body: { jsonrpc: '2.0', id: 0, method: 'initialize', params } });
  const session = String(opened.headers['mcp-session-id']);
  const body = toolCall('{"large":true}').replace('"ok"', '"t__ok"');
  const large = send(world.gateway, inSession(session, body, { path }));
  const served = await servedWhile(world, large);
  t.true((await large).text === `{"jsonrpc":"2.0","id":1,"result":${content.replace('"x:1"', '"t+x:1"')}}`);
  t.log(`${served} calls were answered meanwhile`);
  t.true(served >= 30, `${served} calls`);
});

for (const [what, result, refusal] of [
  ['a repeated name at the very end', `{"content":[],"x":${keys(200_000).slice(0, -1)},"0":1}}`, true],
  ['bytes that end too early', `{"content":[],"x":${keys(200_000).slice(0, -1)}`, true],
  [
    'a link that may not be read among many',
    `{"content":[${'{"type":"text","text":"x"},'.repeat(20_000)}{"type":"resource_link","uri":"secret:x","name":"x"}]}`,
    false,
  ],
  [
    'an item of too many values',
    `{"content":[{"type":"resource_link","uri":"secret:x","name":"x","_meta":${keys(30_000)}}]}`,
    true,
  ],
  ['a list that is not an array', `{"content":{"0":${keys(30_000)}}}`, true],
] as const) {
  test.serial(`a large answer gets the same verdict as a small one: ${what}`, async (t) => {
    const world = await start(t, {}, answerOf(result));
    world.gateway.rights.set('alice', ({ resource_type }) => resource_type === 'tool');
    const reply = await send(world.gateway, inSession(world.alice, toolCall('{"large":true}')));
    t.false(reply.text.includes('secret:x'));
    t.is(reply.code !== undefined, refusal, reply.text.slice(0, 200));
  });
}

test.serial('a body with too many values outside of arguments is refused, and says where', async (t) => {
  const { gateway, alice } = await start(t);
  const body = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ok","_meta":${keys(30_000)}}}`;
  const reply = await send(gateway, inSession(alice, body));
  t.is(reply.code, -32700);
  t.regex(reply.text, /more than 20000 values in params\._meta/);
});

test.serial('invalid UTF-8 at the very end of a large body is found', async (t) => {
  const { gateway, alice } = await start(t);
  const body = Buffer.concat([Buffer.from(toolCall(keys(50_000)).slice(0, -2)), Buffer.from([0xc3, 0x28])]);
  const reply = await send(gateway, inSession(alice, body as never));
  t.is(reply.code, -32700);
  t.regex(reply.text, /not valid UTF-8/);
});

test('with the default limits one principal can send the largest body, and others still have room', (t) => {
  const { bodyBytes, bodyBytesOfPrincipal, bodyBytesOfAll } = DEFAULT_LIMITS;
  t.true(bodyBytesOfPrincipal >= 2 * bodyBytes && bodyBytesOfAll >= 4 * bodyBytesOfPrincipal);
});
