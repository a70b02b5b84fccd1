import test, { type ExecutionContext } from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { modernClient, sessionClient } from '../support/mcp.ts';
import { startDualEra } from '../support/upstreams/dual-mode.ts';
import { type World, world } from '../support/world.ts';

/** The methods that clients of both SDK lines have. */
interface AnyClient {
  listTools(): Promise<{ tools: { name: string }[] }>;
  listResources(): Promise<{ resources: { uri: string }[] }>;
  listPrompts(): Promise<{ prompts: { name: string }[] }>;
  callTool(params: { name: string; arguments: Record<string, unknown> }): Promise<Record<string, unknown>>;
  readResource(params: { uri: string }): Promise<{ contents: object[] }>;
  getPrompt(params: { name: string }): Promise<{ messages: object[] }>;
}

type Connect = (t: ExecutionContext, url: string, token: string) => Promise<unknown>;

const README = 'demo://resource/static/document/architecture.md';
const CLIENTS: readonly (readonly [name: string, Connect])[] = [
  ['SDK 1.x', sessionClient],
  ['SDK 2.x', (t, url, token) => modernClient(t, url, token, 'auto')],
];

async function allowSome(w: World): Promise<void> {
  await w.allow({ name: 'some tools', resource_type: 'tool', resource_pattern: '^(echo|get-sum)$' });
  await w.allow({
    name: 'one document',
    resource_type: 'resource',
    resource_pattern: '^demo://resource/static/document/architecture\\.md$',
  });
  await w.allow({ name: 'one prompt', resource_type: 'prompt', resource_pattern: '^simple-prompt$' });
}

async function useAll(t: ExecutionContext, w: World, client: AnyClient): Promise<void> {
  t.deepEqual(
    (await client.listTools()).tools.map(({ name }) => name),
    ['echo', 'get-sum'],
  );
  t.deepEqual(
    (await client.listResources()).resources.map(({ uri }) => uri),
    [README],
  );
  t.deepEqual(
    (await client.listPrompts()).prompts.map(({ name }) => name),
    ['simple-prompt'],
  );

  const { content } = await client.callTool({ name: 'echo', arguments: { message: 'through' } });
  t.deepEqual(content, [{ type: 'text', text: 'Echo: through' }]);
  t.is((await client.readResource({ uri: README })).contents.length, 1);
  t.is((await client.getPrompt({ name: 'simple-prompt' })).messages.length, 1);

  const denied: [() => Promise<unknown>, string][] = [
    [() => client.callTool({ name: 'get-env', arguments: {} }), 'get-env'],
    [() => client.callTool({ name: 'no-such-tool', arguments: {} }), 'no-such-tool'],
    [() => client.readResource({ uri: 'demo://resource/static/document/features.md' }), 'features.md'],
    [() => client.readResource({ uri: 'demo://resource/static/document/../architecture.md' }), 'canonical'],
    [() => client.getPrompt({ name: 'args-prompt' }), 'args-prompt'],
  ];
  for (const [work, said] of denied) {
    const error = await t.throwsAsync(work());
    t.is((error as unknown as { code: number }).code, 403, said);
    t.true(error.message.includes(said), error.message);
  }

  t.deepEqual(w.target.recorder.objects(), ['tools/call echo', `resources/read ${README}`, 'prompts/get simple-prompt']);
  for (const { headers } of w.target.recorder.received) {
    t.is(headers.authorization, undefined);
    t.false(JSON.stringify(headers).includes(w.token));
  }
}

interface Row {
  method: string;
  resource_name: string | null;
  effect: string;
  policy_name: string | null;
  user_id: string;
  target_name: string;
  outcome: string | null;
}

for (const [name, connect] of CLIENTS) {
  eachEngine(
    test.serial,
    `${name}: lists are filtered, calls are decided, and only allowed calls reach the target`,
    async (t, at) => {
      const w = await world(t, at.url);
      await allowSome(w);
      await useAll(t, w, (await connect(t, w.mcp, w.token)) as AnyClient);

      const { body: rows } = await w.gateway.rest<Row[]>(200, 'GET', '/api/logs', { token: w.admin.token });
      const decided = rows.filter((row) => row.resource_name !== null).map((row) => `${row.effect} ${row.resource_name}`);
      t.deepEqual(decided.reverse(), [
        'allow echo',
        `allow ${README}`,
        'allow simple-prompt',
        'deny get-env',
        'deny no-such-tool',
        'deny demo://resource/static/document/features.md',
        'deny demo://resource/static/document/../architecture.md',
        'deny args-prompt',
      ]);
      t.is(rows.filter((row) => row.method === 'initialize').length, 1);
      for (const list of ['tools/list', 'resources/list', 'prompts/list'])
        t.is(rows.filter((row) => row.method === list).length, 1);
      t.true(rows.every((row) => row.user_id === w.user.id && row.target_name === 'everything'));
      t.is(rows.find((row) => row.resource_name === 'echo')?.policy_name, 'some tools');
    },
  );
}

test.serial("the target gets its own credential and not the caller's token", async (t) => {
  const w = await world(t);
  await w.allow({ name: 'all' });
  await w.gateway.rest(201, 'PUT', `/api/targets/${w.target.id}/credentials/default`, {
    token: w.admin.token,
    body: { type: 'bearer', value: 'the-upstream-secret' },
  });
  const client = await sessionClient(t, w.mcp, w.token);
  await client.callTool({ name: 'echo', arguments: { message: 'x' } });
  t.true(w.target.recorder.received.length > 0);
  for (const { headers } of w.target.recorder.received) t.is(headers.authorization, 'Bearer the-upstream-secret');

  await w.gateway.rest(204, 'DELETE', `/api/targets/${w.target.id}/credentials/default`, { token: w.admin.token });
  await client.callTool({ name: 'echo', arguments: { message: 'x' } });
  const called = w.target.recorder.received.findLast(({ message }) => message?.method === 'tools/call');
  t.is(called?.headers.authorization, undefined, 'a change takes effect on the next request');
});

test.serial('a role that is granted or removed decides the next call of the same session', async (t) => {
  const w = await world(t);
  await w.allow({ name: 'developers', subjects: [{ subject_type: 'role', subject_value: 'developer' }] });
  await w.allow({
    name: 'the group may echo',
    resource_type: 'tool',
    resource_pattern: '^echo$',
    subjects: [{ subject_type: 'group', subject_value: 'staff' }],
  });
  const become = (body: object) => w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body });
  await become({ role: 'developer' });
  const client = await sessionClient(t, w.mcp, w.token);
  const tools = async () => (await client.listTools()).tools.map(({ name }) => name);
  t.true((await tools()).length > 10);
  await become({ role: 'user', groups: ['staff'] });
  t.deepEqual(await tools(), ['echo']);
  await become({ groups: [] });
  await t.throwsAsync(client.callTool({ name: 'echo', arguments: { message: 'x' } }), { message: /no target/ });
  await become({ role: 'developer' });
  t.true((await tools()).length > 10);
});

eachEngine(test.serial, 'SDK 2.x on 2026-07-28: lists are filtered and calls decided without a session', async (t, at) => {
  const upstream = await startDualEra();
  t.teardown(() => upstream.stop());
  const w = await world(t, at.url, upstream.url);
  await w.allow({ name: 'ok', resource_type: 'tool', resource_pattern: '^ok$' });
  await w.allow({ name: 'public', resource_type: 'resource', resource_pattern: '^file:///public/' });
  await w.allow({ name: 'prompt', resource_type: 'prompt', resource_pattern: '^ok$' });
  const client = await modernClient(t, w.mcp, w.token);

  t.deepEqual(
    (await client.listTools()).tools.map(({ name }) => name),
    ['ok'],
  );
  t.deepEqual(
    (await client.listResources()).resources.map(({ uri }) => uri),
    ['file:///public/a.txt'],
  );
  t.deepEqual(
    (await client.listPrompts()).prompts.map(({ name }) => name),
    ['ok'],
  );
  await client.callTool({ name: 'ok', arguments: {} });
  t.is((await client.readResource({ uri: 'file:///public/a.txt' })).contents.length, 1);
  t.is((await client.getPrompt({ name: 'ok' })).messages.length, 1);
  await t.throwsAsync(client.callTool({ name: 'secret', arguments: {} }), { message: /secret/ });
  await t.throwsAsync(client.readResource({ uri: 'file:///secret/b.txt' }), { message: /secret/ });

  t.deepEqual(upstream.ran, ['ok']);
  t.deepEqual(w.target.recorder.objects(), ['tools/call ok', 'resources/read file:///public/a.txt', 'prompts/get ok']);
  for (const { headers } of w.target.recorder.received) {
    t.is(headers['mcp-protocol-version'], '2026-07-28');
    t.is(headers['mcp-session-id'], undefined);
    t.is(headers.authorization, undefined);
  }
});
