/** The arguments of which requests are recorded with their decision, over every transport and mode. */
import test, { type ExecutionContext } from 'ava';
import { startSdkSse } from '../support/upstreams/legacy-sse.ts';
import { startModernOnly } from '../support/upstreams/modern-only.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { everywhere, openEverywhere } from './aggregate/aggregate.ts';
import { routed, startGateway, type TestGateway } from './gateway.ts';
import { call, inSession, modern, open, send } from './raw.ts';

const CAPTURE = { capture_arguments: { mask: ['pin'] } };
const ARGUMENTS = { a: 1.5, Pin: 'S', nested: [{ token: 'S' }] };
const MASKED = JSON.stringify({ value: { a: 1.5, Pin: '***', nested: [{ token: '***' }] }, cut: false });
const RESULTS = { 'tools/call': { content: [] }, 'prompts/get': { messages: [] }, 'completion/complete': { completion: {} } };

async function setUp(t: ExecutionContext, { upstreamIsModern = false } = {}) {
  const upstream = await startRecording(byMethod(RESULTS, { modern: upstreamIsModern }));
  const gateway = await startGateway({
    targets: [
      routed('t', upstream.url, CAPTURE),
      routed('hidden', upstream.url, { ...CAPTURE, denials: 'hidden' }),
      routed('plain', upstream.url),
    ],
    rights: { alice: ({ resource_name }) => resource_name === 'ok' },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  return { gateway, upstream };
}

const last = ({ decisions }: TestGateway) => {
  const { method, effect, reason, arguments: args } = decisions.at(-1) ?? {};
  return { method, effect, reason, args };
};

test.serial('arguments of calls and prompts are recorded in a session', async (t) => {
  const { gateway, upstream } = await setUp(t);
  const session = await open(gateway);
  const ask = async (method: string, params: object) => {
    await send(gateway, inSession(session, call(method, params)));
    return last(gateway);
  };
  for (const method of ['tools/call', 'prompts/get']) {
    const allowed = { method, effect: 'allow', reason: 'matched', args: MASKED } as const;
    t.deepEqual(await ask(method, { name: 'ok', arguments: ARGUMENTS }), allowed);
    t.deepEqual(await ask(method, { name: 'no', arguments: ARGUMENTS }), { ...allowed, effect: 'deny', reason: 'default' });
    t.deepEqual(await ask(method, { name: 'ok' }), { ...allowed, args: null });
  }
  const sent = upstream.received.findLast(({ message }) => message?.params?.['arguments'] !== undefined);
  t.deepEqual(sent?.message?.params?.['arguments'], ARGUMENTS, 'the target gets them whole');
  const ref = { type: 'ref/prompt', name: 'ok' };
  const typed = { ref, argument: { name: 'a', value: 'S' }, context: { arguments: { b: 'S' } }, arguments: ARGUMENTS };
  t.like(await ask('completion/complete', typed), { effect: 'allow', args: null });
  t.like(await ask('tools/list', { arguments: ARGUMENTS }), { effect: 'allow', args: null });
  t.like(await ask('resources/read', { uri: 'x:ok', arguments: ARGUMENTS }), { effect: 'deny', args: null });
});

for (const upstreamIsModern of [false, true]) {
  const target = upstreamIsModern ? 'a target of 2026-07-28' : 'a target with sessions';

  test.serial(`arguments of a client of 2026-07-28 at ${target} are recorded`, async (t) => {
    const { gateway } = await setUp(t, { upstreamIsModern });
    const ask = async (name: string, path: string) => {
      const more = { arguments: ARGUMENTS, inputResponses: { x: { action: 'accept', content: { text: 'S' } } } };
      await send(gateway, { ...modern('tools/call', { name, ...more }), path });
      return last(gateway);
    };
    t.like(await ask('ok', '/mcp/t'), { effect: 'allow', args: MASKED });
    t.like(await ask('no', '/mcp/t'), { effect: 'deny', args: MASKED });
    t.like(await ask('no', '/mcp/hidden'), { effect: 'deny', args: MASKED });
    t.like(await ask('ok', '/mcp/plain'), { effect: 'allow', args: null });
  });
}

for (const [kind, start, transport] of [
  ['a target of 2026-07-28 behind a session', startModernOnly, 'streamable-http'],
  ['a target with HTTP+SSE', startSdkSse, 'sse'],
] as const) {
  test.serial(`arguments are recorded at ${kind}`, async (t) => {
    const upstream = await start();
    const gateway = await startGateway({
      targets: [routed('t', upstream.url, { ...CAPTURE, transport })],
      rights: { alice: () => true },
    });
    t.teardown(async () => {
      await gateway.stop();
      await upstream.stop();
    });
    const session = await open(gateway);
    const reply = await send(gateway, inSession(session, call('tools/call', { name: 'echo', arguments: ARGUMENTS })));
    t.true(reply.text.includes('S'), reply.text);
    t.like(last(gateway), { effect: 'allow', args: MASKED });
  });
}

test.serial('each message of a batch has its own recorded arguments', async (t) => {
  const { gateway } = await setUp(t);
  const session = await open(gateway, { revision: '2025-03-26' });
  const messages = ['x', 'y'].map((a, id) => call('tools/call', { name: 'ok', arguments: { a, secret: 'S' } }, id));
  await send(gateway, inSession(session, messages));
  t.deepEqual(
    gateway.decisions.slice(-2).map((record) => record.arguments),
    ['x', 'y'].map((a) => JSON.stringify({ value: { a, secret: '***' }, cut: false })),
  );
});

test.serial('arguments of a caller that may not use the target are not recorded, and the answer does not show it', async (t) => {
  const { gateway } = await setUp(t);
  const ask = (path: string) =>
    send(gateway, { ...modern('tools/call', { name: 'ok', arguments: ARGUMENTS }), user: 'bob', path });
  const [there, missing] = [await ask('/mcp/t'), await ask('/mcp/x')];
  t.is(there.text, missing.text.replace('`x`', '`t`'));
  t.deepEqual(
    gateway.decisions.map(({ target_id, arguments: args }) => [target_id, args]),
    [
      ['id-of-t', null],
      [null, null],
    ],
  );
});

test.serial('nothing is forwarded if the arguments cannot be recorded', async (t) => {
  const { gateway, upstream } = await setUp(t, { upstreamIsModern: true });
  gateway.auditDown = true;
  const reply = await send(gateway, modern('tools/call', { name: 'ok', arguments: ARGUMENTS }));
  t.is(reply.status, 503);
  t.false(upstream.received.some(({ message }) => message?.method === 'tools/call'));
});

test.serial('each target decides at /mcp whether its arguments are recorded', async (t) => {
  const world = await everywhere(t, { a: RESULTS, b: RESULTS });
  const { gateway } = world;
  const a = gateway.targets.get('a');
  if (a) gateway.targets.set('a', { ...a, ...CAPTURE });
  const session = await openEverywhere(world);
  for (const [name, args] of [
    ['a__tool', MASKED],
    ['b__tool', null],
  ] as const) {
    const { error } = await world.ask(session, 'tools/call', { name, arguments: ARGUMENTS });
    t.is(error, undefined);
    const record = gateway.decisions.findLast(({ method }) => method === 'tools/call');
    t.deepEqual([record?.target_name, record?.resource_name, record?.arguments], [name[0], 'tool', args]);
  }
  t.false(JSON.stringify([gateway.decisions, gateway.shown, gateway.logged]).includes('"S"'));
});
