/** The aggregate endpoint when a target hangs: who waits, how often, and what clients learn. */
import test from 'ava';
import { createHealth } from '../../../src/mcp/upstream/health.ts';
import { createPace } from '../../../src/mcp/upstream/pace.ts';
import type { RoutedTarget } from '../../../src/targets/target.ts';
import type { Script } from '../../support/upstreams/recording.ts';
import { manualClock } from '../clock.ts';
import { call, inSession, modern, open, send } from '../raw.ts';
import { type Everywhere, everywhere, type Listening, listen, openEverywhere, target, until } from './aggregate.ts';

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

test.serial('a hanging target delays one request; every later one learns at once that the target is missing', async (t) => {
  const { at, asked, pass, health } = await setUp(t, silent);
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
  t.regex(refused.error.message, /`hung` failed before; the gateway does not ask it again before \d{4}-\d\d-\d\dT/);
  const direct = await send(at.gateway, {
    path: '/mcp/hung',
    body: call('initialize', { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } }),
  });
  t.regex(direct.text, /does not ask it again before/);
  t.regex(String(direct.headers['retry-after']), /^\d+$/);
  t.is(asked(), 1, 'it was asked once');
  t.true(at.gateway.audited().includes('tools/call tool 1 allow'), at.gateway.audited().join('\n'));

  // After a while one session tries in its background, and does not wait.
  const stream = await listen(at.gateway, session);
  pass(6_000);
  await openEverywhere(at);
  const hung = at.gateway.targets.get('hung') as RoutedTarget;
  t.is(health.report(hung).retry_at, null, 'the session was there before the try had failed');
  await until(() => asked() === 2);
  // The next one is answered, and all is as usual.
  await until(() => health.report(hung).retry_at !== null);
  at.upstreams.hung.script = well;
  pass(11_000);
  const again = await openEverywhere(at);
  await toldOfLists(stream);
  const { result } = await at.ask(again, 'tools/list');
  t.deepEqual(namesIn(result), ['fine__1', 'hung__1']);
  t.is(result._meta, undefined);
  await open(at.gateway, { target: 'hung' });
});

test.serial('a fault that one user meets does not close a target to others, and a fault that two users meet does', async (t) => {
  const { at, asked } = await setUp(t, silent);
  await openEverywhere(at, { user: 'alice' });
  await openEverywhere(at, { user: 'alice' });
  t.is(asked(), 1);
  await openEverywhere(at, { user: 'bob' });
  await until(() => asked() === 2);
  await openEverywhere(at, { user: 'bob' });
  t.is(asked(), 2);
});

test.serial('a request that does not probe a target does not make others wait for it again', async (t) => {
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

test.serial('a target that starts slowly joins later, and open streams are notified', async (t) => {
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

test.serial('a target whose lists hang is waited for once, and its calls still work', async (t) => {
  const { at, asked, pass } = await setUp(t, (received, res) =>
    received.message?.method === 'tools/list' ? undefined : well(received, res),
  );
  const session = await openEverywhere(at);
  t.deepEqual((await at.ask(session, 'tools/list')).result._meta[UNAVAILABLE], ['hung']);
  const before = asked();
  for (let i = 0; i < 3; i++) t.deepEqual((await at.ask(session, 'tools/list')).result._meta[UNAVAILABLE], ['hung']);
  t.is(asked(), before);
  t.deepEqual((await at.ask(session, 'tools/call', { name: 'hung__1' })).result, { content: [] });
  const stream = await listen(at.gateway, session);
  pass(6_000);
  at.upstreams.hung.script = well;
  await at.ask(session, 'tools/list');
  await toldOfLists(stream);
  t.is((await at.ask(session, 'tools/list')).result._meta, undefined);
});

test.serial('a list that hangs is not requested again when other sessions open', async (t) => {
  const { at } = await setUp(t, (received, res) => (received.message?.method === 'tools/list' ? undefined : well(received, res)));
  const lists = (): number => at.upstreams.hung.seen().filter((method) => method === 'tools/list').length;
  const session = await openEverywhere(at);
  for (let i = 0; i < 3; i++) {
    t.deepEqual((await at.ask(session, 'tools/list')).result._meta[UNAVAILABLE], ['hung']);
    await openEverywhere(at, { user: 'bob' });
  }
  t.is(lists(), 1);
});

/** The tests set the clock, so no wait ends because real time has passed. */
const LATE_MS = 100;
const limits = { lateMs: LATE_MS, joinMs: 600_000, openMs: 600_000 };

/** `hangs`: the methods that the target does not answer before `answer` is called. */
async function setUpLate(t: Parameters<typeof everywhere>[0], hangs: (method: string) => boolean) {
  const clock = manualClock();
  let answer: () => void = () => undefined;
  const answering = new Promise<void>((resolve) => {
    answer = resolve;
  });
  const hung: Script = async (received, res) => {
    if (hangs(received.message?.method ?? received.httpMethod)) await answering;
    return well(received, res);
  };
  const at = await everywhere(t, { fine: results, hung }, { limits, deps: { pace: createPace(limits, clock) } });
  const seen = (method: string): number => at.upstreams.hung.seen().filter((one) => one === method).length;
  /** The target gets late while these wait for it. */
  const late = async <T>(method: string, waiting: readonly Promise<T>[]): Promise<T[]> => {
    await until(() => seen(method) === waiting.length);
    clock.pass(LATE_MS);
    return Promise.all(waiting);
  };
  return { at, seen, late, answer, clock };
}

const namesIn = (result: { tools: { name: string }[] }): string[] => result.tools.map(({ name }) => name);
const list = (at: Everywhere<string>, session: string) => at.ask(session, 'tools/list');
const toldOfLists = (stream: Listening): Promise<void> =>
  stream.until(() => stream.messages().some(({ method }) => method === 'notifications/tools/list_changed'));

test('sessions do not wait for a target that does not answer, and get it when it answers', async (t) => {
  const { at, seen, late, answer } = await setUpLate(t, (method) => method === 'initialize');
  const sessions = await late('initialize', [openEverywhere(at), openEverywhere(at, { user: 'bob' })]);
  for (let i = 0; i < 3; i++) sessions.push(await openEverywhere(at));
  t.is(seen('initialize'), 2, 'nobody asks it twice at a time');
  const [session = ''] = sessions;
  const { result } = await list(at, session);
  t.deepEqual(namesIn(result), ['fine__1']);
  t.deepEqual(result._meta[UNAVAILABLE], ['hung']);
  t.deepEqual((await at.ask(session, 'tools/call', { name: 'fine__1' })).result, { content: [] });
  const opened = at.gateway.decisions.filter(({ method }) => method === 'initialize');
  t.is(opened.length, 2 * sessions.length, 'each session is recorded at each target');

  const stream = await listen(at.gateway, session);
  answer();
  await toldOfLists(stream);
  for (const one of [session, sessions.at(-1) ?? '']) {
    const { result } = await list(at, one);
    t.deepEqual(namesIn(result), ['fine__1', 'hung__1']);
    t.is(result._meta, undefined);
  }
});

test('a session without others has a slow target in its first list, and other sessions do not wait for it', async (t) => {
  const { at, seen, answer, clock } = await setUpLate(t, (method) => method === 'initialize');
  const first = openEverywhere(at);
  await until(() => seen('initialize') === 1);
  clock.pass(2_000);
  const second = await openEverywhere(at, { user: 'bob' });
  t.deepEqual((await at.ask(second, 'tools/list', {}, { user: 'bob' })).result._meta[UNAVAILABLE], ['hung']);
  answer();
  t.deepEqual(namesIn((await list(at, await first)).result), ['fine__1', 'hung__1']);
});

test('lists do not wait for a target that hangs only at lists, and each list is recorded', async (t) => {
  const { at, seen, late, answer } = await setUpLate(t, (method) => method === 'tools/list');
  const [one, two] = [await openEverywhere(at), await openEverywhere(at)];
  const lists = await late('tools/list', [list(at, one), list(at, two)]);
  for (let i = 0; i < 3; i++) lists.push(await list(at, one));
  for (const { result } of lists) t.deepEqual([namesIn(result), result._meta[UNAVAILABLE]], [['fine__1'], ['hung']]);
  t.is(seen('tools/list'), 2);
  t.is(at.gateway.decisions.filter(({ method }) => method === 'tools/list').length, 2 * lists.length);
  t.deepEqual((await at.ask(one, 'tools/call', { name: 'hung__1' })).result, { content: [] });

  const stream = await listen(at.gateway, one);
  answer();
  await toldOfLists(stream);
  t.deepEqual(namesIn((await list(at, two)).result), ['fine__1', 'hung__1']);
});

test('targets are asked while more of the others than are asked at once do not answer', async (t) => {
  const clock = manualClock();
  const mute = Object.fromEntries(Array.from({ length: 20 }, (_, i) => [`hung-${i}`, silent]));
  const scripts: Record<string, Script> = { ...mute, well };
  const at = await everywhere(t, scripts, { limits, deps: { pace: createPace(limits, clock) } });
  const opening = openEverywhere(at);
  await until(() => at.upstreams['well']?.seen().includes('initialize') === true);
  clock.pass(LATE_MS);
  clock.pass(limits.joinMs);
  const { result } = await list(at, await opening);
  t.deepEqual(namesIn(result), ['well__1']);
  t.is(result._meta[UNAVAILABLE].length, 20);
});

for (const [what, method, message] of [
  ['begin', 'notifications/initialized', { body: { jsonrpc: '2.0', method: 'notifications/initialized' } }],
  ['end', 'DELETE', { method: 'DELETE' }],
] as const) {
  test(`a target that does not answer the ${what} of sessions does not delay them`, async (t) => {
    const { at, late } = await setUpLate(t, (one) => one === method);
    const sessions = await Promise.all([1, 2].map(() => openEverywhere(at, { ready: method === 'DELETE' })));
    const replies = await late(
      method,
      sessions.map((id) =>
        at.send('body' in message ? inSession(id, message.body) : { ...message, headers: ['mcp-session-id', id] }),
      ),
    );
    for (const { status } of replies) t.true(status < 300);
  });
}
