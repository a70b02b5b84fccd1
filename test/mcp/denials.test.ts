/** The text of a denial, also if an administrator has set that denials are hidden. */
import test, { type ExecutionContext } from 'ava';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { routed, startGateway } from './gateway.ts';
import { call, inSession, modern, open, type Reply, send } from './raw.ts';

async function setUp(t: ExecutionContext, { modern: isModern = false, denials = 'hidden' as 'hidden' | 'shown' } = {}) {
  const upstream = await startRecording(
    byMethod(
      { 'tools/call': { content: [] }, 'resources/read': { contents: [] }, 'prompts/get': { messages: [] } },
      { modern: isModern },
    ),
  );
  const allowed = ['ok', 'file:///public/a'];
  const gateway = await startGateway({
    targets: [routed('t', upstream.url, { denials }), routed('private', upstream.url, { denials, id: 'private' })],
    rights: { alice: ({ resource_name }, target) => target !== 'private' && allowed.includes(resource_name) },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, upstream };
}

const error = (reply: Reply) => [reply.status, JSON.parse(reply.text).error];

test.serial('in a session a hidden denial gets the answer of an unknown name, and the target is not asked', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const session = await open(gateway);
  const seen = upstream.received.length;
  const ask = async (method: string, params: object) => error(await send(gateway, inSession(session, call(method, params))));
  t.deepEqual(await ask('tools/call', { name: 'secret' }), [200, { code: -32602, message: 'Unknown tool: secret' }]);
  t.deepEqual(await ask('prompts/get', { name: 'secret' }), [200, { code: -32602, message: 'Unknown prompt: secret' }]);
  const argument = { name: 'a', value: '' };
  const complete = await ask('completion/complete', { ref: { type: 'ref/prompt', name: 'secret' }, argument });
  t.deepEqual(complete, [200, { code: -32602, message: 'Unknown prompt: secret' }]);
  for (const [method, uri] of [
    ['resources/read', 'file:///secret'],
    ['resources/read', 'file:///public/../secret'],
    ['resources/subscribe', 'file:///secret'],
  ] as const) {
    const missing = { code: -32002, message: 'Resource not found', data: { uri } };
    t.deepEqual(await ask(method, { uri }), [200, missing]);
  }
  t.is(upstream.received.length, seen);
  t.deepEqual(gateway.audited().slice(-6), [
    'tools/call tool secret deny',
    'prompts/get prompt secret deny',
    'completion/complete prompt secret deny',
    'resources/read resource file:///secret deny',
    'resources/read resource file:///public/../secret deny not_canonical',
    'resources/subscribe resource file:///secret deny',
  ]);
  t.deepEqual(
    gateway.outcomes.slice(-6).map(({ outcome }) => outcome),
    Array(6).fill('denied'),
  );
  t.is((await send(gateway, inSession(session, call('tools/call', { name: 'ok' })))).code, undefined);
});

test.serial('in 2026-07-28 a hidden denial gets the answer of an unknown name, with its own code for resources', async (t) => {
  const { gateway, upstream } = await setUp(t, { modern: true });
  t.deepEqual(error(await send(gateway, modern('tools/call', { name: 'secret' }))), [
    200,
    { code: -32602, message: 'Unknown tool: secret' },
  ]);
  const uri = 'file:///secret';
  t.deepEqual(error(await send(gateway, modern('resources/read', { uri }))), [
    200,
    { code: -32602, message: 'Resource not found', data: { uri } },
  ]);
  t.is(upstream.received.length, 0);
});

test.serial('a target that may not be used looks unknown, and denials are shown by default', async (t) => {
  const { gateway } = await setUp(t);
  gateway.rights.delete('bob');
  const initialize = call('initialize', { protocolVersion: '2025-11-25', capabilities: {} });
  t.is((await send(gateway, { user: 'bob', body: initialize })).code, 404);
  t.is((await send(gateway, { ...modern('tools/call', { name: 'secret' }), user: 'bob' })).code, 404);
  const shown = await setUp(t, { denials: 'shown' });
  const reply = await send(shown.gateway, modern('tools/call', { name: 'secret' }));
  t.is(reply.code, 403);
  t.truthy(JSON.parse(reply.text).error.data.decision_id);
});

test.serial('a denial names the decision and who can help, and the refusal of a whole target names neither', async (t) => {
  const { gateway } = await setUp(t, { denials: 'shown' });
  const messageOf = async (...asked: Parameters<typeof modern>) => JSON.parse((await send(gateway, modern(...asked))).text).error;
  const tool = await messageOf('tools/call', { name: 'secret' });
  const id = gateway.decisions.at(-1)?.id;
  const ask = `To get access, ask an administrator about decision ${id}`;
  t.is(tool.message, `tool \`secret\` of target \`t\` is denied: policy does not allow it. ${ask}`);
  const uri = 'file:///public/../secret';
  const resource = await messageOf('resources/read', { uri });
  const odd = `its URI is not in canonical form (decision ${gateway.decisions.at(-1)?.id})`;
  t.is(resource.message, `resource \`${uri}\` of target \`t\` is denied: ${odd}`);
  gateway.rights.delete('bob');
  const { text } = await send(gateway, { ...modern('tools/call', { name: 'secret' }), user: 'bob' });
  t.is(JSON.parse(text).error.message, 'no target `t`, or no policy lets you use it');
});
