/** A session client uses a server that speaks only 2026-07-28 through the gateway. */
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import {
  ElicitRequestSchema,
  LoggingMessageNotificationSchema,
  type Progress,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import test, { type ExecutionContext } from 'ava';
import type { NamedObject } from '../../../../src/engine/decision.ts';
import { modernClient } from '../../../support/mcp.ts';
import { type ModernUpstream, startModernOnly } from '../../../support/upstreams/modern-only.ts';
import { routed, startGateway, type TestGateway } from '../../gateway.ts';

const MAY = ({ resource_name }: NamedObject): boolean => !['sample', 'note:///secret'].includes(resource_name);

interface Setup {
  readonly target: ModernUpstream;
  readonly gateway: TestGateway;
  readonly client: Client;
}

async function setUp(t: ExecutionContext): Promise<Setup> {
  const target = await startModernOnly();
  t.teardown(() => target.stop());
  const gateway = await startGateway({ targets: [routed('modern', target.url)], rights: { alice: MAY } });
  t.teardown(() => gateway.stop());
  const client = new Client({ name: 'old', version: '1' }, { capabilities: { elicitation: {} } });
  const options = { requestInit: { headers: { authorization: 'Bearer alice' } } };
  await client.connect(new StreamableHTTPClientTransport(new URL(gateway.url('modern')), options) as Transport);
  t.teardown(() => client.close());
  return { target, gateway, client };
}

const textOf = (result: object): unknown => ('content' in result ? (result.content as { text?: string }[])[0]?.text : undefined);
const until = async (what: () => boolean): Promise<void> => {
  while (!what()) await new Promise((resolve) => setTimeout(resolve, 5));
};

test.serial('a session client uses lists, calls, reads, prompts and completions through the bridge', async (t) => {
  const { client, target, gateway } = await setUp(t);
  t.like(client.getServerVersion(), { name: 'modern-only' });
  t.is(client.getInstructions(), 'Be nice.');
  const tools = (await client.listTools()).tools.map(({ name }) => name);
  t.true(tools.includes('echo'));
  t.false(tools.includes('sample'));
  t.is(textOf(await client.callTool({ name: 'echo', arguments: { a: [1, 'x'] } })), '{"a":[1,"x"]}');
  t.is(
    textOf(await client.callTool({ name: 'regional', arguments: { region: 'Zürich', count: 2 } })),
    '{"region":"Zürich","count":2}',
  );
  t.is((await client.listResources()).resources[0]?.uri, 'note:///a');
  t.is((await client.listResourceTemplates()).resourceTemplates[0]?.uriTemplate, 'note:///{name}');
  t.like((await client.readResource({ uri: 'note:///a' })).contents[0], { text: 'text of note:///a' });
  t.is((await client.getPrompt({ name: 'greet' })).messages.length, 1);
  const argument = { name: 'name', value: '' };
  t.deepEqual((await client.complete({ ref: { type: 'ref/resource', uri: 'note:///{name}' }, argument })).completion.values, [
    'a',
    'b',
  ]);
  await client.ping();
  t.is(target.received.filter(({ headers }) => headers.authorization !== undefined).length, 0);
  // The stream of the session is opened beside the calls.
  await until(() => gateway.decisions.length === gateway.outcomes.length);
  t.is(gateway.decisions.length, gateway.outcomes.length);
});

test.serial('a request that policy denies does not reach the target', async (t) => {
  const { client, target } = await setUp(t);
  await t.throwsAsync(client.callTool({ name: 'sample' }), { message: /denied/ });
  await t.throwsAsync(client.readResource({ uri: 'note:///secret' }), { message: /denied/ });
  await t.throwsAsync(client.subscribeResource({ uri: 'note:///secret' }), { message: /denied/ });
  t.deepEqual(
    target.seen().filter((method) => !['initialize', 'server/discover', 'subscriptions/listen'].includes(method ?? '')),
    [],
  );
});

test.serial('progress, log messages and errors reach the client', async (t) => {
  const { client } = await setUp(t);
  const seen: Progress[] = [];
  t.is(textOf(await client.callTool({ name: 'progress' }, undefined, { onprogress: (progress) => seen.push(progress) })), 'done');
  t.deepEqual(
    seen.map(({ progress }) => progress),
    [1, 2],
  );
  const logged: unknown[] = [];
  client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => void logged.push(params.data));
  await client.callTool({ name: 'log' });
  await client.setLoggingLevel('warning');
  await client.callTool({ name: 'log' });
  t.deepEqual(logged, ['careful']);
  await t.throwsAsync(client.readResource({ uri: 'note:///missing' }), { code: -32002 } as never);
  await t.throwsAsync(client.callTool({ name: 'nobody' }), { code: -32602 } as never);
});

test.serial('a request of the target reaches the client, and its answer reaches the target', async (t) => {
  const { client } = await setUp(t);
  const asked: unknown[] = [];
  client.setRequestHandler(ElicitRequestSchema, ({ params }) => {
    asked.push(params.message);
    return { action: 'accept', content: { word: `word ${asked.length}` } };
  });
  t.is(textOf(await client.callTool({ name: 'ask' })), 'accept word 1');
  t.is(textOf(await client.callTool({ name: 'ask-twice' })), 'then word 2, word 3');
  client.setRequestHandler(ElicitRequestSchema, () => {
    throw new Error('no window');
  });
  t.is(textOf(await client.callTool({ name: 'ask' })), 'no word');
});

test.serial('a client can cancel a call', async (t) => {
  const { client, target, gateway } = await setUp(t);
  const controller = new AbortController();
  const call = client.callTool({ name: 'wait' }, undefined, { signal: controller.signal });
  await until(() => target.seen().at(-1) === 'tools/call');
  controller.abort();
  await t.throwsAsync(call);
  await until(() => target.cancelled.length === 1);
  await until(() => gateway.outcomes.some(({ outcome }) => outcome === 'cancelled'));
  t.is(textOf(await client.callTool({ name: 'echo' })), '{}');
});

test.serial('resource updates and changed lists reach the client', async (t) => {
  const { client, target, gateway } = await setUp(t);
  const updated: string[] = [];
  let changed = 0;
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => void updated.push(params.uri));
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => void changed++);
  await client.subscribeResource({ uri: 'note:///a' });
  target.updated('note:///other');
  target.updated('note:///a');
  target.toolsChanged();
  await until(() => updated.length === 1 && changed === 1);
  await client.unsubscribeResource({ uri: 'note:///a' });
  await client.subscribeResource({ uri: 'note:///b' });
  target.updated('note:///a');
  target.updated('note:///b');
  await until(() => updated.length === 2);
  t.deepEqual(updated, ['note:///a', 'note:///b']);
  gateway.rights.set('alice', ({ resource_name }) => resource_name !== 'note:///b');
  target.updated('note:///b');
  target.toolsChanged();
  await until(() => changed >= 2);
  t.is(updated.length, 2);
  await client.close();
});

test.serial('the end of the session ends the listening stream at the target', async (t) => {
  const { client, target } = await setUp(t);
  await client.subscribeResource({ uri: 'note:///a' });
  await until(() => target.listening() === 1);
  await (client.transport as StreamableHTTPClientTransport).terminateSession();
  await until(() => target.listening() === 0);
  t.pass();
});

test.serial('a client of 2026-07-28 does not use the bridge', async (t) => {
  const { gateway, target } = await setUp(t);
  const client = await modernClient(t, gateway.url('modern'), 'alice');
  t.is(textOf(await client.callTool({ name: 'echo', arguments: {} })), '{}');
  t.is(target.seen().filter((method) => method === 'initialize').length, 1);
});
