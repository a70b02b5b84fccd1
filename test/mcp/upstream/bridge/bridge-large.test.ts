/** The bridge reads large messages of targets in steps, never as a whole. */
import test, { type ExecutionContext } from 'ava';
import { createStock } from '../../../../src/base/budgets.ts';
import { lane } from '../../../../src/base/turns/lane.ts';
import { createBridge } from '../../../../src/mcp/upstream/bridge/bridge.ts';
import { heldBack } from '../../../../src/mcp/upstream/bridge/requests.ts';
import { createHttpUpstream } from '../../../../src/mcp/upstream/http.ts';
import { createUpstreamModes, type UpstreamModes } from '../../../../src/mcp/upstream/modes.ts';
import { createUnread } from '../../../../src/mcp/upstream/unread.ts';
import { isFault, type ToRead, type Upstream, type UpstreamAnswer } from '../../../../src/mcp/upstream/upstream.ts';
import type { SseEvent } from '../../../../src/protocol/sse.ts';
import {
  ACCESS,
  collect,
  type Driver,
  drive,
  httpTarget,
  LIMITS,
  statusOf,
  succeeded,
} from '../../../support/upstreams/drive.ts';
import { answerJson, answerText, type RecordingUpstream, startRecording } from '../../../support/upstreams/recording.ts';

const DISCOVERED = {
  resultType: 'complete',
  supportedVersions: ['2026-07-28'],
  capabilities: { tools: {} },
  _meta: { 'io.modelcontextprotocol/serverInfo': { name: 's', version: '1' } },
};
const tool = (i: number, type: string): object => ({
  name: `tool${i}`,
  description: 'd'.repeat(1_000),
  inputSchema: { type: 'object', properties: { region: { type, 'x-mcp-header': 'Region' } } },
});

interface World {
  readonly driver: Driver;
  readonly modes: UpstreamModes;
  readonly url: string;
  readonly target: RecordingUpstream;
  /** How many bytes of its answers count as unread. */
  readonly unread: () => number;
}

/** A target of 2026-07-28 whose answers have `padding` characters beside what they say. */
async function start(
  t: ExecutionContext,
  padding: number,
  tools: readonly unknown[] = [],
  between: (http: Upstream) => Upstream = (http) => http,
): Promise<World> {
  const target = await startRecording(({ message }, res) => {
    const { id, method } = message ?? {};
    if (method === 'initialize') return answerJson(res, { jsonrpc: '2.0', id, error: { code: -32601, message: 'no' } }, {}, 400);
    const result = method === 'server/discover' ? DISCOVERED : { resultType: 'complete', tools, content: [] };
    const text = JSON.stringify({ jsonrpc: '2.0', id, result: { ...result, padding: 'x'.repeat(padding) } });
    if (method !== 'tools/call') return answerText(res, text);
    answerText(
      res,
      `data: {"jsonrpc":"2.0","method":"notifications/message","params":{}}\n\ndata: ${text}\n\n`,
      'text/event-stream',
    );
  });
  t.teardown(() => target.stop());
  const limits = { ...LIMITS, answerBytes: 16 * 1024 * 1024 };
  const stock = createStock('unread answers', { perKey: 2 * limits.answerBytes, all: 4 * limits.answerBytes });
  const unread = createUnread(limits.answerBytes, stock);
  const http = between(createHttpUpstream(limits, undefined, unread));
  const modes = createUpstreamModes(http, Date.now);
  let ids = 0;
  const bridge = createBridge({ http, modes, limits, newId: () => `own-${++ids}`, now: Date.now, unread });
  t.teardown(() => bridge.close());
  const driver = drive(bridge, httpTarget('streamable-http', target.url));
  return { driver, modes, url: target.url, target, unread: () => stock.taken };
}

/** Returns the length of the longest text that was parsed as a whole during the work. */
async function longestParsed(work: () => Promise<unknown>): Promise<number> {
  const { parse } = JSON;
  let longest = 0;
  JSON.parse = (text: string, ...rest) => {
    longest = Math.max(longest, text.length);
    return parse(text, ...rest) as unknown;
  };
  try {
    await work();
  } finally {
    JSON.parse = parse;
  }
  return longest;
}

const STEP = 64 * 1024;

test.serial('large answers of a target are read in steps, as JSON and as events', async (t) => {
  const tools = Array.from({ length: 3_000 }, (_, i) => tool(i, i % 2 === 0 ? 'string' : 'object'));
  const { driver } = await start(t, 500_000, tools);
  let listed = '';
  const events: string[] = [];
  const longest = await longestParsed(async () => {
    await driver.open();
    const list = succeeded(await driver.send({ body: '{"jsonrpc":"2.0","id":1,"method":"tools/list"}' }));
    if (list.type === 'json') listed = String(await list.read());
    const call = '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"tool0","arguments":{}}}';
    const called = succeeded(await driver.send({ body: call }));
    if (called.type === 'stream') for await (const some of called.events) events.push(...some.map(({ data }) => data));
  });
  t.true(longest <= STEP, `${longest} characters were parsed at once`);
  const { result } = JSON.parse(listed) as { result: { tools: { name: string }[]; padding: string } };
  t.deepEqual(
    result.tools.map(({ name }) => name),
    Array.from({ length: 1_500 }, (_, i) => `tool${2 * i}`),
    'a tool with an invalid declaration is left out',
  );
  t.is(events.length, 2);
  t.true((events[1]?.length ?? 0) > 500_000);
});

test.serial('a large answer does not wait for what the target has sent to others', async (t) => {
  const { driver, url } = await start(t, 500_000);
  await driver.open();
  let isOver = false;
  // Before, all work for a target was done in its order.
  const others = lane.run(httpTarget('streamable-http', url).id, () => isOver);
  const answer = succeeded(await driver.send({ body: '{"jsonrpc":"2.0","id":1,"method":"prompts/list"}' }));
  t.is(answer.type, 'json');
  if (answer.type === 'json') t.true(String(await answer.read()).length > 500_000);
  isOver = true;
  await others;
});

test.serial('an answer counts as unread until its request is answered, also if its client leaves', async (t) => {
  const tools = Array.from({ length: 5_000 }, (_, i) => tool(i, 'string'));
  const { driver, unread } = await start(t, 500_000, tools);
  await driver.open();
  const list = { body: '{"jsonrpc":"2.0","id":1,"method":"tools/list"}' };
  const answer = succeeded(await driver.send(list));
  t.true(unread() > 400_000);
  if (answer.type !== 'stream') await answer.read();
  t.true(unread() > 400_000);
  answer.discard();
  t.is(unread(), 0);
});

test.serial('an argument of a tool may have any name, also in a long list', async (t) => {
  const argument = { type: 'object', properties: { region: { type: 'string', 'x-mcp-header': 'Region' } } };
  const named = ['outputSchema', 'structuredContent', 'inputSchema'].map((name) => ({
    name: `takes-${name}`,
    inputSchema: { type: 'object', properties: { [name]: argument } },
    outputSchema: { type: 'object', properties: { inputSchema: { 'x-mcp-header': 1 } } },
  }));
  const wrong = { name: 'wrong', inputSchema: { type: 'object', properties: { outputSchema: { 'x-mcp-header': 'bad name' } } } };
  const { driver } = await start(t, 500_000, [...named, wrong]);
  await driver.open();
  const list = succeeded(await driver.send({ body: '{"jsonrpc":"2.0","id":1,"method":"tools/list"}' }));
  const { result } = JSON.parse(list.type === 'json' ? String(await list.read()) : '') as { result: { tools: object[] } };
  t.deepEqual(result.tools, named);
});

test.serial('a long request keeps its _meta, and an argument of any name can have a header', async (t) => {
  const argument = { type: 'object', properties: { region: { type: 'string', 'x-mcp-header': 'Region' } } };
  const takes = { name: 'takes', inputSchema: { type: 'object', properties: { outputSchema: argument } } };
  const { driver, target } = await start(t, 0, [takes]);
  await driver.open();
  const own = { structuredContent: { a: [1.0, 'x'] }, outputSchema: {}, __proto__x: { outputSchema: [{}] } };
  const params = { name: 'takes', arguments: { outputSchema: { region: 'eu' }, text: 'x'.repeat(100_000) }, _meta: { own } };
  for (const id of [1, 2, 1]) {
    await collect(succeeded(await driver.post({ id, method: 'tools/call', params })));
    const { message, headers } = target.received.at(-1) ?? {};
    t.deepEqual((message?.params?.['_meta'] as Record<string, unknown> | undefined)?.['own'], own);
    t.is(headers?.['mcp-param-region'], 'eu');
  }
  const many = { ...params, _meta: { many: Array.from({ length: 30_000 }, () => 0) } };
  t.is(statusOf(await driver.post({ id: 1, method: 'tools/call', params: many })), 400);
  await collect(succeeded(await driver.post({ id: 1, method: 'tools/call', params })));
});

/** Ends what the target has sent as soon as it is asked for, so that only the bridge counts it. */
const atHand =
  (given: (text: string) => void) =>
  (http: Upstream): Upstream => ({
    ...http,
    async send(request) {
      const answer = await http.send(request);
      if (isFault(answer) || request.stateless?.method === 'server/discover') return answer;
      if (answer.type !== 'stream') {
        const body = await answer.read();
        answer.discard();
        const read = async () => {
          given(String(body));
          return body;
        };
        return { ...answer, read };
      }
      const all: SseEvent[] = [];
      for await (const some of answer.events) all.push(...some.map((event) => ({ ...event })));
      answer.discard();
      async function* events(): AsyncGenerator<readonly SseEvent[]> {
        yield all;
      }
      return { ...answer, events: events() };
    },
  });

test.serial('an event counts as unread while the bridge reads it', async (t) => {
  const tools = Array.from({ length: 5_000 }, (_, i) => tool(i, 'string'));
  const { driver, unread } = await start(
    t,
    500_000,
    tools,
    atHand(() => undefined),
  );
  await driver.open();
  const called = succeeded(await driver.send({ body: '{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"a"}}' }));
  t.is(unread(), 0);
  let most = 0;
  const watching = setInterval(() => {
    most = Math.max(most, unread());
  }, 1);
  if (called.type === 'stream') for await (const events of called.events) t.true(events.length > 0);
  clearInterval(watching);
  t.true(most > 400_000, `${most} bytes`);
  t.is(unread(), 0);
});

test.serial('the answer of a client that has left meanwhile is not passed on', async (t) => {
  const tools = Array.from({ length: 5_000 }, (_, i) => tool(i, 'string'));
  const leaves = new AbortController();
  const { driver } = await start(
    t,
    500_000,
    tools,
    atHand((text) => void (text.includes('"tools"') && setTimeout(() => leaves.abort(), 5))),
  );
  await driver.open();
  const list = { body: '{"jsonrpc":"2.0","id":1,"method":"tools/list"}' };
  t.like(await driver.send({ ...list, signal: leaves.signal }), { fault: 'aborted' });
});

test.serial('a tool whose schema holds too many values to be read is left out', async (t) => {
  const many = { name: 'many', inputSchema: { type: 'object', enum: Array.from({ length: 30_000 }, () => 0) } };
  const { driver } = await start(t, STEP, [tool(0, 'string'), many]);
  await driver.open();
  const list = succeeded(await driver.send({ body: '{"jsonrpc":"2.0","id":1,"method":"tools/list"}' }));
  const { result } = JSON.parse(list.type === 'json' ? String(await list.read()) : '') as {
    result: { tools: { name: string }[] };
  };
  t.deepEqual(
    result.tools.map(({ name }) => name),
    ['tool0'],
  );
});

test.serial('the answer to server/discover is read in steps', async (t) => {
  const { modes, url } = await start(t, 900_000);
  let modern: unknown;
  const longest = await longestParsed(async () => {
    modern = await modes.speaksStateless(
      { target: httpTarget('streamable-http', url), access: ACCESS },
      new AbortController().signal,
    );
  });
  t.true(modern);
  t.true(longest <= STEP, `${longest} characters were parsed at once`);
});

/** Returns the length of the longest JSON text that was written as a whole during the work. */
async function longestWritten(work: () => Promise<unknown>): Promise<number> {
  const { stringify } = JSON;
  let longest = 0;
  JSON.stringify = ((...given: Parameters<typeof stringify>) => {
    const text = stringify(...given);
    longest = Math.max(longest, text?.length ?? 0);
    return text;
  }) as typeof stringify;
  try {
    await work();
  } finally {
    JSON.stringify = stringify;
  }
  return longest;
}

test.serial('large questions, states and notifications of a target keep their text', async (t) => {
  // JSON.stringify is slow for such characters: 50 ns each, in one step. The gateway refuses texts with more of them.
  const odd = '\\ud800'.repeat(2_000) + 'x'.repeat(100_000);
  const seen: string[] = [];
  const target = await startRecording(({ message, text }, res) => {
    const { id, method, params } = message ?? {};
    if (method === 'initialize')
      return answerText(res, '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}', 'application/json', 400);
    const say = (result: string) => answerText(res, `{"jsonrpc":"2.0","id":"${id}","result":${result}}`);
    if (method === 'server/discover')
      return say(
        `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}}}`,
      );
    if (method === 'tools/list') return say('{"tools":[]}');
    if (method === 'subscriptions/listen') {
      const meta = `"_meta":{"io.modelcontextprotocol/subscriptionId":"${id}"`;
      const events = [
        `{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{${meta}},"notifications":{"toolsListChanged":true}}}`,
        `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{${meta},"own":"${odd}"},"more":"${odd}"}}`,
      ];
      return answerText(res, events.map((event) => `data: ${event}\n\n`).join(''), 'text/event-stream');
    }
    seen.push(text);
    if (params?.['requestState'] !== undefined) return say('{"content":[]}');
    const asked = `{"a":{"method":"elicitation/create","params":{"mode":"url","url":"https://x.test/","message":"${odd}"}}}`;
    say(`{"resultType":"input_required","inputRequests":${asked},"requestState":"${odd}"}`);
  });
  t.teardown(() => target.stop());
  const limits = { ...LIMITS, answerBytes: 16 * 1024 * 1024 };
  const stock = createStock('unread answers', { perKey: 2 * limits.answerBytes, all: 4 * limits.answerBytes });
  const unread = createUnread(limits.answerBytes, stock);
  const http = createHttpUpstream(limits, undefined, unread);
  let ids = 0;
  const parts = { limits, newId: () => `own-${++ids}`, now: Date.now, unread };
  let heldWhileAsked = Infinity;
  const bridge = createBridge({ http, modes: createUpstreamModes(http, Date.now), ...parts });
  t.teardown(() => bridge.close());
  const driver = drive(bridge, httpTarget('streamable-http', target.url));
  const messages: string[] = [];
  const longest = await longestWritten(async () => {
    await driver.open({ elicitation: { url: {} } });
    const standing = succeeded(await driver.send({ method: 'GET' }));
    if (standing.type === 'stream') {
      for await (const events of standing.events) {
        messages.push(...events.map(({ data }) => data));
        break;
      }
    }
    const called = succeeded(await driver.post({ id: 1, method: 'tools/call', params: { name: 'n', arguments: {} } }));
    if (called.type !== 'stream') throw new Error('no stream');
    for await (const events of called.events) {
      for (const { data } of events) {
        messages.push(data);
        const id = /"id":"(own-[0-9]+)"/.exec(data)?.[1];
        if (id === undefined) continue;
        heldWhileAsked = stock.taken;
        await driver.post({ id, result: { action: 'accept' } });
      }
    }
  });
  t.true(longest < STEP, `${longest} characters were written at once`);
  // The state, in characters of two bytes. The answer that asked is not unread any more.
  t.true(heldWhileAsked <= 2 * odd.length, `${heldWhileAsked} bytes`);
  const [changed, asked, answer] = messages;
  t.is(
    changed,
    `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"own":"${odd}"},"more":"${odd}"}}`,
  );
  const { id = '' } = JSON.parse(asked ?? '') as { id?: string };
  t.is(
    asked,
    `{"jsonrpc":"2.0","id":"${id}","method":"elicitation/create","params":{"mode":"url","url":"https://x.test/","message":"${odd}","elicitationId":"${id}"}}`,
  );
  t.regex(answer ?? '', /"content":\[\]/);
  t.true(seen[1]?.includes(`"requestState":"${odd}"`));
});

test('an answer that is held back is read when it may be, and gives back what it took before it waits for more', async (t) => {
  const said: string[] = [];
  let isWanted = true;
  const toRead: ToRead = {
    async take(bytes) {
      said.push(`take ${bytes}`);
      return isWanted;
    },
    giveBack: () => void said.push('give back'),
  };
  const event = (data: string): SseEvent => ({ data, id: undefined, retry: undefined });
  async function* events(): AsyncGenerator<readonly SseEvent[]> {
    yield [event('xx'), event('x')];
    said.push('waits');
    yield [event('y')];
  }
  const common = { status: 200, retryAfter: null, sessionId: null, discard: () => undefined };
  const stream = heldBack({ ...common, type: 'stream', events: events() } as unknown as UpstreamAnswer, toRead);
  if (stream.type === 'stream') for await (const some of stream.events) said.push(...some.map(({ data }) => data));
  t.deepEqual(said, ['take 3', 'xx', 'x', 'give back', 'waits', 'take 1', 'y', 'give back']);
  const body = { ...common, type: 'json', read: async () => Buffer.from('{}') } as unknown as UpstreamAnswer;
  const read = async () => {
    const answer = heldBack(body, toRead);
    return answer.type === 'stream' ? null : answer.read();
  };
  t.deepEqual(await read(), Buffer.from('{}'));
  isWanted = false;
  t.deepEqual(await read(), { fault: 'aborted' });
});

test('the bridge reads an answer to a list only when it may', async (t) => {
  const { driver } = await start(t, 0, [tool(0, 'string')]);
  await driver.open();
  const list = { body: '{"jsonrpc":"2.0","id":1,"method":"tools/list"}' };
  const asked: number[] = [];
  const toRead = (isWanted: boolean): ToRead => ({
    async take(bytes) {
      asked.push(bytes);
      return isWanted;
    },
    giveBack: () => undefined,
  });
  succeeded(await driver.send({ ...list, toRead: toRead(true) }));
  t.is(asked.length, 1);
  t.true((asked[0] ?? 0) > 1_000);
  t.like(await driver.send({ ...list, toRead: toRead(false) }), { fault: 'aborted' });
});

test('the refusal of a session counts as unread only until the target turns out to need none', async (t) => {
  const { driver, target, unread } = await start(t, 0);
  const { script } = target;
  let pages = 0;
  target.script = (entry, res) => {
    if (entry.message?.method !== 'initialize') return script(entry, res);
    pages += 1;
    return answerText(res, 'x'.repeat(1_000_000), 'text/html', 404);
  };
  await driver.open();
  t.is(pages, 1);
  t.is(unread(), 0);
});
