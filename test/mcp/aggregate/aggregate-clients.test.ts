/** All targets at once, through the whole gateway: official clients in front of official servers of every kind. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Client as ModernClient } from '@modelcontextprotocol/client';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  ResourceUpdatedNotificationSchema,
  ToolListChangedNotificationSchema,
} from '@modelcontextprotocol/sdk/types.js';
import test, { type ExecutionContext } from 'ava';
import { apiToken, person } from '../../support/gateway.ts';
import { modernClient, openSession, sessionClient } from '../../support/mcp.ts';
import { type DualEraUpstream, startDualEra } from '../../support/upstreams/dual-mode.ts';
import { startEverything, type Upstream } from '../../support/upstreams/everything.ts';
import { type ModernUpstream, startModernOnly } from '../../support/upstreams/modern-only.ts';
import { type World, world } from '../../support/world.ts';
import { until } from './aggregate.ts';

interface All extends World {
  /** Address of the aggregate endpoint. */
  readonly everywhere: string;
  readonly dual: DualEraUpstream;
  readonly modern: ModernUpstream;
  readonly folder: string;
  readonly ids: Readonly<Record<string, string>>;
}

const bin = (name: string) => fileURLToPath(import.meta.resolve(`@modelcontextprotocol/${name}/dist/index.js`));

let everything: Upstream;

test.before(async () => {
  everything = await startEverything();
});
test.after.always(() => everything?.stop());

/** `everything` is reached over HTTP, `files` is a process, `dual` speaks both modes, `modern` speaks only 2026-07-28. */
async function all(t: ExecutionContext): Promise<All> {
  const w = await world(t, null, everything.url, { STDIO_ALLOWED: process.execPath });
  const [dual, modern] = [await startDualEra(), await startModernOnly()];
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-files-'));
  writeFileSync(join(folder, 'a.txt'), 'the content of a');
  t.teardown(async () => {
    await Promise.all([dual.stop(), modern.stop()]);
    rmSync(folder, { recursive: true, force: true });
  });
  const may_ask = ['sampling', 'elicitation', 'roots'];
  const ids: Record<string, string> = { everything: w.target.id };
  const more = [
    { name: 'dual', transport: 'streamable-http', url: dual.url, may_ask },
    { name: 'modern', transport: 'streamable-http', url: modern.url, may_ask },
    { name: 'files', transport: 'stdio', command: process.execPath, args: [bin('server-filesystem'), folder], env: {} },
  ];
  for (const body of more) {
    const { id } = (await w.gateway.rest<{ id: string }>(201, 'POST', '/api/targets', { token: w.admin.token, body })).body;
    ids[body.name] = id;
  }
  await w.gateway.rest(200, 'PUT', `/api/targets/${w.target.id}`, { token: w.admin.token, body: { may_ask } });
  return { ...w, everywhere: `${w.gateway.url}/mcp`, dual, modern, folder, ids };
}

const TARGETS = ['dual', 'everything', 'files', 'modern'];

/** All pages of a list, as the client sees them. */
async function shownAt(client: Client | ModernClient): Promise<Record<string, string[]>> {
  const capabilities = client.getServerCapabilities() ?? {};
  const resources = capabilities.resources !== undefined;
  return {
    tools: capabilities.tools ? (await client.listTools()).tools.map(({ name }) => name) : [],
    prompts: capabilities.prompts ? (await client.listPrompts()).prompts.map(({ name }) => name) : [],
    resources: resources ? (await client.listResources()).resources.map(({ uri }) => uri) : [],
    templates: resources ? (await client.listResourceTemplates()).resourceTemplates.map(({ uriTemplate }) => uriTemplate) : [],
  };
}

test.serial('lists hold the items of every target that this caller may use', async (t) => {
  const w = await all(t);
  await w.allow({ name: 'all' });
  const deny = { effect: 'deny', priority: 20 };
  await w.allow({ ...deny, name: 'no secrets', resource_type: 'tool', resource_pattern: 'secret|get-sum|^write_|sample' });
  await w.allow({ ...deny, name: 'no secret files', resource_type: 'resource', resource_pattern: '^file:///secret|text' });
  await w.allow({ ...deny, name: 'no prompts', resource_type: 'prompt', resource_pattern: '^ok$|greet' });
  const expected: Record<string, string[]> = { tools: [], prompts: [], resources: [], templates: [] };
  for (const target of TARGETS) {
    const own = await shownAt(await sessionClient(t, `${w.everywhere}/${target}`, w.token));
    for (const kind of ['tools', 'prompts']) expected[kind]?.push(...(own[kind] ?? []).map((name) => `${target}__${name}`));
    for (const kind of ['resources', 'templates']) expected[kind]?.push(...(own[kind] ?? []).map((uri) => `${target}+${uri}`));
  }
  for (const name of ['dual__ok', 'everything__echo', 'files__read_text_file', 'modern__echo']) {
    t.true(expected['tools']?.includes(name), name);
  }
  for (const client of [await sessionClient(t, w.everywhere, w.token), await modernClient(t, w.everywhere, w.token)]) {
    t.deepEqual(await shownAt(client), expected);
  }
});

test.serial('one session reaches targets of every transport', async (t) => {
  const w = await all(t);
  await w.allow({ name: 'all' });
  for (const client of [await sessionClient(t, w.everywhere, w.token), await modernClient(t, w.everywhere, w.token)]) {
    const said = async (name: string, args: object = {}) => {
      const { content } = await client.callTool({ name, arguments: args as Record<string, unknown> });
      return (content as { text?: string }[])[0]?.text;
    };
    t.is(await said('everything__echo', { message: 'hi' }), 'Echo: hi');
    t.is(await said('dual__ok', { a: 1 }), 'ok {"a":1}');
    t.is(await said('modern__echo', { a: 1 }), '{"a":1}');
    t.is(await said('files__read_text_file', { path: join(w.folder, 'a.txt') }), 'the content of a');

    t.deepEqual((await client.readResource({ uri: 'dual+file:///public/a.txt' })).contents, [
      { uri: 'dual+file:///public/a.txt', text: 'content of file:///public/a.txt' },
    ]);
    t.like((await client.readResource({ uri: 'modern+note:///a' })).contents[0], { uri: 'modern+note:///a' });
    const read = await client.readResource({ uri: 'everything+demo://resource/dynamic/text/1' });
    t.is(read.contents[0]?.uri, 'everything+demo://resource/dynamic/text/1');

    const { messages } = await client.getPrompt({
      name: 'everything__resource-prompt',
      arguments: { resourceType: 'Text', resourceId: '1' },
    });
    const embedded = messages.flatMap(({ content }) => (content.type === 'resource' ? [content.resource.uri] : []));
    t.deepEqual(embedded, ['everything+demo://resource/dynamic/text/1']);
    t.is((await client.getPrompt({ name: 'modern__greet' })).messages.length, 1);

    const links = (await client.callTool({ name: 'everything__get-resource-links', arguments: { count: 2 } }))
      .content as object[];
    const uris = links.flatMap((block) => ('uri' in block ? [String(block.uri)] : []));
    t.is(uris.length, 2);
    for (const uri of uris) {
      t.regex(uri, /^everything\+demo:/);
      t.is((await client.readResource({ uri })).contents[0]?.uri, uri, 'what was linked can be read');
    }
    const argument = { name: 'name', value: '' };
    const ofTemplate = { type: 'ref/resource', uri: 'modern+note:///{name}' } as const;
    t.deepEqual((await client.complete({ ref: ofTemplate, argument })).completion.values, ['a', 'b']);
    const ofPrompt = { type: 'ref/prompt', name: 'everything__completable-prompt' } as const;
    const { completion } = await client.complete({ ref: ofPrompt, argument: { name: 'department', value: 'E' } });
    t.deepEqual(completion.values, ['Engineering']);
  }
});

test.serial('links to denied resources are removed, and the other links work', async (t) => {
  const w = await all(t);
  await w.allow({ name: 'all' });
  await w.allow({ name: 'no', effect: 'deny', priority: 20, resource_type: 'resource', resource_pattern: '^file:///secret' });
  const client = await sessionClient(t, w.everywhere, w.token);
  const { content } = await client.callTool({ name: 'dual__links' });
  t.deepEqual(
    (content as { uri: string }[]).map(({ uri }) => uri),
    ['dual+file:///public/a.txt'],
  );
  const error = await t.throwsAsync(client.readResource({ uri: 'dual+file:///secret/b.txt' }));
  t.is((error as unknown as { code: number }).code, 403);
});

// Serial: server-everything asks once, a third of a second after the session has begun, whether or not a client listens.
test.serial('several targets ask the client at once, and each gets its own answer', async (t) => {
  const w = await all(t);
  await w.allow({ name: 'all' });
  const client = new Client(
    { name: 'asked', version: '1' },
    { capabilities: { elicitation: {}, sampling: {}, roots: { listChanged: true } } },
  );
  let words = 0;
  client.setRequestHandler(ElicitRequestSchema, async () => {
    const word = `word ${++words}`;
    // Held until both have been asked.
    await until(() => words >= 2);
    return { action: 'accept', content: { word } };
  });
  client.setRequestHandler(CreateMessageRequestSchema, async () => ({
    model: 'm',
    role: 'assistant',
    content: { type: 'text', text: 'sampled' },
  }));
  client.setRequestHandler(ListRootsRequestSchema, async () => ({ roots: [{ uri: 'file:///root', name: 'root' }] }));
  const headers = { authorization: `Bearer ${w.token}` };
  await client.connect(new StreamableHTTPClientTransport(new URL(w.everywhere), { requestInit: { headers } }));
  t.teardown(() => client.close());
  const textOf = async (name: string, args: Record<string, unknown> = {}) =>
    JSON.stringify((await client.callTool({ name, arguments: args })).content);
  const [dual, modern] = await Promise.all([textOf('dual__ask'), textOf('modern__ask')]);
  t.regex(dual, /accept .*word [12]/);
  t.regex(modern, /accept word [12]/);
  t.not(/word [12]/.exec(dual)?.[0], /word [12]/.exec(modern)?.[0]);
  t.regex(await textOf('modern__sample'), /sampled/);
  // It asks as soon as the session has begun, and offers the tool when it knows.
  await until(() => w.target.recorder.received.some(({ message }) => message !== null && 'result' in message));
  const { tools } = await client.listTools();
  t.true(tools.some(({ name }) => name === 'everything__get-roots-list'));
  t.regex(await textOf('everything__get-roots-list'), /file:\/\/\/root/);
  t.regex(await textOf('everything__trigger-sampling-request', { prompt: 'p', maxTokens: 5 }), /sampled/);
  await client.sendRootsListChanged();
  t.true(w.target.recorder.received.some(({ message }) => message?.method === 'notifications/roots/list_changed'));
});

test.serial('progress reaches its own call, and a cancellation reaches its own target', async (t) => {
  const w = await all(t);
  await w.allow({ name: 'all' });
  const client = await sessionClient(t, w.everywhere, w.token);
  for (const name of ['dual__progress', 'modern__progress']) {
    const heard: number[] = [];
    await client.callTool({ name }, undefined, { onprogress: ({ progress }) => heard.push(progress) });
    t.deepEqual(heard, [1, 2], name);
  }
  const steps: number[] = [];
  const operation = { name: 'everything__trigger-long-running-operation', arguments: { duration: 0.2, steps: 2 } };
  await client.callTool(operation, undefined, { onprogress: ({ progress }) => steps.push(progress) });
  t.deepEqual(steps, [1, 2]);

  const controller = new AbortController();
  const call = client.callTool({ name: 'modern__wait' }, undefined, { signal: controller.signal });
  await until(() => w.modern.received.some(({ message }) => message.params?.['name'] === 'wait'));
  controller.abort('enough');
  await call.catch(() => undefined);
  await until(() => w.modern.cancelled.length === 1);
  t.deepEqual(w.modern.cancelled, ['wait']);
  t.false(w.target.recorder.received.some(({ message }) => message?.method === 'notifications/cancelled'));
});

test.serial('updates for subscriptions at several targets arrive on one stream', async (t) => {
  const w = await all(t);
  await w.allow({ name: 'all' });
  const client = await sessionClient(t, w.everywhere, w.token);
  const heard: string[] = [];
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => void heard.push(params.uri));
  await client.subscribeResource({ uri: 'dual+file:///public/a.txt' });
  await client.subscribeResource({ uri: 'modern+note:///a' });
  await until(() => w.modern.listening() > 0);
  await until(() => {
    void w.dual.announce('file:///public/a.txt');
    w.modern.updated('note:///a');
    return new Set(heard).size === 2;
  });
  t.deepEqual([...new Set(heard)].sort(), ['dual+file:///public/a.txt', 'modern+note:///a']);
  await client.unsubscribeResource({ uri: 'modern+note:///a' });
  await client.setLoggingLevel('debug');
});

test.serial('a target that the caller may not use answers like a missing target in every request', async (t) => {
  const w = await all(t);
  for (const target of ['everything', 'files']) await w.allow({ name: target, target_id: w.ids[target] ?? '' });
  // Not usable although something of it is allowed to somebody else.
  await w.allow({ name: 'others', target_id: w.ids['dual'] ?? '', subjects: [{ subject_type: 'role', subject_value: 'other' }] });
  const session = await openSession(w.everywhere, w.token);
  const raw = async (message: object): Promise<string> => {
    const answer = await fetch(w.everywhere, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${w.token}`,
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        'mcp-session-id': session,
      },
      body: JSON.stringify({ jsonrpc: '2.0', ...message }),
    });
    const headers = [...answer.headers].filter(([name]) => !['date', 'x-request-id', 'keep-alive'].includes(name));
    return JSON.stringify([answer.status, headers, await answer.text()]);
  };
  const requests = (name: string): object[] => [
    { id: 1, method: 'tools/call', params: { name: `${name}__ok` } },
    { id: 1, method: 'tools/call', params: { name: `${name}__nobody-has-this`, task: { ttl: 1 } } },
    { id: 1, method: 'prompts/get', params: { name: `${name}__ok` } },
    { id: 1, method: 'resources/read', params: { uri: `${name}+file:///public/a.txt` } },
    { id: 1, method: 'resources/read', params: { uri: `${name}+file:///public/../a.txt` } },
    { id: 1, method: 'resources/subscribe', params: { uri: `${name}+file:///public/a.txt` } },
    { id: 1, method: 'resources/unsubscribe', params: { uri: `${name}+file:///public/a.txt` } },
    {
      id: 1,
      method: 'completion/complete',
      params: { ref: { type: 'ref/prompt', name: `${name}__ok` }, argument: { name: 'a', value: '' } },
    },
    {
      id: 1,
      method: 'completion/complete',
      params: { ref: { type: 'ref/resource', uri: `${name}+file:///{x}` }, argument: { name: 'x', value: '' } },
    },
    ...['get', 'result', 'cancel'].map((method) => ({ id: 1, method: `tasks/${method}`, params: { taskId: `${name}__T` } })),
    { id: `${name}__S`, result: {} },
    { method: 'notifications/progress', params: { progressToken: `${name}__1`, progress: 1 } },
  ];
  const before = w.dual.headers.length;
  const unknown = requests('duel');
  for (const [index, message] of requests('dual').entries()) {
    const [forbidden, absent] = [await raw(message), await raw(unknown[index] ?? {})];
    t.is(forbidden, absent.replaceAll('duel', 'dual'), JSON.stringify(message));
  }
  t.is(w.dual.headers.length, before, 'it was not asked');
  const { body: rows } = await w.gateway.rest<{ target_name: string; effect: string; reason: string | null }[]>(
    200,
    'GET',
    '/api/logs?limit=1000',
    { token: w.admin.token },
  );
  const rowsOf = (name: string) => rows.filter((row) => row.target_name === name);
  t.true(rowsOf('dual').length >= 12);
  t.is(rowsOf('dual').length, rowsOf('duel').length);
  t.true(rowsOf('dual').every(({ effect }) => effect === 'deny'));
});

test.serial('a target that is down is named only to callers that may use it', async (t) => {
  const w = await all(t);
  await w.allow({ name: 'all' });
  const other = await person(w.gateway, 'other@example.com');
  const { token } = await apiToken(w.gateway, other);
  const subjects = [{ subject_type: 'user', subject_value: other.id }];
  await w.allow({ name: 'not modern', effect: 'deny', priority: 99, target_id: w.ids['modern'] ?? '', subjects });
  const clients = [await sessionClient(t, w.everywhere, w.token), await sessionClient(t, w.everywhere, token)] as const;
  await w.modern.stop();
  // Ask one after the other: if only one session waits, its list includes slow targets.
  const named = await clients[0].listTools();
  const silent = await clients[1].listTools();
  t.deepEqual(named._meta, { 'portcullis/unavailable': ['modern'] });
  t.is(silent._meta, undefined);
  for (const shown of [named, silent]) {
    t.deepEqual([...new Set(shown.tools.map(({ name }) => name.split('__')[0]))], ['dual', 'everything', 'files']);
  }
});

test.serial("a session follows the caller's rights as they are granted and removed", async (t) => {
  const w = await all(t);
  const everything = await w.allow({ name: 'everything', target_id: w.target.id });
  const client = await sessionClient(t, w.everywhere, w.token);
  let changes = 0;
  client.setNotificationHandler(ToolListChangedNotificationSchema, () => void changes++);
  const updates: string[] = [];
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ params }) => void updates.push(params.uri));
  const targets = async () => [...new Set((await client.listTools()).tools.map(({ name }) => name.split('__')[0]))];
  t.deepEqual(await targets(), ['everything']);
  await t.throwsAsync(client.callTool({ name: 'dual__ok' }));

  await w.allow({ name: 'dual', target_id: w.ids['dual'] ?? '' });
  t.deepEqual(await targets(), ['dual', 'everything'], 'at once');
  await until(() => changes > 0);
  t.is((await client.callTool({ name: 'dual__ok' })).isError, undefined);
  await until(() => {
    void w.dual.announce('file:///public/a.txt');
    return updates.length > 0;
  });
  t.is(updates[0], 'dual+file:///public/a.txt');

  await w.gateway.rest(204, 'DELETE', `/api/policies/${everything.id}`, { token: w.admin.token });
  t.deepEqual(await targets(), ['dual']);
  const seen = w.target.recorder.received.length;
  await t.throwsAsync(client.callTool({ name: 'everything__echo', arguments: { message: 'x' } }));
  t.is(w.target.recorder.received.slice(seen).filter(({ method }) => method === 'POST').length, 0);
});

test.serial('the audit log has a row for each decision, and nothing is forwarded without a row', async (t) => {
  const w = await all(t);
  await w.allow({ name: 'all' });
  await w.allow({ name: 'no', effect: 'deny', priority: 20, resource_type: 'tool', resource_pattern: '^echo$' });
  const client = await sessionClient(t, w.everywhere, w.token);
  interface Row {
    readonly method: string;
    readonly target_name: string;
    readonly resource_name: string | null;
    readonly effect: string;
    readonly outcome: string | null;
  }
  const token = w.admin.token;
  const read = async () => (await w.gateway.rest<Row[]>(200, 'GET', '/api/logs?limit=1000', { token })).body;
  /** The rows once that is true of them, or those that there are then. */
  const rowsWhen = async (condition: (rows: readonly Row[]) => boolean): Promise<Row[]> => {
    let rows = await read();
    for (let tries = 0; tries < 100 && !condition(rows); tries++) {
      await new Promise((resolve) => setTimeout(resolve, 100));
      rows = await read();
    }
    return rows;
  };
  // The client opens its stream beside what follows, and the end of the session must not overtake it.
  await rowsWhen((all) => all.filter(({ method }) => method === 'GET').length === TARGETS.length);
  const seen = w.target.recorder.received.length;
  await t.throwsAsync(client.callTool({ name: 'everything__echo', arguments: { message: 'x' } }));
  t.false(w.target.recorder.received.slice(seen).some(({ message }) => message?.method === 'tools/call'));
  await client.callTool({ name: 'dual__ok' });
  await client.listTools();
  await client.ping();
  await (client.transport as StreamableHTTPClientTransport).terminateSession();
  const rows = await rowsWhen((all) => all.every(({ outcome }) => outcome !== null));
  const texts = rows.map((row) => [row.target_name, row.method, row.resource_name, row.effect, row.outcome].join(' ')).sort();
  const each = (method: string, outcome = 'ok') => TARGETS.map((target) => `${target} ${method}  allow ${outcome}`);
  t.deepEqual(
    texts.filter((text) => !text.includes(' DELETE ')),
    [
      ...each('initialize'),
      ...each('GET'),
      ...each('tools/list'),
      'dual tools/call ok allow ok',
      'everything tools/call echo deny denied',
    ].sort(),
  );
  t.deepEqual(
    rows
      .filter(({ method }) => method === 'DELETE')
      .map(({ target_name }) => target_name)
      .sort(),
    TARGETS,
  );
});
