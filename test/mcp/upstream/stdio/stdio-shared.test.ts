import test from 'ava';
import { isFault } from '../../../../src/mcp/upstream/upstream.ts';
import {
  INITIALIZE,
  initialize,
  isAlive,
  type Message,
  open,
  outcomeOf,
  type Place,
  placeFor,
  startStdio,
  stream,
  textOf,
  until,
} from '../../../support/upstreams/stdio.ts';

const shared = (options: Parameters<typeof placeFor>[0] = {}): Place => placeFor({ scope: 'all', ...options });
const pidOf = (message: Message) => message.result.pid as number;

test.serial('sessions of one scope share a process, which gets one initialize', async (t) => {
  const { upstream } = startStdio(t);
  const clients = await Promise.all(Array.from({ length: 5 }, () => open(upstream, shared())));
  const facts = await Promise.all(clients.map((client) => client.call('facts')));
  t.is(new Set(facts.map(pidOf)).size, 1);
  t.is(new Set(clients.map(({ id }) => id)).size, 5);
  t.is(facts[0]?.result.counts.initialize, 1);
  const received = (await clients[0]?.received()) ?? [];
  t.is(received.filter(({ method }) => method === 'notifications/initialized').length, 1);
  t.deepEqual(received[0]?.params, {
    protocolVersion: '2025-11-25',
    capabilities: {},
    clientInfo: { name: 'portcullis', version: '0' },
  });
});

test.serial('another scope, credential or address means another process', async (t) => {
  const { upstream } = startStdio(t);
  const places = [shared(), shared({ scope: 'other' }), shared({ identity: 'other' }), shared({ env: { A: 'b' } }), placeFor()];
  const clients = await Promise.all(places.map((place) => open(upstream, place)));
  const pids = await Promise.all(clients.map(async (client) => pidOf(await client.call('facts'))));
  t.is(new Set(pids).size, places.length);
});

test.serial("initialize is answered with the client's id, a revision that it speaks and reduced capabilities", async (t) => {
  const { upstream } = startStdio(t);
  for (const [requested, answered] of [
    ['2025-11-25', '2025-11-25'],
    ['2025-03-26', '2025-03-26'],
    ['2099-01-01', '2025-11-25'],
  ]) {
    const params = { ...INITIALIZE.params, protocolVersion: requested };
    const { opened } = await open(upstream, shared(), { ...INITIALIZE, id: `id-${requested}`, params });
    t.deepEqual(opened, {
      jsonrpc: '2.0',
      id: `id-${requested}`,
      result: {
        protocolVersion: answered,
        capabilities: { tools: {}, completions: {}, resources: { listChanged: true } },
        serverInfo: { name: 'fixture', version: '1' },
      },
    });
  }
});

test.serial('200 simultaneous calls of 5 sessions with equal ids and tokens each get their own answer', async (t) => {
  const { upstream } = startStdio(t);
  const clients = await Promise.all(Array.from({ length: 5 }, () => open(upstream, shared())));
  const calls = clients.flatMap((client, who) => Array.from({ length: 40 }, (_, id) => ({ client, who, id })));
  const meta = { progressToken: 't' };
  const answers = await Promise.all(
    calls.map(async ({ client, who, id }) => (await client.start('echo', { who, id, delay: (id * 7) % 40 }, { id, meta })).all()),
  );
  t.deepEqual(
    answers.map((messages) => messages.map((message) => [message.id, message.result])),
    calls.map(({ who, id }) => [[id, { who, id }]]),
  );
});

test.serial('an answer without an id reaches nobody at a process of several sessions', async (t) => {
  const { upstream } = startStdio(t);
  const secret = JSON.stringify({ jsonrpc: '2.0', id: null, error: { code: -32700, message: 'cannot read: SECRET OF ONE' } });
  const [one, two] = await Promise.all([open(upstream, shared()), open(upstream, shared())]);
  // Printed when the call of the first session is over, and that of the second is the only one under way.
  await one.call('later', { lines: [secret] });
  const waiting = await two.start('echo', { delay: 300 }, { id: 5 });
  t.deepEqual(
    (await waiting.all()).map(({ id, error }) => [id, error]),
    [[5, undefined]],
  );
});

test.serial('progress reaches only the session that asked', async (t) => {
  const { upstream } = startStdio(t);
  const [one, two] = await Promise.all([open(upstream, shared()), open(upstream, shared())]);
  const standing = await two.listen();
  const waiting = await two.start('never', {}, { id: 1, meta: { progressToken: 'p' } });
  const asking = await one.start('progress', { count: 2 }, { id: 1, meta: { progressToken: 'p' } });
  const messages = await asking.all();
  t.deepEqual(
    messages.slice(0, -1).map(({ params }) => params),
    [
      { progressToken: 'p', progress: 1, total: 2 },
      { progressToken: 'p', progress: 2, total: 2 },
    ],
  );
  t.not(messages.at(-1)?.result.progressToken, 'p', 'the process knows it under another one');
  // An unknown token, and the token of a request that asked for no progress.
  const forged = (progressToken: unknown) =>
    JSON.stringify({ jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken, progress: 9 } });
  const plain = await one.start('never', {}, { id: 5 });
  await one.call(
    'print',
    { lines: [forged('p'), forged(999), forged(null), ...Array.from({ length: 3 }, (_, id) => forged(id + 10))] },
    6,
  );
  two.send({ method: 'DELETE' });
  await t.throwsAsync(
    waiting.all().then(
      () => undefined,
      (cause: Error) => Promise.reject(new Error(cause.name)),
    ),
    { message: 'AbortError' },
  );
  t.deepEqual(await standing.all(), []);
  plain.discard();
});

test.serial('a request that would change the process for all sessions is refused', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, shared());
  for (const method of ['logging/setLevel', 'resources/subscribe', 'resources/unsubscribe', 'tasks/list', 'tasks/get']) {
    const answer = await client.post({ jsonrpc: '2.0', id: method, method, params: { level: 'debug', uri: 'file:///a' } });
    if (isFault(answer)) throw new Error(answer.fault);
    t.like(JSON.parse(await textOf(answer)), { id: method, error: { code: -32601 } });
  }
  t.is(outcomeOf(await client.post({ jsonrpc: '2.0', method: 'notifications/roots/list_changed' })), 202);
  t.is(outcomeOf(await client.post({ jsonrpc: '2.0', id: 'asked-1', result: { forged: true } })), 202);
  t.is(outcomeOf(await client.post(INITIALIZE)), 400);
  const received = (await client.call('received')).result.received as string[];
  t.is(received.length, 3, 'initialize, initialized and this call');
  await client.post({
    jsonrpc: '2.0',
    id: 1,
    method: 'tools/call',
    params: { name: 'echo', task: { ttl: 1 }, arguments: { a: 1 } },
  });
  const call = (await client.received()).find(({ params }) => params?.['name'] === 'echo');
  t.deepEqual(call?.params, { name: 'echo', arguments: { a: 1 } });
});

test.serial('requests of a shared process are refused', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, shared());
  const standing = await client.listen();
  for (const method of ['sampling/createMessage', 'elicitation/create', 'roots/list']) {
    const messages = await (await client.start('ask', { method })).all();
    t.deepEqual(
      messages.map(({ result }) => result),
      [{ error: { code: -32601, message: 'Method not found' } }],
    );
  }
  t.deepEqual((await client.call('ask', { method: 'ping' })).result, { result: {} });
  await client.send({ method: 'DELETE' });
  t.deepEqual(await standing.all(), []);
});

test.serial('all sessions learn that a list has changed, and no other notification of the process', async (t) => {
  const { upstream } = startStdio(t);
  const [one, two] = await Promise.all([open(upstream, shared()), open(upstream, shared())]);
  const [first, second] = await Promise.all([one.listen(), two.listen()]);
  const say = (method: string, params: object = {}) => JSON.stringify({ jsonrpc: '2.0', method, params });
  const lines = [
    say('notifications/message', { level: 'info', data: 'secret of one' }),
    say('notifications/resources/updated', { uri: 'file:///of-one' }),
    say('notifications/cancelled', { requestId: 1 }),
    say('notifications/elicitation/complete', { elicitationId: 'e' }),
    say('notifications/tools/list_changed', { said: 'by the process' }),
    '{"jsonrpc":"2.0","id":"nobody","result":{"secret":1}}',
    '{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"what?"}}',
  ];
  const busy = await two.start('echo', { delay: 100 });
  t.deepEqual(
    (await (await one.start('print', { lines })).all()).map(({ result }) => result),
    [{}],
  );
  t.is((await busy.all()).length, 1);
  for (const standing of [first, second]) {
    t.deepEqual(await standing.next(), { jsonrpc: '2.0', method: 'notifications/tools/list_changed' });
  }
  await Promise.all([one.send({ method: 'DELETE' }), two.send({ method: 'DELETE' })]);
  t.deepEqual(await first.all(), []);
  t.deepEqual(await second.all(), []);
});

test.serial('a stream that is not read holds the news of each list once', async (t) => {
  const { upstream } = startStdio(t);
  const [one, two] = await Promise.all([open(upstream, shared()), open(upstream, shared())]);
  const standing = await one.listen();
  const changed = ['notifications/prompts/list_changed', 'notifications/tools/list_changed'];
  const lines = Array.from({ length: 300 }, (_, n) => JSON.stringify({ jsonrpc: '2.0', method: changed[n % 2] }));
  const change = async (): Promise<void> => {
    await two.call('print', { lines });
    await two.call('echo');
  };
  await change();
  const first = [await standing.next(), await standing.next()];
  await change();
  await one.send({ method: 'DELETE' });
  for (const messages of [first, await standing.all()])
    t.deepEqual(messages.map((message) => message?.method).toSorted(), changed);
});

test.serial('a session cancels only its own calls, and other sessions stay when it ends', async (t) => {
  const { upstream } = startStdio(t);
  const [one, two] = await Promise.all([open(upstream, shared()), open(upstream, shared())]);
  const slow = await two.start('echo', { delay: 300, x: 'two' }, { id: 1 });
  const never = await one.start('never', {}, { id: 2 });
  const cancel = (requestId: unknown) => ({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId } });
  // Ids of the other session, and ids under which the process might know its request.
  for (const requestId of [1, 3, 4, '1', null]) await one.post(cancel(requestId));
  t.is(outcomeOf(await one.send({ method: 'DELETE' })), 200);
  t.is(
    await never.next().then(
      () => 'ended',
      (cause: Error) => cause.name,
    ),
    'AbortError',
  );
  t.is(outcomeOf(await one.post({ jsonrpc: '2.0', id: 1, method: 'ping' })), 404);
  t.deepEqual(
    (await slow.all()).map(({ result }) => result),
    [{ x: 'two' }],
  );
  const received = await two.received();
  const call = received.find(({ params }) => params?.['name'] === 'never');
  t.deepEqual(
    received.filter(({ method }) => method === 'notifications/cancelled').map(({ params }) => params?.['requestId']),
    [call?.id] as never,
  );
});

test.serial('all sessions end with their process, and the next session gets another process', async (t) => {
  const { upstream } = startStdio(t);
  const [one, two] = await Promise.all([open(upstream, shared()), open(upstream, shared())]);
  const pid = pidOf(await one.call('facts'));
  const waiting = (await two.start('never')).next();
  process.kill(pid, 'SIGKILL');
  await t.throwsAsync(waiting, { message: /SIGKILL/ });
  for (const client of [one, two]) t.is(outcomeOf(await client.post({ jsonrpc: '2.0', id: 1, method: 'ping' })), 404);
  const again = await open(upstream, shared());
  t.not(pidOf(await again.call('facts')), pid);
});

test.serial('a process that crashes repeatedly is started at growing intervals', async (t) => {
  const { upstream, logged, pass } = startStdio(t, {}, {}, () => 0);
  const starts = () => logged.filter(({ message }) => message.endsWith('process started')).length;
  const place = shared({ args: ['--crash'] });
  const attempt = async () => {
    const answer = await initialize(upstream, place);
    return isFault(answer) ? (answer.cause as Error).message : answer.status;
  };
  t.regex(String(await attempt()), /exit code 7/);
  t.regex(String(await attempt()), /exit code 7/, 'the first failure may be chance');
  for (let i = 0; i < 50; i++) t.regex(String(await attempt()), /not started again for a while/);
  t.is(starts(), 2);
  for (const [wait, count] of [
    [1_000, 3],
    [1_000, 3],
    [1_000, 4],
    [4_000, 5],
  ] as const) {
    pass(wait + 1);
    await attempt();
    t.is(starts(), count);
  }
  t.is(
    outcomeOf(await initialize(upstream, shared({ args: ['--crash'], scope: 'other' }))),
    'crashed',
    'others have their own count',
  );
  t.is(starts(), 6);
});

test.serial('a process that refuses or does not answer fails for all waiting sessions, and is ended', async (t) => {
  const { upstream } = startStdio(t, { headersMs: 4_000 });
  for (const [args, fault] of [
    [['--refuse'], 'malformed'],
    [['--silent'], 'timeout'],
  ] as const) {
    const answers = await Promise.all([1, 2, 3].map(() => initialize(upstream, shared({ args }))));
    t.deepEqual(answers.map(outcomeOf), [fault, fault, fault]);
  }
});

test.serial('a process that hangs is ended after a call without an answer, and one that answers pings is not', async (t) => {
  const { upstream, logged } = startStdio(t, { headersMs: 4_000, silenceMs: 1_500 });
  const [one, two] = await Promise.all([open(upstream, shared()), open(upstream, shared())]);
  const pid = pidOf(await one.call('facts'));
  await t.throwsAsync(one.call('never'), { message: /in time/ });
  t.true((await two.received()).some(({ method }) => method === 'ping'));
  t.is(pidOf(await two.call('facts')), pid);

  process.kill(pid, 'SIGSTOP');
  await t.throwsAsync(one.call('echo'), { message: /in time/ });
  await until(() => logged.some(({ message }) => message === 'target process ended'), 'its end');
  t.false(isAlive(pid));
  t.is(outcomeOf(await two.post({ jsonrpc: '2.0', id: 1, method: 'ping' })), 404);
  t.not(pidOf(await (await open(upstream, shared())).call('facts')), pid);
});

test.serial('a client that gives up while the process starts does not affect the others', async (t) => {
  const { upstream } = startStdio(t);
  const impatient = new AbortController();
  const given = initialize(upstream, shared(), impatient.signal);
  const patient = open(upstream, shared());
  impatient.abort();
  t.is(outcomeOf(await given), 'aborted');
  t.is((await (await patient).call('echo', { x: 1 })).result.x, 1);
});

test.serial('a session that does not read loses progress and then its stream, and does not delay others', async (t) => {
  const { upstream } = startStdio(t, { answerBytes: 16 * 1024 * 1024 });
  const [slow, quick] = await Promise.all([open(upstream, shared()), open(upstream, shared())]);
  const unread = await slow.start('progress', { count: 50_000 }, { id: 1, meta: { progressToken: 'p' } });
  t.is((await quick.call('echo', { x: 1 })).result.x, 1);
  const messages = await unread.all();
  t.is(messages.at(-1)?.id, 1, 'the answer comes all the same');
  t.true(messages.length < 50_000 && messages.length > 1_000, String(messages.length));
  const answers = await Promise.all(
    Array.from({ length: 5 }, async (_, id) =>
      slow.post({ jsonrpc: '2.0', id, method: 'tools/call', params: { name: 'huge', arguments: { length: 15_000_000 } } }),
    ),
  );
  t.is((await quick.call('huge', { length: 10 })).result.text.length, 10);
  let lost = 0;
  for (const answer of answers) {
    const iterator = stream(answer).events[Symbol.asyncIterator]();
    await iterator.next().catch((cause: Error) => {
      t.regex(cause.message, /waits for clients to read it.*32 MiB/);
      lost++;
    });
  }
  t.is(lost, 3);
});

test.serial('closing leaves no process, session or stream of a shared process', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, shared());
  const standing = await client.listen();
  const never = (await client.start('never')).next();
  const { pid } = (await client.call('facts')).result as { pid: number };
  await Promise.all([upstream.close(), t.throwsAsync(never, { message: /gateway is shutting down/ })]);
  t.is(await standing.next(), null);
  t.is(outcomeOf(await initialize(upstream, shared())), 'busy');
  t.throws(() => process.kill(pid, 0));
});
