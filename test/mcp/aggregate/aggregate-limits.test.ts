/** How many messages of one caller may ask all targets. */
import { once } from 'node:events';
import { type ClientRequest, type IncomingMessage, request, type ServerResponse } from 'node:http';
import { text } from 'node:stream/consumers';
import test, { type ExecutionContext } from 'ava';
import type { McpDeps } from '../../../src/mcp/endpoint.ts';
import type { McpLimits } from '../../../src/mcp/limits/limits.ts';
import { answerJson } from '../../support/upstreams/recording.ts';
import { call, inSession } from '../raw.ts';
import { everywhere, listen, openEverywhere, target, until } from './aggregate.ts';

/** Lists of different kinds: while a target is late with one, it is not asked for the same again. */
const KINDS = ['tools/list', 'prompts/list', 'resources/list', 'resources/templates/list'];

/** A target whose lists come only when `answer` is called. */
async function start(t: ExecutionContext, limits: Partial<McpLimits>, deps: Partial<McpDeps> = {}) {
  const usual = target({ initialize: { capabilities: { tools: {}, prompts: {}, resources: {}, logging: {} } } });
  const waiting: (() => void)[] = [];
  let asked = 0;
  let isOpen = false;
  const at = await everywhere(
    t,
    {
      slow: (received, res: ServerResponse) => {
        const { id, method } = received.message ?? {};
        if (!KINDS.includes(method ?? '')) return usual(received, res);
        asked++;
        const result = { tools: [], prompts: [], resources: [], resourceTemplates: [] };
        const answer = (): void => void answerJson(res, { jsonrpc: '2.0', id, result });
        if (isOpen) answer();
        else waiting.push(answer);
      },
    },
    { limits: { joinMs: 60_000, ...limits }, deps },
  );
  const session = await openEverywhere(at, { revision: '2025-03-26' });
  return {
    at,
    session,
    asked: () => asked,
    answer(): void {
      isOpen = true;
      for (const one of waiting) one();
    },
    list(body: object = call('tools/list')): ClientRequest {
      const headers = {
        authorization: 'Bearer alice',
        'content-type': 'application/json',
        accept: 'application/json, text/event-stream',
        'mcp-session-id': session,
      };
      const req = request(`${at.gateway.origin}/mcp`, { method: 'POST', headers });
      req.on('error', () => undefined).end(JSON.stringify(body));
      return req;
    },
  };
}

const responseOf = async (req: ClientRequest): Promise<{ status: number | undefined; text: string }> => {
  const [res] = (await once(req, 'response')) as [IncomingMessage];
  return { status: res.statusCode, text: await text(res) };
};

test.serial('a caller has at most so many messages to all targets under way, in batches too', async (t) => {
  const { at, session, asked, answer, list } = await start(t, { widePerPrincipal: 3 });
  const [first, second] = [list(), list(call('prompts/list'))].map(responseOf);
  await until(() => asked() === 2);
  const batch = responseOf(
    list([call('tools/list', {}, 1), call('tools/list', {}, 2), call('logging/setLevel', { level: 'info' }, 3)]),
  );
  await until(() => asked() === 3);
  t.is((await responseOf(list())).status, 429);
  const roots = { jsonrpc: '2.0', method: 'notifications/roots/list_changed' };
  t.is((await at.send(inSession(session, roots))).status, 429);
  t.is(
    (await at.send({ body: call('initialize', { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: {} }, 0) })).status,
    429,
  );
  answer();
  for (const one of [first, second]) t.is((await one)?.status, 200);
  const answers = JSON.parse((await batch).text) as { id: number; error?: { message: string } }[];
  t.deepEqual(
    answers.map(({ id, error }) => [id, error?.message]),
    [
      [1, undefined],
      [2, 'Too many of your calls are under way; wait for one to end'],
      [3, 'Too many of your calls are under way; wait for one to end'],
    ],
  );
  t.is((await responseOf(list())).status, 200, 'the slots are free again');
});

test.serial(
  'a few of these messages are under way at once, and those whose clients left while they waited ask no target',
  async (t) => {
    let gone = 0;
    const { asked, answer, list } = await start(t, {}, { ended: ({ status }) => void (status === 499 && gone++) });
    const under = KINDS.map((method) => responseOf(list(call(method))));
    await until(() => asked() === 4);
    const left = Array.from({ length: 6 }, () => list());
    const last = list();
    const lastAnswer = responseOf(last);
    await Promise.all(left.map((req) => once(req, 'finish')));
    for (const req of left) req.destroy();
    await until(() => gone === left.length);
    answer();
    for (const one of under) t.is((await one).status, 200);
    t.is((await lastAnswer).status, 200);
    t.is(asked(), 5);
  },
);

/** Asks for the stream of all targets. The client does not wait for the answer. */
function askForStream(origin: string, session: string): ClientRequest {
  const headers = { authorization: 'Bearer alice', accept: 'text/event-stream', 'mcp-session-id': session };
  const req = request(`${origin}/mcp`, { headers }).on('error', () => undefined);
  req.end();
  return req;
}

test.serial('streams of all targets are opened in turns, and those whose clients left while they waited are not', async (t) => {
  let gone = 0;
  const { at, session, asked, answer, list } = await start(t, {}, { ended: ({ status }) => void (status === 499 && gone++) });
  const under = KINDS.map((method) => responseOf(list(call(method))));
  await until(() => asked() === 4);
  const before = at.gateway.admissions;
  const left = Array.from({ length: 6 }, () => askForStream(at.gateway.origin, session));
  await until(() => at.gateway.admissions >= before + left.length);
  for (const req of left) req.destroy();
  await until(() => gone === left.length);
  answer();
  for (const one of under) t.is((await one).status, 200);
  t.is((await listen(at.gateway, session)).status, 200);
  t.is(at.gateway.decisions.filter(({ method }) => method === 'GET').length, 1);
});

test.serial('a client that leaves while its stream is opened ends the decisions about it', async (t) => {
  const decided = { GET: 0, DELETE: 0 };
  let gone = 0;
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  const deps: Partial<McpDeps> = {
    ended: ({ status }) => void (status === 499 && gone++),
    audit: {
      decision: async ({ method }) => {
        if (method === 'GET' || method === 'DELETE') decided[method]++;
        if (method === 'GET') await held;
      },
      shown: async () => undefined,
      outcome: () => undefined,
    },
  };
  const names = Array.from({ length: 20 }, (_, index) => `target-${index}`);
  const at = await everywhere(t, Object.fromEntries(names.map((name) => [name, {}])), { deps, limits: { widePerPrincipal: 1 } });
  const session = await openEverywhere(at);
  const req = askForStream(at.gateway.origin, session);
  await until(() => decided.GET > 0);
  const send = (method: string) => at.send({ method, headers: ['mcp-session-id', session] });
  for (const method of ['GET', 'DELETE']) t.is((await send(method)).status, 429, method);
  req.destroy();
  await until(() => gone === 1);
  t.is((await send('GET')).status, 429, 'what has begun still counts');
  release();
  let status = 429;
  while (status === 429) ({ status } = await send('DELETE'));
  t.is(status, 200);
  t.true(decided.GET <= 8, `${decided.GET}`);
  t.is(decided.DELETE, names.length);
});

test.serial('each message of a batch counts against the requests of a minute', async (t) => {
  const counted: (number | undefined)[] = [];
  const rateLimit: McpDeps['rateLimit'] = (_key, messages) => {
    counted.push(messages);
    return (messages ?? 0) > 2 ? 7 : null;
  };
  const { at, session } = await start(t, {}, { rateLimit });
  const ping = (count: number) => Array.from({ length: count }, (_, id) => call('ping', {}, id + 1));
  counted.length = 0;
  t.is((await at.send(inSession(session, ping(3)))).status, 200);
  const refused = await at.send(inSession(session, ping(4)));
  t.deepEqual([refused.status, refused.headers['retry-after']], [429, '7']);
  t.is((await at.send(inSession(session, ping(1)))).status, 200);
  await at.send(inSession(session, ping(1_000)));
  t.deepEqual(counted, [undefined, 2, undefined, 3, undefined, undefined, 49]);
});

test.serial('a message to all targets is refused if its parameters are long, because each target would get them', async (t) => {
  const at = await everywhere(t, { one: {}, two: {} });
  const session = await openEverywhere(at);
  const { one, two } = at.upstreams;
  await at.ask(session, 'tools/list', { _meta: { a: 'a'.repeat(60_000) } });
  const _meta = { a: 'a'.repeat(70_000) };
  for (const [method, params] of [
    ['tools/list', { _meta }],
    ['tasks/list', { other: _meta }],
    ['logging/setLevel', { level: 'info', _meta }],
    ['logging/setLevel', { level: 'info', cursor: _meta.a }],
  ] as const) {
    const { error } = await at.ask(session, method, params);
    t.is(error?.code, -32602, method);
    t.regex(error?.message, /at most 65536 characters/);
  }
  const roots = { jsonrpc: '2.0', method: 'notifications/roots/list_changed', params: { _meta } };
  t.is((await at.send(inSession(session, roots))).status, 400);
  t.is((await at.send(inSession(session, { ...roots, params: { cursor: _meta.a } }))).status, 400, 'not the cursor of a list');
  const asked = [one, two].map(({ seen }) => seen().filter((method) => /list|level/i.test(method ?? '')));
  t.deepEqual(asked, [['tools/list'], ['tools/list']], 'only the short one was passed on');
  const { error } = await at.ask(session, 'tools/list', { cursor: 'a'.repeat(70_000) });
  t.is(error?.message, 'Invalid params: params.cursor', 'a cursor may be long');
});
