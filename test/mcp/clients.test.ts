/** The official SDK clients of both lines, through the gateway, against servers that know nothing of it. */
import { Client as ModernClient, StreamableHTTPClientTransport as ModernTransport } from '@modelcontextprotocol/client';
import { Client as SessionClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport as SessionTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { ElicitRequestSchema, ResourceUpdatedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import test from 'ava';
import type { NamedObject } from '../../src/engine/decision.ts';
import { type DualEraUpstream, startDualEra } from '../support/upstreams/dual-mode.ts';
import { startEverything, type Upstream } from '../support/upstreams/everything.ts';
import { routed, startGateway, type TestGateway } from './gateway.ts';

const CLIENT = { name: 'test', version: '1' };

let everything: Upstream;

test.before(async () => {
  everything = await startEverything();
});
test.after.always(() => everything?.stop());

/** Allows every object that is called public, and the tools of the test. */
const PUBLIC = ({ resource_name }: NamedObject): boolean =>
  !resource_name.includes('secret') && !resource_name.includes('get-sum');

async function setUp(t: { teardown(stop: () => Promise<void>): void }): Promise<{ gateway: TestGateway; dual: DualEraUpstream }> {
  const dual = await startDualEra();
  const targets = [routed('everything', everything.url), routed('dual', dual.url)];
  const gateway = await startGateway({ targets, rights: { alice: PUBLIC } });
  t.teardown(async () => {
    await gateway.stop();
    await dual.stop();
  });
  return { gateway, dual };
}

const options = { requestInit: { headers: { Authorization: 'Bearer alice' } } };

async function sessionClient(url: string): Promise<SessionClient> {
  const client = new SessionClient(CLIENT, { capabilities: { elicitation: {} } });
  await client.connect(new SessionTransport(new URL(url), options) as Transport);
  return client;
}

async function modernClient(url: string): Promise<ModernClient> {
  const client = new ModernClient(CLIENT, { capabilities: { elicitation: { form: {} } }, versionNegotiation: { mode: 'auto' } });
  client.setRequestHandler('elicitation/create', () => ({ action: 'accept', content: { word: 'yes' } }));
  await client.connect(new ModernTransport(new URL(url), options));
  return client;
}

const until = async (condition: () => boolean): Promise<void> => {
  for (let tries = 0; !condition() && tries < 500; tries++) await new Promise((resolve) => setTimeout(resolve, 20));
};

const names = (items: readonly { name: string }[]): string[] => items.map(({ name }) => name);

test.serial('a session client uses a published server, and denied calls are refused', async (t) => {
  const { gateway } = await setUp(t);
  const client = await sessionClient(gateway.url('everything'));
  const tools = names((await client.listTools()).tools);
  t.true(tools.includes('echo'));
  t.false(tools.includes('get-sum'));
  t.deepEqual((await client.callTool({ name: 'echo', arguments: { message: 'hi' } })).content, [
    { type: 'text', text: 'Echo: hi' },
  ]);
  await t.throwsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }), { message: /tool `get-sum` .*denied/ });
  const [resource] = (await client.listResources()).resources;
  t.is((await client.readResource({ uri: resource?.uri ?? '' })).contents[0]?.uri, resource?.uri);
  t.truthy((await client.getPrompt({ name: 'simple-prompt' })).messages[0]);
  await client.close();
  t.true(gateway.audited().includes('tools/call tool get-sum deny'));
  // The stream of the session is opened beside the calls.
  await until(() => gateway.decisions.length === gateway.outcomes.length);
  t.is(gateway.decisions.length, gateway.outcomes.length);
});

test.serial('a client of 2026-07-28 falls back to a session if the target is stateful only', async (t) => {
  const { gateway } = await setUp(t);
  const client = await modernClient(gateway.url('everything'));
  t.deepEqual((await client.callTool({ name: 'echo', arguments: { message: 'hi' } })).content, [
    { type: 'text', text: 'Echo: hi' },
  ]);
  await t.throwsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }), { message: /denied/ });
  t.deepEqual(gateway.audited().slice(0, 2), ['server/discover allow', 'initialize allow']);
  await client.close();
});

for (const [revision, connect] of [
  ['2025-11-25', sessionClient],
  ['2026-07-28', modernClient],
] as const) {
  test.serial(`${revision}: lists show the allowed calls, and only these reach the target`, async (t) => {
    const { gateway, dual } = await setUp(t);
    const client = await connect(gateway.url('dual'));
    t.deepEqual(names((await client.listTools()).tools), ['ok', 'progress', 'ask', 'links']);
    t.deepEqual(names((await client.listPrompts()).prompts), ['ok']);
    // One of the URIs has more than one reading.
    t.deepEqual(names((await client.listResources()).resources), ['file:///public/a.txt']);
    t.deepEqual(names((await client.listResourceTemplates()).resourceTemplates), ['file:///public/{name}']);
    t.deepEqual((await client.callTool({ name: 'ok', arguments: { a: 1 } })).content, [{ type: 'text', text: 'ok {"a":1}' }]);
    t.is((await client.getPrompt({ name: 'ok' })).messages.length, 1);
    t.is((await client.readResource({ uri: 'file:///public/a.txt' })).contents.length, 1);
    const links = (await client.callTool({ name: 'links', arguments: {} })).content as { uri: string }[];
    t.deepEqual(
      links.map(({ uri }) => uri),
      ['file:///public/a.txt'],
    );
    const denied = { message: /is denied/ };
    await t.throwsAsync(client.callTool({ name: 'secret', arguments: {} }), denied);
    await t.throwsAsync(client.getPrompt({ name: 'secret' }), denied);
    await t.throwsAsync(client.readResource({ uri: 'file:///secret/b.txt' }), denied);
    await t.throwsAsync(client.readResource({ uri: 'file:///public/x/../b.txt' }), { message: /canonical/ });
    await client.close();
    t.deepEqual(dual.ran, ['ok', 'links']);
    t.true(gateway.shown.some((shown) => shown.resource_type === 'tool' && shown.hidden === 1 && shown.names.length === 4));
    for (const headers of dual.headers) {
      t.is(headers.authorization, undefined);
      t.is(headers['x-upstream-key'], 'gateway-secret');
    }
  });

  test.serial(`${revision}: completions are decided and filtered`, async (t) => {
    const { gateway } = await setUp(t);
    gateway.rights.set('alice', ({ resource_name }) => ['file:///public/{name}', 'file:///public/a.txt'].includes(resource_name));
    const client = await connect(gateway.url('dual'));
    const complete = (uri: string) =>
      client.complete({ ref: { type: 'ref/resource', uri }, argument: { name: 'name', value: '' } });
    t.deepEqual((await complete('file:///public/{name}')).completion.values, ['a.txt']);
    await t.throwsAsync(complete('file:///secret/{name}'), { message: /is denied/ });
    await client.close();
  });
}

test.serial('progress arrives on the stream of its request, in both revisions', async (t) => {
  const { gateway } = await setUp(t);
  for (const connect of [sessionClient, modernClient]) {
    const client = await connect(gateway.url('dual'));
    const seen: number[] = [];
    const onprogress = ({ progress }: { progress: number }) => void seen.push(progress);
    if (client instanceof SessionClient) await client.callTool({ name: 'progress', arguments: {} }, undefined, { onprogress });
    else await client.callTool({ name: 'progress', arguments: {} }, { onprogress });
    t.deepEqual(seen, [1, 2]);
    await client.close();
  }
});

test.serial('the target asks the client in a session, under an id that only this session can answer', async (t) => {
  const { gateway } = await setUp(t);
  const client = await sessionClient(gateway.url('dual'));
  client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept', content: { word: 'yes' } }));
  const { content } = await client.callTool({ name: 'ask', arguments: {} });
  t.deepEqual(content, [{ type: 'text', text: 'accept {"word":"yes"}' }]);
  t.true(gateway.audited().includes('elicitation/create allow'));
  await client.close();
});

test.serial('in 2026-07-28 the target asks the client by a result, and each round is decided', async (t) => {
  const { gateway } = await setUp(t);
  const client = await modernClient(gateway.url('dual'));
  const { content } = await client.callTool({ name: 'ask', arguments: {} });
  t.deepEqual(content, [{ type: 'text', text: 'accept {"word":"yes"}' }]);
  t.deepEqual(
    gateway.audited().filter((line) => line.startsWith('tools/call')),
    ['tools/call tool ask allow', 'tools/call tool ask allow'],
  );
  await client.close();
});

test.serial('an update of a resource is decided when it is delivered', async (t) => {
  const { gateway, dual } = await setUp(t);
  const client = await sessionClient(gateway.url('dual'));
  const seen: string[] = [];
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => void seen.push(params.uri));
  await client.subscribeResource({ uri: 'file:///public/a.txt' });
  await t.throwsAsync(client.subscribeResource({ uri: 'file:///secret/b.txt' }), { message: /denied/ });
  // Messages of the target before the stream of the session is open are lost.
  const first = 'file:///public/first';
  await until(() => {
    if (!seen.includes(first)) void dual.announce(first);
    return seen.includes(first);
  });
  await dual.announce('file:///secret/b.txt');
  await dual.announce('file:///public/a.txt');
  await until(() => seen.includes('file:///public/a.txt'));
  t.deepEqual(
    seen.filter((uri) => uri !== first),
    ['file:///public/a.txt'],
  );
  const updates = gateway.audited().filter((line) => line.startsWith('notifications/resources/updated') && !line.includes(first));
  t.deepEqual(updates, [
    'notifications/resources/updated resource file:///secret/b.txt deny',
    'notifications/resources/updated resource file:///public/a.txt allow',
  ]);
  await client.close();
});

test.serial('rights that change between two calls of a session apply to the next call', async (t) => {
  const { gateway } = await setUp(t);
  const client = await sessionClient(gateway.url('dual'));
  await client.callTool({ name: 'ok', arguments: {} });
  gateway.rights.set('alice', ({ resource_name }) => resource_name === 'secret');
  await t.throwsAsync(client.callTool({ name: 'ok', arguments: {} }), { message: /denied/ });
  await client.callTool({ name: 'secret', arguments: {} });
  t.deepEqual(names((await client.listTools()).tools), ['secret']);
  gateway.rights.delete('alice');
  await t.throwsAsync(client.listTools(), { message: /no target `dual`, or no policy lets you use it/ });
  await client.close();
});
