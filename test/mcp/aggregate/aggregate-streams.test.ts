/** The standalone stream of the aggregate endpoint. */
import type { ServerResponse } from 'node:http';
import test from 'ava';
import { createHealth } from '../../../src/mcp/upstream/health.ts';
import type { Script } from '../../support/upstreams/recording.ts';
import { routed } from '../gateway.ts';
import { call, inSession } from '../raw.ts';
import { event, everywhere, listen, openEverywhere, startStream, target, until } from './aggregate.ts';

interface Standing {
  readonly script: Script;
  /** The streams that are open, newest last, by session. */
  readonly streams: { readonly session: string; readonly lastEventId: string | undefined; readonly res: ServerResponse }[];
  /** The number of GETs, including refused ones. */
  asked: number;
  /** Answers a GET instead of the default. */
  status: number;
}

function standing(results: Parameters<typeof target>[0] = {}): Standing {
  const plain = target(results);
  const one: Standing = {
    streams: [],
    asked: 0,
    status: 200,
    script(received, res) {
      if (received.httpMethod !== 'GET') return plain(received, res);
      one.asked++;
      if (one.status !== 200) return void res.writeHead(one.status).end();
      const { 'mcp-session-id': session, 'last-event-id': lastEventId } = received.headers;
      startStream(res);
      const stream = { session: String(session), lastEventId: lastEventId as string | undefined, res };
      one.streams.push(stream);
      res.once('close', () => one.streams.splice(one.streams.indexOf(stream), 1));
    },
  };
  return one;
}

const tell = ({ streams }: Standing, message: object, id?: string): void => {
  for (const { res } of streams) res.write(event(message, id));
};
const updated = (uri: string) => ({ method: 'notifications/resources/updated', params: { uri } });
const log = (data: unknown) => ({ method: 'notifications/message', params: { level: 'info', data } });
const dataOf = (stream: { messages(): { params?: { data?: unknown } }[] }) =>
  stream.messages().flatMap(({ params }) => (params?.data === undefined ? [] : [params.data]));

test.serial('one stream carries the messages of all targets, each with joined names', async (t) => {
  const [a, b] = [standing(), standing()];
  const rights = { alice: ({ resource_name }: { resource_name: string }) => !resource_name.includes('secret') };
  const at = await everywhere(t, { a: a.script, b: b.script, none: {} }, { rights });
  const session = await openEverywhere(at);
  const stream = await listen(at.gateway, session);
  await until(() => a.streams.length === 1 && b.streams.length === 1);
  tell(a, { method: 'notifications/tools/list_changed' });
  await stream.until(() => stream.messages().length === 1);
  tell(b, updated('file:///secret'));
  tell(b, updated('file:///x'));
  await stream.until(() => stream.messages().length === 2);
  tell(a, { id: 3, method: 'roots/list' });
  await stream.until(() => stream.messages().length === 3);
  const [changed, update, asked] = stream.messages();
  t.is(changed?.method, 'notifications/tools/list_changed');
  t.deepEqual(update?.params, { uri: 'b+file:///x' });
  t.is(asked?.method, 'roots/list');
  await at.send(inSession(session, { jsonrpc: '2.0', id: asked?.id, result: { roots: [] } }));
  t.deepEqual(at.upstreams.a.received.at(-1)?.message, { jsonrpc: '2.0', id: 3, result: { roots: [] } } as never);
  t.deepEqual(
    at.gateway.decisions
      .filter(({ method }) => method !== 'initialize')
      .map((row) => `${row.target_name} ${row.method} ${row.effect}`),
    [
      ...['a GET allow', 'b GET allow', 'none GET allow'],
      'b notifications/resources/updated deny',
      'b notifications/resources/updated allow',
      'a roots/list allow',
    ],
  );
  stream.stop();
  await until(() => a.streams.length === 0 && b.streams.length === 0);
});

test.serial("a stream carries nothing from other callers' sessions or from other sessions of its caller", async (t) => {
  const a = standing();
  const at = await everywhere(t, { a: a.script });
  const sessions = [await openEverywhere(at), await openEverywhere(at), await openEverywhere(at, { user: 'bob' })] as const;
  const streams = [
    await listen(at.gateway, sessions[0]),
    await listen(at.gateway, sessions[1]),
    await listen(at.gateway, sessions[2], { user: 'bob' }),
  ];
  await until(() => a.streams.length === 3);
  for (const { session, res } of a.streams) res.write(event(log(session)));
  for (const [index, stream] of streams.entries()) {
    await stream.until(() => stream.messages().length > 0);
    t.deepEqual(dataOf(stream), [`upstream-${index + 1}`]);
  }
});

test.serial('targets join and leave the stream as rights change, and the client keeps its stream', async (t) => {
  const [a, b] = [standing(), standing()];
  const at = await everywhere(t, { a: a.script, b: b.script });
  const late = routed('b', at.upstreams.b.url);
  at.gateway.targets.delete('b');
  const session = await openEverywhere(at);
  const stream = await listen(at.gateway, session);
  await until(() => a.streams.length === 1);
  t.is(b.asked, 0);
  at.gateway.targets.set('b', late);
  await until(() => b.streams.length === 1);
  await stream.until(() => stream.messages().length >= 3);
  t.deepEqual(
    stream
      .messages()
      .map(({ method }) => method)
      .sort(),
    ['notifications/prompts/list_changed', 'notifications/resources/list_changed', 'notifications/tools/list_changed'],
  );
  tell(b, log('from b'));
  tell(a, log('from a'));
  await stream.until(() => dataOf(stream).length === 2);
  t.deepEqual(
    at.gateway.decisions.filter(({ method }) => method === 'GET').map((row) => row.target_name),
    ['a', 'b'],
  );
  // An upstream session that is opened now must not end streams that have joined since.
  await at.ask(session, 'tools/call', { name: 'b__x' });
  t.is(b.streams.length, 1);
  at.gateway.targets.delete('a');
  await until(() => a.streams.length === 0);
  tell(b, log('still'));
  await stream.until(() => dataOf(stream).length === 3);
  t.false(stream.isEnded());
  t.is(at.gateway.decisions.filter(({ method }) => method === 'GET').length, 2);
  at.gateway.targets.set('a', routed('a', at.upstreams.a.url));
  await until(() => a.streams.length === 1);
  t.is(at.gateway.decisions.filter(({ method }) => method === 'GET').length, 3, 'each time that it joins');
});

test.serial('a message is dropped if the caller has just lost the right to its target', async (t) => {
  const a = standing();
  // So long that the stream is not looked at before the message comes.
  const at = await everywhere(t, { a: a.script }, { limits: { watchMs: 60_000 } });
  const stream = await listen(at.gateway, await openEverywhere(at));
  await until(() => a.streams.length === 1);
  at.gateway.targets.delete('a');
  tell(a, log('too late'));
  await until(() => a.streams.length === 0);
  t.deepEqual(stream.messages(), []);
});

test.serial('a target joins the stream only after the decision is recorded', async (t) => {
  const b = standing();
  const at = await everywhere(t, { b: b.script });
  const late = routed('b', at.upstreams.b.url);
  at.gateway.targets.delete('b');
  const stream = await listen(at.gateway, await openEverywhere(at));
  at.gateway.auditDown = true;
  at.gateway.targets.set('b', late);
  await stream.until(() => stream.messages().length >= 3);
  t.is(at.upstreams.b.received.length, 0);
  at.gateway.auditDown = false;
  await until(() => b.streams.length === 1);
  t.is(at.gateway.decisions.filter((row) => row.target_name === 'b' && row.method === 'GET').length, 1);
});

test.serial("a target's stream that breaks off is opened again, and the client's stream goes on", async (t) => {
  const [a, b] = [standing(), standing()];
  const at = await everywhere(t, { a: a.script, b: b.script });
  const stream = await listen(at.gateway, await openEverywhere(at));
  await until(() => a.streams.length === 1);
  tell(a, log(1), 'event-1');
  await stream.until(() => dataOf(stream).length === 1);
  a.streams[0]?.res.end();
  await until(() => a.asked === 2 && a.streams.length === 1);
  t.is(a.streams[0]?.lastEventId, 'event-1', 'from where it broke off');
  tell(a, log(2));
  await stream.until(() => dataOf(stream).length === 2);
  t.is(b.asked, 1);
  t.false(stream.isEnded());
});

test.serial('a busy target is asked for its stream again, and a target without a stream is not', async (t) => {
  const [busy, none, wrong] = [standing(), standing(), standing()];
  none.status = 405;
  wrong.status = 404;
  const script: Script = (received, res) => {
    busy.status = busy.asked < 2 ? 409 : 200;
    return busy.script(received, res);
  };
  const at = await everywhere(t, { busy: script, none: none.script, wrong: wrong.script });
  const stream = await listen(at.gateway, await openEverywhere(at));
  // The busy target is asked a third time after twice the pause in which the others would have been asked again.
  await until(() => busy.streams.length === 1 && none.asked >= 1 && wrong.asked >= 2);
  t.deepEqual([busy.asked, none.asked, wrong.asked], [3, 1, 2]);
  t.is(at.upstreams.wrong.seen().filter((method) => method === 'initialize').length, 2);
  // Nor after a change of rights, which is asked for in the order of names.
  at.gateway.targets.delete('wrong');
  await stream.until(() => stream.messages().length >= 3);
  at.gateway.targets.set('wrong', routed('wrong', at.upstreams.wrong.url));
  await until(() => wrong.asked > 2);
  t.is(none.asked, 1);
  stream.stop();
});

test.serial('a target that fails every other time announces its return once a second', async (t) => {
  const a = standing();
  let recovered: (targetId: string, missed: ReadonlySet<string> | null) => void = () => undefined;
  const onRecovered = (listener: typeof recovered): (() => void) => {
    recovered = listener;
    return () => undefined;
  };
  const at = await everywhere(t, { a: a.script }, { deps: { health: { ...createHealth(Date.now), onRecovered } } });
  const stream = await listen(at.gateway, await openEverywhere(at));
  await until(() => a.streams.length === 1);
  const flap = (missed: readonly string[] | null = null): void => {
    for (let i = 0; i < 10; i++) recovered(at.gateway.targets.get('a')?.id ?? '', missed && new Set(missed));
  };
  flap(['bob']);
  tell(a, log('first'));
  await stream.until(() => dataOf(stream).length === 1);
  t.is(stream.messages().length, 1, 'it was there for this user');
  flap();
  await stream.until(() => stream.messages().length === 4);
  const told = performance.now();
  flap(['alice']);
  await stream.until(() => stream.messages().length > 4);
  t.true(performance.now() - told > 500);
  tell(a, log('last'));
  await stream.until(() => dataOf(stream).length === 2);
  t.is(stream.messages().length, 8);
});

test.serial('a target that was down joins the open stream when it is back', async (t) => {
  const a = standing({ 'tools/list': { tools: [] } });
  let down = true;
  let tries = 0;
  const script: Script = (received, res) => {
    if (!down) return a.script(received, res);
    tries++;
    res.destroy();
  };
  let ahead = 0;
  const at = await everywhere(t, { a: script }, { deps: { health: createHealth(() => Date.now() + ahead) } });
  const session = await openEverywhere(at);
  const stream = await listen(at.gateway, session);
  // The gateway tries when the session is opened, when the stream is opened, and later. Then it pauses longer than the test.
  await until(() => tries >= 4);
  down = false;
  ahead = 60_000;
  await at.ask(session, 'tools/list');
  const began = performance.now();
  await until(() => a.streams.length === 1);
  t.true(performance.now() - began < 7_000, 'at once, when its half is there');
  tell(a, log('back'));
  await stream.until(() => dataOf(stream).length === 1);
  t.false(stream.isEnded());
});

test.serial("a target cannot report the progress of another target's call", async (t) => {
  const [a, b] = [standing(), standing()];
  const calls: ServerResponse[] = [];
  const at = await everywhere(t, {
    a: (received, res) => {
      if (received.message?.method !== 'tools/call') return a.script(received, res);
      startStream(res);
      calls.push(res);
    },
    b: b.script,
  });
  const session = await openEverywhere(at);
  const stream = await listen(at.gateway, session);
  await until(() => a.streams.length === 1 && b.streams.length === 1);
  const body = call('tools/call', { name: 'a__x', _meta: { progressToken: 1 } }, 7);
  const answer = await listen(at.gateway, session, { body });
  const progressOf = (progressToken: unknown) => ({ method: 'notifications/progress', params: { progressToken, progress: 1 } });
  const progress = progressOf(1);
  // All of them are 1 to clients of the SDK.
  for (const token of [1, '1', '01', '1.0', ' 1 ', '0x1']) tell(b, progressOf(token));
  tell(b, log('after it'));
  await stream.until(() => dataOf(stream).length === 1);
  t.is(stream.messages().length, 1);
  tell(a, progress);
  await stream.until(() => stream.messages().length === 2);
  calls[0]?.end(event({ id: 7, result: { content: [] } }));
  await answer.until(answer.isEnded);
});

test.serial("a resumed answer carries no progress of another target's call", async (t) => {
  const one = () => {
    const plain = standing();
    const calls: ServerResponse[] = [];
    const script: Script = (received, res) => {
      if (received.message?.method !== 'tools/call') return plain.script(received, res);
      startStream(res);
      calls.push(res);
    };
    return { ...plain, calls, script };
  };
  const [a, b] = [one(), one()];
  const at = await everywhere(t, { a: a.script, b: b.script });
  const session = await openEverywhere(at);
  const first = await listen(at.gateway, session, { body: call('tools/call', { name: 'a__x' }, 7) });
  a.calls[0]?.write(event(log(1), 'e1'));
  await first.until(() => first.ids().length === 1);
  a.calls[0]?.end();
  await first.until(first.isEnded);
  const other = await listen(at.gateway, session, { body: call('tools/call', { name: 'b__x', _meta: { progressToken: 8 } }, 8) });
  const rest = await listen(at.gateway, session, { headers: ['last-event-id', first.ids()[0] ?? ''] });
  await until(() => a.streams.length === 1);
  tell(a, { method: 'notifications/progress', params: { progressToken: '8', progress: 1 } });
  tell(a, { id: 7, result: { content: [] } });
  await rest.until(rest.isEnded);
  t.deepEqual(
    rest.messages().map(({ id }) => id),
    [7],
  );
  b.calls[0]?.end(event({ id: 8, result: { content: [] } }));
  await other.until(other.isEnded);
});

test.serial('a stream resumes after its last event at the target that sent the event', async (t) => {
  const [a, b] = [standing(), standing()];
  const at = await everywhere(t, { a: a.script, b: b.script });
  const [session, other] = [await openEverywhere(at), await openEverywhere(at)];
  const bobs = await openEverywhere(at, { user: 'bob' });
  const stream = await listen(at.gateway, session);
  await until(() => a.streams.length === 1 && b.streams.length === 1);
  tell(b, log(1), 'e1');
  await stream.until(() => stream.ids().length === 1);
  const id = stream.ids()[0] ?? '';
  t.regex(id, /^b__/);
  stream.stop();
  await until(() => a.streams.length === 0 && b.streams.length === 0);
  const asked = [a.asked, b.asked];
  const edited = `${id.slice(0, 40)}${id[40] === 'A' ? 'B' : 'A'}${id.slice(41)}`;
  for (const [at_, who, event] of [
    [other, 'alice', id],
    [bobs, 'bob', id],
    [session, 'alice', id.replace('b__', 'a__')],
    [session, 'alice', id.replace('b__', 'zz__')],
    [session, 'alice', id.slice(3)],
    [session, 'alice', edited],
    [session, 'alice', 'e1'],
    [session, 'alice', 'b__e1'],
  ] as const) {
    const refused = await listen(at.gateway, at_, { user: who, headers: ['last-event-id', event] });
    t.is(refused.status, 404, event);
  }
  t.deepEqual([a.asked, b.asked], asked);
  const again = await listen(at.gateway, session, { headers: ['last-event-id', id] });
  await until(() => a.streams.length === 1 && b.streams.length === 1);
  t.deepEqual([a.streams[0]?.lastEventId, b.streams[0]?.lastEventId], [undefined, 'e1']);
  tell(a, log(2));
  await again.until(() => dataOf(again).length === 1);
});

test.serial('an answer that broke off resumes on its own stream, and is checked as before', async (t) => {
  const [a, b] = [standing(), standing()];
  const calls: ServerResponse[] = [];
  const rights = { alice: ({ resource_name }: { resource_name: string }) => !resource_name.includes('secret') };
  const at = await everywhere(
    t,
    {
      a: (received, res) => {
        if (received.message?.method !== 'tools/call') return a.script(received, res);
        startStream(res);
        calls.push(res);
      },
      b: b.script,
    },
    { rights },
  );
  const session = await openEverywhere(at);
  const standingStream = await listen(at.gateway, session);
  await until(() => a.streams.length === 1 && b.streams.length === 1);
  const first = await listen(at.gateway, session, { body: call('tools/call', { name: 'a__x' }, 7) });
  calls[0]?.write(event(log(1), 'e1'));
  await first.until(() => first.ids().length === 1);
  calls[0]?.end();
  await first.until(first.isEnded);
  const asked = b.asked;
  const rest = await listen(at.gateway, session, { headers: ['last-event-id', first.ids()[0] ?? ''] });
  await until(() => a.streams.length === 2);
  const resumed = a.streams[1];
  t.is(resumed?.lastEventId, 'e1');
  t.is(b.asked, asked, 'the other targets have nothing to do with it');
  const links = ['x:1', 'x:secret'].map((uri) => ({ type: 'resource_link', uri, name: 'n' }));
  resumed?.res.write(event({ id: 7, result: { content: links } }));
  await rest.until(rest.isEnded);
  t.deepEqual(rest.messages(), [
    { jsonrpc: '2.0', id: 7, result: { content: [{ type: 'resource_link', uri: 'a+x:1', name: 'n' }] } },
  ] as never);
  t.false(standingStream.isEnded());
  const { id } = at.gateway.decisions.find(({ method }) => method === 'tools/call') ?? {};
  t.deepEqual(
    at.gateway.outcomes.filter(({ decision_id }) => decision_id === id).map(({ outcome }) => outcome),
    ['ok'],
  );
});

test.serial('the answer of a tool that was denied meanwhile is not resumed', async (t) => {
  const a = standing();
  const at = await everywhere(t, {
    a: (received, res) => {
      if (received.message?.method !== 'tools/call') return a.script(received, res);
      startStream(res);
      res.end(event(log(1), 'e1'));
    },
  });
  const session = await openEverywhere(at);
  const first = await listen(at.gateway, session, { body: call('tools/call', { name: 'a__x' }, 7) });
  await first.until(first.isEnded);
  const resume = () => listen(at.gateway, session, { headers: ['last-event-id', first.ids()[0] ?? ''] });
  const rest = await resume();
  await until(() => a.streams.length === 1);
  t.is(at.gateway.audited().at(-1), 'GET tool x allow');
  at.gateway.rights.set('alice', ({ resource_name }) => resource_name !== 'x');
  const { asked } = a;
  t.is((await resume()).status, 404);
  t.is(at.gateway.audited().at(-1), 'GET tool x deny');
  t.is(a.asked, asked);
  // A stream that was resumed before may finish, like the one that broke off.
  tell(a, { id: 7, result: { content: [] } });
  await rest.until(rest.isEnded);
  t.deepEqual(
    rest.messages().map(({ id }) => id),
    [7],
  );
});

test.serial('the stream ends with its session', async (t) => {
  const [a, keeps] = [standing(), standing()];
  const at = await everywhere(t, {
    a: a.script,
    // Does not end sessions, nor their streams.
    keeps: (received, res) => (received.httpMethod === 'DELETE' ? void res.writeHead(405).end() : keeps.script(received, res)),
  });
  const [session, other] = [await openEverywhere(at), await openEverywhere(at)];
  const [stream, others] = [await listen(at.gateway, session), await listen(at.gateway, other)];
  await until(() => keeps.streams.length === 2);
  t.is((await at.send({ method: 'DELETE', headers: ['mcp-session-id', session] })).status, 200);
  await stream.until(stream.isEnded);
  await until(() => keeps.streams.length === 1 && a.streams.length === 1);
  t.false(others.isEnded());
});

test.serial('the stream reconnects to the new address of a target that has moved', async (t) => {
  const [a, elsewhere] = [standing(), standing()];
  const at = await everywhere(t, { a: a.script, elsewhere: elsewhere.script });
  at.gateway.targets.delete('elsewhere');
  const session = await openEverywhere(at);
  const stream = await listen(at.gateway, session);
  await until(() => a.streams.length === 1);
  tell(a, log(1), 'e1');
  await stream.until(() => dataOf(stream).length === 1);
  at.gateway.targets.set('a', routed('a', at.upstreams.elsewhere.url));
  await until(() => a.streams.length === 0 && elsewhere.streams.length === 1);
  t.is(elsewhere.streams[0]?.lastEventId, undefined);
  t.is(at.upstreams.elsewhere.received[0]?.headers['mcp-session-id'], undefined);
  tell(elsewhere, log(2));
  await stream.until(() => dataOf(stream).length === 2);
});

test.serial('a target cannot set the retry time of the client', async (t) => {
  const a = standing();
  const at = await everywhere(t, { a: a.script });
  const stream = await listen(at.gateway, await openEverywhere(at));
  await until(() => a.streams.length === 1);
  a.streams[0]?.res.write('retry: 1\n\n');
  a.streams[0]?.res.write(`retry: 1\nid: e1\ndata:\n\n`);
  tell(a, log(1));
  await stream.until(() => dataOf(stream).length === 1);
  t.notRegex(stream.text(), /retry/);
  t.is(stream.ids().length, 1);
});
