/**
 * The callers, in a process of their own: sessions of raw MCP, each on a connection that is kept alive, each with one call at a time. Takes
 * orders as POST with JSON: see `Orders` for what each takes and answers. Every answer is looked at; a wrong one ends the order with it.
 */
import { Client, type Dispatcher } from 'undici';
import { figuresOf } from '../measure.ts';
import type { Orders, Place } from './load-orders.ts';
import { takeOrders } from './orders.ts';

interface Session {
  readonly client: Client;
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly tool: string;
}

const REVISION = '2025-11-25';
const KEEP_ALIVE = { keepAliveTimeout: 600_000, keepAliveMaxTimeout: 600_000, headersTimeout: 60_000, bodyTimeout: 0 };
const sessions = new Map<string, Session[]>();

interface Reply {
  readonly status: number;
  readonly headers: Dispatcher.ResponseData['headers'];
  readonly text: string;
}

async function post({ client, path, headers }: Session, body: string): Promise<Reply> {
  const answer = await client.request({ path, method: 'POST', headers, body });
  return { status: answer.statusCode, headers: answer.headers, text: await answer.body.text() };
}

async function openSession({ url, headers }: Place, tool: string): Promise<Session> {
  const { origin, pathname, search } = new URL(url);
  const common = {
    ...headers,
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
    'mcp-protocol-version': REVISION,
  };
  const opening: Session = { client: new Client(origin, KEEP_ALIVE), path: pathname + search, headers: common, tool };
  const params = { protocolVersion: REVISION, capabilities: {}, clientInfo: { name: 'bench', version: '1' } };
  const {
    status,
    headers: given,
    text,
  } = await post(opening, JSON.stringify({ jsonrpc: '2.0', id: 0, method: 'initialize', params }));
  if (status !== 200 || !text.includes('"protocolVersion"')) throw new Error(`initialize: ${status} ${text}`);
  const id = given['mcp-session-id'];
  // A server may do without sessions.
  const session = typeof id === 'string' ? { ...opening, headers: { ...common, 'mcp-session-id': id } } : opening;
  await post(session, '{"jsonrpc":"2.0","method":"notifications/initialized"}');
  return session;
}

let calls = 0;
let open = 0;

const toolCall = (tool: string, message: string, pad = 0): string =>
  `{"jsonrpc":"2.0","id":${calls},"method":"tools/call","params":{"name":"${tool}","arguments":{"message":"${message}"${pad === 0 ? '' : `,"pad":${pad}`}}}}`;

const tell = async (session: Session): Promise<string> => (await post(session, toolCall(session.tool, `${++calls}`))).text;

async function call(session: Session, pad: number): Promise<void> {
  const message = `hello ${++calls}`;
  const { status, text } = await post(session, toolCall(session.tool, message, pad));
  const good = status === 200 && text.includes(`Echo: ${message}"`) && text.length > pad && !/"isError":\s*true/.test(text);
  if (!good) throw new Error(`tools/call: ${status} ${text.slice(0, 2_000)}`);
}

async function list(session: Session, count: number): Promise<void> {
  const body = `{"jsonrpc":"2.0","id":${++calls},"method":"tools/list","params":{"cursor":"${count}"}}`;
  const { status, text } = await post(session, body);
  if (status !== 200 || !text.includes('"echo"')) throw new Error(`tools/list: ${status} ${text.slice(0, 2_000)}`);
}

const ORDERS: { [Name in keyof Orders]: (order: Orders[Name]['takes']) => Promise<Orders[Name]['gives']> } = {
  async open({ key, sessions: count, tool, atOnce = 1, ...place }) {
    const opened: Session[] = [];
    while (opened.length < count) {
      const next = Array.from({ length: Math.min(atOnce, count - opened.length) }, () => openSession(place, tool));
      opened.push(...(await Promise.all(next)));
    }
    sessions.set(key, opened);
    return {};
  },
  async probe({ key, ...place }) {
    const stranger = await openSession({ ...place, headers: {} }, 'echo').then(
      (session) => tell(session),
      () => 'refused',
    );
    if (stranger.includes('Echo: ')) throw new Error(`it answers without a token: ${stranger}`);
    const [session] = sessions.get(key) ?? [];
    if (session === undefined) throw new Error('no session is open');
    const other = await tell({ ...session, tool: 'other' });
    if (other.includes('Echo: ')) throw new Error(`it lets a tool through that is not allowed: ${other}`);
    return {};
  },
  async run({ key, concurrency, ms, calls: most = Number.POSITIVE_INFINITY, work = { pad: 0 } }) {
    const chosen = (sessions.get(key) ?? []).slice(0, concurrency);
    if (chosen.length < concurrency) throw new Error('so many sessions are not open');
    const times: number[] = [];
    const began = performance.now();
    const until = began + ms;
    const loop = async (session: Session): Promise<void> => {
      for (let before = performance.now(); before < until && times.length < most; ) {
        await ('list' in work ? list(session, work.list) : call(session, work.pad));
        const now = performance.now();
        times.push(now - before);
        before = now;
      }
    };
    await Promise.all(chosen.map(loop));
    const seconds = (performance.now() - began) / 1_000;
    const { p50, p99 } = figuresOf(times);
    return { calls: times.length, perSecond: times.length / seconds, p50, p99 };
  },
  async idle({ streams, ...place }) {
    for (let i = 0; i < streams; i++) {
      const { client, path, headers } = await openSession(place, '');
      const answer = await client.request({
        path,
        method: 'GET',
        headers: { ...headers, accept: 'text/event-stream' },
        headersTimeout: 0,
      });
      if (answer.statusCode !== 200) throw new Error(`stream ${i}: ${answer.statusCode} ${await answer.body.text()}`);
      answer.body.on('data', () => undefined);
      answer.body.on('error', () => undefined);
      answer.body.on('close', () => {
        open--;
      });
      open++;
    }
    return { open };
  },
};

await takeOrders<Orders>(ORDERS);
