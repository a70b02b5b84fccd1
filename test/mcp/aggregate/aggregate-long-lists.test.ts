/** Long lists at the aggregate endpoint: what the gateway holds in memory for them, and who waits for whom. */
import { once } from 'node:events';
import { type ClientRequest, createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { setTimeout as delay } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import type { AuditWriter } from '../../../src/audit/records/records.ts';
import type { Taken } from '../../../src/base/budgets.ts';
import { createCancellation } from '../../../src/base/cancellation.ts';
import { deferred } from '../../../src/base/promises.ts';
import { lane } from '../../../src/base/turns/lane.ts';
import { DEFAULT_LIMITS, type McpLimits } from '../../../src/mcp/limits/limits.ts';
import { createListRoom } from '../../../src/mcp/limits/lists.ts';
import type { Upstream } from '../../../src/mcp/upstream/upstream.ts';
import { answerText, type RecordingUpstream, type Script, startRecording } from '../../support/upstreams/recording.ts';
import { routed } from '../gateway.ts';
import { call } from '../raw.ts';
import { type Everywhere, everywhere, type Message, messagesIn, openEverywhere, target, until } from './aggregate.ts';

const UNAVAILABLE = 'portcullis/unavailable';
const KIB = 1024;
const TOOLS = 100;
/** About 2 KiB each. */
const tools = Array.from({ length: TOOLS }, (_, i) => ({
  name: `tool_${i}`,
  description: 'x'.repeat(2_000),
  inputSchema: { type: 'object' },
}));
const PAGE = JSON.stringify(tools).length;

/** `long` has as many targets as asked for. `short` has one tool. All are one server. */
async function start(
  t: ExecutionContext,
  { targets, limits = {}, audit }: { targets: number; limits?: Partial<McpLimits>; audit?: (own: AuditWriter) => AuditWriter },
): Promise<{ at: Everywhere<'short'>; long: RecordingUpstream; asked: () => number }> {
  const long = await startRecording(target({ 'tools/list': { tools } }));
  t.teardown(long.stop);
  const names = Array.from({ length: targets }, (_, i) => `long-${String(i).padStart(3, '0')}`);
  const silent: AuditWriter = { decision: async () => undefined, shown: async () => undefined, outcome: () => undefined };
  const at = await everywhere(
    t,
    { short: { 'tools/list': { tools: [{ name: 'one', inputSchema: { type: 'object' } }] } } },
    {
      // The target runs in this process, which may be busy: only a test that sets these limits itself has late targets.
      limits: { joinMs: 60_000, lateMs: 60_000, ...limits },
      rights: { alice: () => true, bob: () => true, carol: () => true },
      targets: names.map((name) => routed(name, long.url)),
      ...(audit === undefined ? {} : { deps: { audit: audit(silent) } }),
    },
  );
  const asked = (): number => long.seen().filter((method) => method === 'tools/list').length;
  return { at, long, asked };
}

const limitsOf = (lists: Partial<McpLimits['lists']>): McpLimits['lists'] => ({ ...DEFAULT_LIMITS.lists, ...lists });

function post(at: Everywhere<string>, session: string, user: string): ClientRequest {
  const headers = {
    authorization: `Bearer ${user}`,
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
    'mcp-session-id': session,
  };
  const req = request(`${at.gateway.origin}/mcp`, { method: 'POST', headers });
  req.end(JSON.stringify(call('tools/list')));
  return req.on('error', () => undefined);
}

/** An answer that is not read. */
async function unread(req: ClientRequest): Promise<IncomingMessage> {
  const [res] = (await once(req, 'response')) as [IncomingMessage];
  return res.pause();
}

async function bodyOf(res: IncomingMessage): Promise<Message> {
  let text = '';
  for await (const part of res.setEncoding('utf8')) text += part;
  return messagesIn(text).at(-1) ?? (JSON.parse(text) as Message);
}

test.serial('a page of a long list asks only the targets that it has room for, and the pages have every tool once', async (t) => {
  const targets = 36;
  const { at, asked } = await start(t, { targets, limits: { lists: limitsOf({ answer: 6 * PAGE }) } });
  const session = await openEverywhere(at);
  const names: string[] = [];
  let most = 0;
  for (let cursor: string | undefined, before = 0; ; before = asked()) {
    const { result } = await at.ask(session, 'tools/list', cursor === undefined ? {} : { cursor });
    t.is(result._meta, undefined);
    names.push(...result.tools.map(({ name }: { name: string }) => name));
    most = Math.max(most, asked() - before);
    cursor = result.nextCursor;
    if (cursor === undefined) break;
  }
  t.is(names.length, targets * TOOLS + 1);
  t.is(new Set(names).size, names.length);
  t.deepEqual(
    names,
    names.toSorted((a, b) => order(a) - order(b)),
    'the order of the targets, and of their tools',
  );
  // The targets that fit, the one that does not, and those that were asked at the same time.
  t.true(most <= 6 + 1 + 16, `${most} targets were asked for one page`);
});

test.serial('the pages of a list with huge targets have every tool once', async (t) => {
  const lists = limitsOf({ answer: PAGE / 2, readingOfPrincipal: PAGE / 2 });
  const { at } = await start(t, { targets: 3, limits: { lists } });
  const session = await openEverywhere(at);
  const names: string[] = [];
  let pages = 0;
  for (let cursor: string | undefined; pages === 0 || cursor !== undefined; pages++) {
    const { result } = await at.ask(session, 'tools/list', cursor === undefined ? {} : { cursor });
    t.is(result._meta, undefined);
    names.push(...result.tools.map(({ name }: { name: string }) => name));
    cursor = result.nextCursor;
  }
  t.is(new Set(names).size, 3 * TOOLS + 1);
  t.is(names.length, 3 * TOOLS + 1);
  t.deepEqual(
    names,
    names.toSorted((a, b) => order(a) - order(b)),
  );
});

/** Tools of `short` come last. */
const order = (name: string): number =>
  name.startsWith('short') ? 1e9 : Number(/^long-(\d+)/.exec(name)?.[1]) * 1_000 + Number(/_(\d+)$/.exec(name)?.[1]);

test.serial('a long list waits until the client of another has read its answer, and short lists do not wait', async (t) => {
  const answersOfPrincipal = 45 * PAGE;
  const { at, asked } = await start(t, {
    targets: 40,
    limits: {
      lists: limitsOf({
        answer: answersOfPrincipal,
        smallAnswer: 2 * PAGE,
        answersOfPrincipal,
        answersOfAll: 2 * answersOfPrincipal,
      }),
    },
  });
  const [alice, bob, carol] = await Promise.all(['alice', 'bob', 'carol'].map((user) => openEverywhere(at, { user })));
  const first = await unread(post(at, alice ?? '', 'alice'));
  const before = asked();
  t.is(before, 40);
  let hasAnswered = false;
  const second = at.ask(bob ?? '', 'tools/list', {}, { user: 'bob' }).then((answer) => {
    hasAnswered = true;
    return answer;
  });
  await until(() => asked() > before + 2);
  for (let i = 0; i < 20; i++) {
    t.deepEqual((await at.ask(carol ?? '', 'prompts/list', {}, { user: 'carol' })).result, { prompts: [] });
  }
  t.false(hasAnswered);
  t.true(asked() <= before + 2 + 16, `${asked() - before} pages were read while there was no room for the answer`);
  t.is((await bodyOf(first)).result.tools.length, 40 * TOOLS + 1);
  const { result } = await second;
  t.is(result.tools.length, 40 * TOOLS + 1);
  t.is(result._meta, undefined);
});

test.serial('a client that leaves gives its room back, and one that waits for room leaves the queue', async (t) => {
  const answersOfPrincipal = 45 * PAGE;
  const { at, asked } = await start(t, {
    targets: 40,
    limits: {
      lists: limitsOf({
        answer: answersOfPrincipal,
        smallAnswer: 2 * PAGE,
        answersOfPrincipal,
        answersOfAll: 2 * answersOfPrincipal,
      }),
    },
  });
  const [alice, bob] = await Promise.all(['alice', 'bob'].map((user) => openEverywhere(at, { user })));
  const first = await unread(post(at, alice ?? '', 'alice'));
  const leaving = post(at, alice ?? '', 'alice');
  // Her last list was long, so this one waits before it asks any target.
  t.deepEqual((await at.ask(bob ?? '', 'prompts/list', {}, { user: 'bob' })).result, { prompts: [] });
  t.is(asked(), 40);
  leaving.destroy();
  first.destroy();
  const { result } = await at.ask(bob ?? '', 'tools/list', {}, { user: 'bob' });
  t.is(result.tools.length, 40 * TOOLS + 1);
});

test.serial('a long list does not wait for what the target has sent to others', async (t) => {
  const { at } = await start(t, { targets: 1 });
  const session = await openEverywhere(at, { user: 'alice' });
  let isOver = false;
  const others = ['long-000', 'id-of-long-000'].map((key) => lane.run(key, () => isOver));
  t.is((await at.ask(session, 'tools/list', {}, { user: 'alice' })).result.tools.length, TOOLS + 1);
  isOver = true;
  await Promise.all(others);
});

test.serial('two long lists in one batch do not wait for each other', async (t) => {
  const answersOfPrincipal = 12 * PAGE;
  const { at } = await start(t, {
    targets: 10,
    limits: {
      lists: limitsOf({
        answer: answersOfPrincipal,
        smallAnswer: PAGE,
        answersOfPrincipal,
        answersOfAll: 4 * answersOfPrincipal,
      }),
    },
  });
  const session = await openEverywhere(at, { revision: '2025-03-26' });
  const body = [call('tools/list', {}, 1), call('tools/list', {}, 2)];
  const { text } = await at.send({ body, headers: ['mcp-session-id', session] });
  const answers = JSON.parse(text) as Message[];
  t.deepEqual(
    answers.map(({ result }) => result.tools.length),
    [10 * TOOLS + 1, 10 * TOOLS + 1],
  );
});

/** The same target, but its lists come as events. */
const withEvents = (script: Script): Script => {
  return (received, res) => {
    const { id, method } = received.message ?? {};
    if (method !== 'tools/list') return script(received, res);
    answerText(res, `data: ${JSON.stringify({ jsonrpc: '2.0', id, result: { tools } })}\n\n`, 'text/event-stream');
  };
};

for (const form of ['JSON', 'events'] as const) {
  test.serial(
    `while a long page is recorded, other long pages wait for room, and their target is not late: ${form}`,
    async (t) => {
      const blocked = deferred<void>();
      let recording = 0;
      const { at, long, asked } = await start(t, {
        targets: 1,
        // A page fits. A second one does not fit beside it.
        limits: { joinMs: 300, lateMs: 100, lists: limitsOf({ readingOfPrincipal: 2 * PAGE, readingOfAll: 3 * PAGE }) },
        audit: (own) => ({
          ...own,
          // The first page that is read keeps its room.
          shown: async ({ names }) => {
            if (names.length > 1 && recording++ === 0) await blocked.promise;
          },
        }),
      });
      if (form === 'events') long.script = withEvents(long.script);
      const [alice, bob, carol] = await Promise.all(['alice', 'bob', 'carol'].map((user) => openEverywhere(at, { user })));
      const first = [1, 2].map((id) => at.ask(alice ?? '', 'tools/list', {}, { user: 'alice', id }));
      await until(() => recording > 0);
      const second = at.ask(bob ?? '', 'tools/list', {}, { user: 'bob' });
      await until(() => asked() === 3);
      const since = performance.now();
      while (performance.now() - since < 2 * 300) {
        t.deepEqual((await at.ask(carol ?? '', 'prompts/list', {}, { user: 'carol' })).result, { prompts: [] });
      }
      t.is(recording, 1, 'the other pages are not read while there is no room');
      blocked.resolve();
      for (const { result } of await Promise.all([...first, second])) {
        t.is(result._meta, undefined, `${UNAVAILABLE} names no target`);
        t.is(result.tools.length, TOOLS + 1);
      }
      t.is(recording, 3);
    },
  );
}

/** A target that opens sessions, and answers lists as `list` does. `answer` answers with this result. */
async function startLists(
  t: ExecutionContext,
  list: (res: ServerResponse, answer: (result: object) => void) => unknown,
): Promise<string> {
  const opened = { protocolVersion: '2025-06-18', capabilities: { tools: {} }, serverInfo: { name: 'lists', version: '1' } };
  const server = createServer(async (req, res) => {
    const { id, method } = JSON.parse((await text(req)) || '{}');
    const answer = (result: object): void =>
      void res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ jsonrpc: '2.0', id, result }));
    if (method === 'tools/list') await list(res, answer);
    else if (id === undefined) res.writeHead(req.method === 'GET' ? 405 : 202).end();
    else answer(opened);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}/mcp`;
}

const asEvents = (res: ServerResponse): ServerResponse => res.writeHead(200, { 'content-type': 'text/event-stream' });

/** Answers lists with notifications without end. */
function startEndless(t: ExecutionContext): Promise<string> {
  const note = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: 'x' } });
  const batch = `event: message\ndata: ${note}\n\n`.repeat(100);
  return startLists(t, (res) => {
    asEvents(res);
    const go = (): void => {
      if (!res.destroyed) res.write(batch, () => setImmediate(go));
    };
    go();
  });
}

test.serial('a target that sends notifications without end is late, and the list goes on without it', async (t) => {
  const url = await startEndless(t);
  const at = await everywhere(
    t,
    { short: { 'tools/list': { tools: [{ name: 'one', inputSchema: { type: 'object' } }] } } },
    { limits: { joinMs: 1_000, lateMs: 100 }, rights: { alice: () => true }, targets: [routed('endless', url)] },
  );
  const session = await openEverywhere(at, { user: 'alice' });
  const { result } = await at.ask(session, 'tools/list', {}, { user: 'alice' });
  t.deepEqual(result._meta, { [UNAVAILABLE]: ['endless'] });
  t.is(result.tools.length, 1);
});

/**
 * Answers the first list with these events, and no answer, and later ones with no tools. The second event comes a moment after the first one, together
 * with the others. `seen` is called then.
 */
function startNoisy(t: ExecutionContext, [first = '', ...others]: readonly string[], seen: () => void): Promise<string> {
  let isFirst = true;
  return startLists(t, async (res, answer) => {
    if (!isFirst) return answer({ tools: [] });
    isFirst = false;
    asEvents(res).write(first);
    await delay(200);
    res.write(others.join(''), seen);
  });
}

test.serial(
  'a target that is read slowly, because it has sent too much, is late, and keeps no room from the lists of others',
  async (t) => {
    const note = (length: number) =>
      `data: ${JSON.stringify({ jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: 'x'.repeat(length) } })}\n\n`;
    const written = deferred();
    const noisy = await startNoisy(t, [...Array<string>(30).fill(note(1)), note(2 * PAGE)], written.resolve);
    const long = await startRecording(target({ 'tools/list': { tools } }));
    t.teardown(long.stop);
    const plenty = { perSecond: 1e9, burst: 1e9 };
    const many = { pair: plenty, target: plenty, all: plenty };
    // Each message is followed by the longest pause.
    const messages = { pair: { perSecond: 0.01, burst: 0 }, target: plenty, all: plenty };
    const at = await everywhere(
      t,
      {},
      {
        limits: {
          ...{ joinMs: 5_000, lateMs: 5_000 },
          lists: limitsOf({ readingOfPrincipal: PAGE, readingOfAll: 2 * PAGE }),
          deliveries: { messages, rush: many, decided: many, lists: many },
        },
        rights: { alice: () => true, bob: () => true },
        targets: [routed('noisy', noisy), routed('long', long.url)],
      },
    );
    const [alice, bob] = await Promise.all(['alice', 'bob'].map((user) => openEverywhere(at, { user })));
    const list = (user: string, session = '') => at.ask(session, 'tools/list', {}, { user });
    let isOver = false;
    const began = performance.now();
    const late = list('alice', alice).finally(() => {
      isOver = true;
    });
    await written.promise;
    for (let longest = 0; !isOver; ) {
      const asked = performance.now();
      t.is((await list('bob', bob)).result.tools.length, TOOLS);
      longest = Math.max(longest, performance.now() - asked);
      t.true(longest < 3_000, 'the list of the other caller waits for at most one pause');
    }
    t.deepEqual((await late).result._meta, { [UNAVAILABLE]: ['noisy'] });
    t.true(performance.now() - began < 20_000, 'the pauses count as time of the target');
  },
);

test.serial('a list that finds no room for its answer in time is refused', async (t) => {
  // More than the system takes of an answer that nobody reads.
  const answersOfPrincipal = 85 * PAGE;
  const lists = { answer: answersOfPrincipal, smallAnswer: 2 * PAGE, answersOfPrincipal, answersOfAll: 2 * answersOfPrincipal };
  const { at } = await start(t, { targets: 80, limits: { lists: limitsOf({ ...lists, answerWaitMs: 1_500 }) } });
  const [alice, bob] = await Promise.all(['alice', 'bob'].map((user) => openEverywhere(at, { user })));
  const first = await unread(post(at, alice ?? '', 'alice'));
  const list = () => at.ask(bob ?? '', 'tools/list', {}, { user: 'bob' });
  const refused = await list();
  t.is(refused.result, undefined);
  t.truthy(refused.error);
  await bodyOf(first);
  t.is((await list()).result.tools.length, 80 * TOOLS + 1);
});

test('room to read counts a page that is larger than the share of a caller as the whole share', async (t) => {
  const room = createListRoom(limitsOf({ readingOfPrincipal: 10 * KIB, readingOfAll: 40 * KIB }), () => 0);
  const gone = createCancellation();
  const first = await room.toRead('a', 100 * KIB, gone);
  t.is(room.taken.reading, 10 * KIB);
  const second = room.toRead('a', 100 * KIB, gone);
  const other = await room.toRead('b', 1, gone);
  t.is(room.taken.reading, 10 * KIB + 1);
  first?.giveBack();
  (await second)?.giveBack();
  other?.giveBack();
  t.is(room.taken.reading, 0);
});

test('one page that is larger than the share of a caller is read at a time, and the others wait in their order', async (t) => {
  const room = createListRoom(limitsOf({ readingOfPrincipal: 10 * KIB, readingOfAll: 40 * KIB }), () => 0);
  const gone = createCancellation();
  const order: string[] = [];
  const read = async (principal: string, bytes: number): Promise<Taken | null> => {
    const taken = await room.toRead(principal, bytes, gone);
    order.push(principal);
    return taken;
  };
  const first = await read('a', 100 * KIB);
  const [second, third] = [read('b', 11 * KIB), read('c', 100 * KIB)];
  (await read('d', 10 * KIB))?.giveBack();
  t.deepEqual(order, ['a', 'd'], 'a page within the share does not wait for them');
  first?.giveBack();
  const taken = await second;
  t.deepEqual(order, ['a', 'd', 'b']);
  taken?.giveBack();
  (await third)?.giveBack();
  t.is(room.taken.reading, 0);
});

test('callers take turns with huge pages, however many of them one caller has', async (t) => {
  const room = createListRoom(limitsOf({ readingOfPrincipal: 1 }), () => 0);
  const gone = createCancellation();
  const order: string[] = [];
  const pages = ['a', 'a', 'a', 'b'].map(async (principal) => {
    const taken = await room.toRead(principal, 16, gone);
    order.push(principal);
    await new Promise(setImmediate);
    taken?.giveBack();
  });
  await Promise.all(pages);
  t.is(order.join(''), 'abaa');
});

test('callers who are not ready hold no room that others could use', async (t) => {
  const room = createListRoom(limitsOf({ readingOfPrincipal: 1 }), () => 0);
  const [gone, leaves] = [createCancellation(), createCancellation()];
  const debt = deferred<void>();
  const waiting = ['a', 'b', 'c'].map((principal) => room.toRead(principal, 16, gone, () => debt.promise));
  const later = room.toRead('a', 16, leaves, () => debt.promise);
  (await room.toRead('d', 16, gone))?.giveBack();
  t.is(room.taken.reading, 0);
  leaves.abort();
  t.is(await later, null);
  debt.resolve();
  for (const one of waiting) (await one)?.giveBack();
  t.is(room.taken.reading, 0);
});

test.serial('callers who come into debt while they wait for room give it back to others', async (t) => {
  const share = PAGE + 10 * KIB;
  const lists = limitsOf({ readingOfPrincipal: share, readingOfAll: 2 * share });
  // A list brings its caller into debt for some seconds.
  const { at, long } = await start(t, { targets: 1, limits: { lists, readingOfTarget: { perSecond: 500, burst: 100 } } });
  const script = target({ 'tools/list': { tools } });
  const together = deferred<void>();
  let asked = 0;
  long.script = async (received, res) => {
    if (received.message?.method === 'tools/list' && ++asked === 4) together.resolve();
    if (received.message?.method === 'tools/list') await together.promise;
    return script(received, res);
  };
  const users = ['alice', 'alice', 'bob', 'bob', 'carol'];
  const sessions = await Promise.all(users.map((user) => openEverywhere(at, { user })));
  const ended: string[] = [];
  const list = async (i: number): Promise<void> => {
    const user = users[i] ?? '';
    const { result } = await at.ask(sessions[i] ?? '', 'tools/list', {}, { user });
    t.is(result.tools.length, TOOLS + 1);
    ended.push(user);
  };
  const all = Promise.all([0, 1, 2, 3].map(list));
  await until(() => ended.length === 2);
  await list(4);
  await all;
  t.deepEqual([ended.slice(0, 2).sort(), ended[2], ended.slice(3).sort()], [['alice', 'bob'], 'carol', ['alice', 'bob']]);
});

test.serial('an answer that comes when no list waits for it is not read if it is long', async (t) => {
  const held = deferred<void>();
  let lists = 0;
  const script = target({ 'tools/list': { tools } });
  const { at, long } = await start(t, { targets: 1, limits: { joinMs: 10_000, lateMs: 50 } });
  long.script = async (received, res) => {
    if (received.message?.method === 'tools/list' && ++lists === 1) await held.promise;
    return script(received, res);
  };
  const sessions = await Promise.all(['alice', 'bob'].map((user) => openEverywhere(at, { user })));
  // The target is late for the first list, so a second one does not wait for it.
  const first = at.ask(sessions[0] ?? '', 'tools/list', {}, { user: 'alice' });
  await until(() => lists === 1);
  await new Promise((resolve) => setTimeout(resolve, 200));
  const before = at.gateway.shown.length;
  const { result } = await at.ask(sessions[1] ?? '', 'tools/list', {}, { user: 'bob' });
  t.deepEqual(result._meta, { [UNAVAILABLE]: ['long-000'] });
  await until(() => lists === 2);
  held.resolve();
  t.is((await first).result.tools.length, TOOLS + 1);
  const next = await at.ask(sessions[1] ?? '', 'tools/list', {}, { user: 'bob' });
  t.is(next.result.tools.length, TOOLS + 1, 'the target is not late any more');
  const long_names = at.gateway.shown.slice(before).filter(({ names }) => names.length === TOOLS);
  t.is(long_names.length, 2, 'the names of the answer that nobody got are not recorded');
});

test.serial(
  'a huge target that was late is in the lists again when its list has arrived, although nobody waited for it',
  async (t) => {
    let lists = 0;
    const script = target({ 'tools/list': { tools } });
    const limits = { joinMs: 10_000, lateMs: 50, lists: limitsOf({ readingOfPrincipal: PAGE / 2 }) };
    const { at, long } = await start(t, { targets: 1, limits });
    long.script = async (received, res) => {
      // The first list hangs until the test ends.
      if (received.message?.method === 'tools/list' && ++lists === 1) return;
      return script(received, res);
    };
    const sessions = await Promise.all(['alice', 'bob'].map((user) => openEverywhere(at, { user })));
    void at.ask(sessions[0] ?? '', 'tools/list', {}, { user: 'alice' }).catch(() => undefined);
    await until(() => lists === 1);
    await new Promise((resolve) => setTimeout(resolve, 200));
    const list = () => at.ask(sessions[1] ?? '', 'tools/list', {}, { user: 'bob' });
    t.deepEqual((await list()).result._meta, { [UNAVAILABLE]: ['long-000'] });
    await new Promise((resolve) => setTimeout(resolve, 500));
    t.is((await list()).result.tools.length, TOOLS + 1);
  },
);

test('a long page is read although the short pages of others keep the room nearly full', async (t) => {
  let now = 0;
  const room = createListRoom(limitsOf({ readingOfPrincipal: 100, readingOfAll: 400 }), () => now);
  const gone = createCancellation();
  const short: Promise<Taken | null>[] = [];
  const read = (id: number): void => void short.push(room.toRead(`short ${id}`, 10, gone));
  for (let id = 0; id < 30; id++) read(id);
  let isRead = false;
  const long = room.toRead('long', 100, gone).then((taken) => {
    isRead = true;
    return taken;
  });
  // As soon as a short page has been read, a further one comes. A page takes 100 ms.
  for (let id = 30; !isRead && id < 1_000; id++) {
    read(id);
    now += 100 / 30;
    (await short.shift())?.giveBack();
    await Promise.resolve();
  }
  t.true(isRead);
  t.true(now < 1_500, `it waited for ${now} ms`);
  (await long)?.giveBack();
  for (const one of short) (await one)?.giveBack();
  t.is(room.taken.reading, 0);
});

test('a caller that is gone gets no room and leaves none behind', async (t) => {
  const room = createListRoom(limitsOf({ answersOfPrincipal: 10, answersOfAll: 40 }), () => 0);
  const [stays, leaves] = [createCancellation(), createCancellation()];
  const first = await room.toAnswer('a', 10, stays);
  const second = room.toAnswer('a', 10, leaves);
  leaves.abort();
  t.is(await second, null);
  first?.giveBack();
  t.is(room.taken.answers, 0);
  t.is(await room.toAnswer('a', 10, leaves), null, 'the caller was gone before');
});

test.serial(
  'a list whose part finds no room ends with the time that targets have, so that it is not asked for again at once',
  async (t) => {
    let busy = 0;
    const withAccounts = (upstream: Upstream): Upstream => ({
      ...upstream,
      async send(request) {
        if (request.toRead === undefined || request.target.name !== 'b') return upstream.send(request);
        busy++;
        return { fault: 'busy' };
      },
    });
    const one = { 'tools/list': { tools: [{ name: 'one', inputSchema: { type: 'object' } }] } };
    const at = await everywhere(t, { a: one, b: one }, { limits: { joinMs: 700 }, deps: { withAccounts } });
    const session = await openEverywhere(at);
    const began = performance.now();
    const { result } = await at.ask(session, 'tools/list');
    t.true(performance.now() - began >= 690);
    t.is(busy, 1);
    t.deepEqual(result._meta, { [UNAVAILABLE]: ['b'] });
    t.deepEqual(
      result.tools.map(({ name }: { name: string }) => name),
      ['a__one'],
    );
  },
);
