/** All targets at once, when one of them hangs: who waits, how often, and what is said. */
import test from 'ava';
import { createHealth } from '../../src/mcp/upstream/health.ts';
import type { Script } from '../support/upstreams/recording.ts';
import { everywhere, listen, openEverywhere, target } from './aggregate.ts';
import { call, modern, open, send } from './raw.ts';

const UNAVAILABLE = 'portcullis/unavailable';
const tools = { 'tools/list': { tools: [{ name: '1', inputSchema: { type: 'object' } }] } };
const results = { ...tools, 'tools/call': { content: [] } };
const well = target(results);
const silent: Script = () => undefined;

async function setUp(t: Parameters<typeof everywhere>[0], hung: Script) {
  let offset = 0;
  const health = createHealth(() => Date.now() + offset);
  const at = await everywhere(t, { fine: results, hung }, { limits: { joinMs: 700, openMs: 5_000 }, deps: { health } });
  const asked = (): number => at.upstreams.hung.received.filter(({ httpMethod }) => httpMethod !== 'DELETE').length;
  return {
    at,
    health,
    asked,
    pass: (ms: number) => {
      offset += ms;
    },
  };
}

test.serial('a target that hangs is waited for once, and everybody is told at once that it is missing', async (t) => {
  const { at, asked, pass } = await setUp(t, silent);
  const session = await openEverywhere(at);
  t.is(asked(), 1);
  for (let i = 0; i < 3; i++) {
    const again = await openEverywhere(at);
    const { result } = await at.ask(again, 'tools/list');
    t.deepEqual(
      result.tools.map(({ name }: { name: string }) => name),
      ['fine__1'],
    );
    t.deepEqual(result._meta[UNAVAILABLE], ['hung']);
  }
  const refused = await at.ask(session, 'tools/call', { name: 'hung__1' });
  t.is(refused.error.code, -32603);
  t.regex(refused.error.message, /`hung` failed before and is not asked again until \d{4}-\d\d-\d\dT/);
  const direct = await send(at.gateway, {
    path: '/mcp/hung',
    body: call('initialize', { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } }),
  });
  t.regex(direct.text, /not asked again until/);
  t.regex(String(direct.headers['retry-after']), /^\d+$/);
  t.is(asked(), 1, 'it was asked once');
  t.true(at.gateway.audited().includes('tools/call tool 1 allow'), at.gateway.audited().join('\n'));

  // After a while one request tries; the target answers, and all is as usual.
  at.upstreams.hung.script = well;
  pass(6_000);
  const { result } = await at.ask(await openEverywhere(at), 'tools/list');
  t.deepEqual(
    result.tools.map(({ name }: { name: string }) => name),
    ['fine__1', 'hung__1'],
  );
  t.is(result._meta, undefined);
  await open(at.gateway, { target: 'hung' });
});

test.serial('what one user meets does not close a target to another; what two meet does', async (t) => {
  const { at, asked } = await setUp(t, silent);
  await openEverywhere(at, { user: 'alice' });
  await openEverywhere(at, { user: 'alice' });
  t.is(asked(), 1);
  await openEverywhere(at, { user: 'bob' });
  t.is(asked(), 2);
  await openEverywhere(at, { user: 'bob' });
  t.is(asked(), 2);
});

test.serial('a request that does not ask a target whether it is there does not make others wait for it again', async (t) => {
  const { at, asked } = await setUp(t, well);
  const request = () => send(at.gateway, { ...modern('tools/call', { name: '1' }), path: '/mcp/hung', user: 'bob' });
  t.is((await request()).code, -32022, 'it speaks the session revisions, which is known from now on');
  at.upstreams.hung.script = silent;
  await openEverywhere(at);
  const before = asked();
  t.is((await request()).code, -32022);
  await openEverywhere(at);
  t.is(asked(), before);
});

test.serial('a target that is slow to begin joins later, and open streams are told', async (t) => {
  let begin: () => void = () => undefined;
  const begun = new Promise<void>((resolve) => {
    begin = resolve;
  });
  const { at } = await setUp(t, async (received, res) => {
    if (received.message?.method === 'initialize') await begun;
    return well(received, res);
  });
  const session = await openEverywhere(at);
  t.deepEqual((await at.ask(session, 'tools/list')).result._meta[UNAVAILABLE], ['hung']);
  const stream = await listen(at.gateway, session);
  begin();
  await stream.until(() => stream.messages().some(({ method }) => method === 'notifications/tools/list_changed'));
  const { result } = await at.ask(session, 'tools/list');
  t.deepEqual(
    result.tools.map(({ name }: { name: string }) => name),
    ['fine__1', 'hung__1'],
  );
  stream.stop();
});

test.serial('a target whose lists hang is waited for once; its calls go on', async (t) => {
  const { at, asked, pass } = await setUp(t, (received, res) =>
    received.message?.method === 'tools/list' ? undefined : well(received, res),
  );
  const session = await openEverywhere(at);
  t.deepEqual((await at.ask(session, 'tools/list')).result._meta[UNAVAILABLE], ['hung']);
  const before = asked();
  for (let i = 0; i < 3; i++) t.deepEqual((await at.ask(session, 'tools/list')).result._meta[UNAVAILABLE], ['hung']);
  t.is(asked(), before);
  t.deepEqual((await at.ask(session, 'tools/call', { name: 'hung__1' })).result, { content: [] });
  pass(6_000);
  at.upstreams.hung.script = well;
  t.is((await at.ask(session, 'tools/list')).result._meta, undefined);
});
