/** Methods outside the protocol: those that an administrator has listed are decided and forwarded, and others are unknown. */
import test, { type ExecutionContext } from 'ava';
import type { ExtensionMethod } from '../../src/protocol/operation.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { routed, startGateway } from './gateway.ts';
import { call, inSession, modern, open, type Raw, type Reply, send } from './raw.ts';

const LISTED: readonly ExtensionMethod[] = [
  { method: 'skills/get', resource_type: 'prompt', param: 'skill' },
  { method: 'directory/read', resource_type: 'resource', param: 'uri' },
  // An extension cannot redefine a method of the protocol.
  { method: 'tools/call', resource_type: 'tool', param: 'other' },
  { method: 'tasks/update', resource_type: 'tool', param: 'name' },
];

async function setUp(t: ExecutionContext, isModern: boolean) {
  const results = { 'skills/get': { skill: { x: 1 } }, 'directory/read': { entries: [] }, 'tools/call': { content: [] } };
  const upstream = await startRecording(byMethod(results, { modern: isModern }));
  const gateway = await startGateway({
    targets: [
      routed('t', upstream.url, { extension_methods: LISTED }),
      routed('plain', upstream.url),
      routed('private', upstream.url, { extension_methods: LISTED }),
    ],
    rights: { alice: ({ resource_name }) => ['ok', 'file:///public/a'].includes(resource_name) },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, upstream };
}

const inEra = async (t: ExecutionContext, mode: 'stateful' | 'stateless') => {
  const { gateway, upstream } = await setUp(t, mode === 'stateless');
  const session = mode === 'stateful' ? await open(gateway) : '';
  const ask = (method: string, params: object, more: Raw = {}): Promise<Reply> =>
    send(gateway, { ...(mode === 'stateful' ? inSession(session, call(method, params)) : modern(method, params)), ...more });
  return { gateway, upstream, ask };
};

for (const mode of ['stateful', 'stateless'] as const) {
  test.serial(`${mode}: an extension method is decided as the object that it names, and forwarded`, async (t) => {
    const { gateway, upstream, ask } = await inEra(t, mode);
    t.deepEqual(JSON.parse((await ask('skills/get', { skill: 'ok', more: [1] })).text).result, { skill: { x: 1 } });
    const { method, params = {} } = upstream.received.at(-1)?.message ?? {};
    t.deepEqual([method, params['skill'], params['more']], ['skills/get', 'ok', [1]]);
    t.is((await ask('directory/read', { uri: 'file:///public/a' })).code, undefined);
    const seen = upstream.received.length;
    t.is((await ask('skills/get', { skill: 'secret' })).code, 403);
    t.is((await ask('directory/read', { uri: 'file:///public/../a' })).code, 403);
    for (const params of [{}, { skill: 1 }, { skill: 'ok', Skill: 'secret' }, { name: 'ok' }]) {
      t.is((await ask('skills/get', params)).code, -32602, JSON.stringify(params));
    }
    t.is(upstream.received.length, seen);
    t.deepEqual(gateway.audited().slice(-4), [
      'skills/get prompt ok allow',
      'directory/read resource file:///public/a allow',
      'skills/get prompt secret deny',
      'directory/read resource file:///public/../a deny not_canonical',
    ]);
  });

  test.serial(`${mode}: a method that the target does not list is unknown, and makes no audit row`, async (t) => {
    const { gateway, upstream, ask } = await inEra(t, mode);
    const before = [upstream.received.length, gateway.decisions.length];
    const unknown = mode === 'stateless' ? 404 : 200;
    for (const method of ['skills/list', 'Skills/Get', 'skills//get', '__proto__', 'toString']) {
      const reply = await ask(method, { skill: 'ok' });
      t.deepEqual([reply.status, reply.code], [unknown, -32601], method);
    }
    if (mode === 'stateless') {
      const reply = await ask('skills/get', { skill: 'ok' }, { path: '/mcp/plain' });
      t.deepEqual([reply.status, reply.code], [404, -32601], 'listed at another target');
    }
    t.deepEqual([upstream.received.length, gateway.decisions.length], before);
  });

  test.serial(`${mode}: an extension cannot change methods of the protocol`, async (t) => {
    const { gateway, ask } = await inEra(t, mode);
    t.is((await ask('tools/call', { name: 'secret', other: 'ok' })).code, 403);
    t.is(gateway.audited().at(-1), 'tools/call tool secret deny');
    const update = await ask('tasks/update', { name: 'ok', taskId: 'x' });
    t.is(update.code, mode === 'stateful' ? -32601 : -32020);
  });
}

test.serial('extension methods do not reveal that a target exists', async (t) => {
  const { gateway, upstream } = await setUp(t, true);
  gateway.rights.delete('alice');
  const ask = async (target: string, method: string) => {
    const reply = await send(gateway, { ...modern(method, { skill: 'ok' }), path: `/mcp/${target}` });
    return [reply.status, reply.text.replace(`\`${target}\``, 'TARGET')];
  };
  const nowhere = await ask('nowhere', 'skills/get');
  t.is(JSON.parse(String(nowhere[1])).error.code, 404);
  for (const target of ['t', 'plain', 'private', 'nowhere']) {
    for (const method of ['skills/get', 'skills/list', 'directory/read']) {
      t.deepEqual(await ask(target, method), nowhere, `${target} ${method}`);
    }
  }
  t.is(upstream.received.length, 0);
  t.is(gateway.decisions.length, 13, 'each attempt is recorded');
});

test.serial('an extension method without an id is a notification, and is dropped', async (t) => {
  const { gateway, upstream } = await setUp(t, false);
  const session = await open(gateway);
  const seen = upstream.received.length;
  const reply = await send(gateway, inSession(session, { jsonrpc: '2.0', method: 'skills/get', params: { skill: 'ok' } }));
  t.deepEqual([reply.status, upstream.received.length], [202, seen]);
});

test.serial('a missing or foreign session is refused before the extension method is looked up', async (t) => {
  const { gateway } = await setUp(t, false);
  t.is((await send(gateway, { body: call('skills/get', { skill: 'ok' }) })).status, 400);
  t.is((await send(gateway, inSession('another', call('skills/get', { skill: 'ok' })))).status, 404);
});
