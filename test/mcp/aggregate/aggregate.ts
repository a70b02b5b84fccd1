/** The aggregate endpoint in front of targets that a test scripts. */
import { once } from 'node:events';
import { type ClientRequest, type IncomingMessage, request, type ServerResponse } from 'node:http';
import type { ExecutionContext } from 'ava';
import type { McpDeps } from '../../../src/mcp/endpoint.ts';
import type { McpLimits } from '../../../src/mcp/limits/limits.ts';
import type { RoutedTarget } from '../../../src/targets/target.ts';
import { answerJson, byMethod, type RecordingUpstream, type Script, startRecording } from '../../support/upstreams/recording.ts';
import { type Right, routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, type Raw, type Reply, send } from '../raw.ts';

type Results = Parameters<typeof byMethod>[0];

export interface Everywhere<Names extends string> {
  readonly gateway: TestGateway;
  readonly upstreams: Readonly<Record<Names, RecordingUpstream>>;
  /** Sends a request to `/mcp`. */
  send(raw: Raw): Promise<Reply>;
  ask(session: string, method: string, params?: object, more?: Raw & { readonly id?: unknown }): Promise<Message>;
}

export interface Message {
  readonly id?: unknown;
  readonly method?: string;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into it
  readonly params?: any;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into it
  readonly result?: any;
  // biome-ignore lint/suspicious/noExplicitAny: tests look into it
  readonly error?: any;
}

interface More {
  readonly rights?: Readonly<Record<string, Right>>;
  readonly limits?: Partial<McpLimits>;
  /** Further targets, for which the test starts no server. */
  readonly targets?: readonly RoutedTarget[];
  readonly deps?: Partial<McpDeps>;
}

export async function everywhere<Names extends string>(
  t: ExecutionContext,
  scripts: Readonly<Record<Names, Results | Script>>,
  { rights = { alice: () => true, bob: () => true }, limits, targets = [], deps = {} }: More = {},
): Promise<Everywhere<Names>> {
  const started = await Promise.all(
    Object.entries<Results | Script>(scripts).map(async ([name, script]) => {
      const upstream = await startRecording(typeof script === 'function' ? (script as Script) : target(script));
      return [name, upstream] as const;
    }),
  );
  const gateway = await startGateway({
    targets: [...started.map(([name, { url }]) => routed(name, url)), ...targets],
    rights,
    limits: { watchMs: 20, ...limits },
    deps,
  });
  t.teardown(async () => {
    await gateway.stop();
    await Promise.all(started.map(([, upstream]) => upstream.stop()));
  });
  const onMcp = (raw: Raw) => send(gateway, { path: '/mcp', ...raw });
  return {
    gateway,
    upstreams: Object.fromEntries(started) as Record<Names, RecordingUpstream>,
    send: onMcp,
    async ask(session, method, params = {}, { id = 1, ...more } = {}) {
      const { text } = await onMcp(inSession(session, call(method, params, id), more));
      return answerIn(text);
    },
  };
}

/** Each session has its own id at the target, as with real servers. */
export function target(results: Results): Script {
  const script = byMethod(results);
  let sessions = 0;
  return (received, res) => {
    const { message } = received;
    if (message?.method !== 'initialize') return script(received, res);
    const result = {
      protocolVersion: message.params?.['protocolVersion'],
      capabilities: { tools: {}, logging: {} },
      serverInfo: { name: 'r', version: '1' },
    };
    const { capabilities } = (results['initialize'] as { capabilities?: object } | undefined) ?? result;
    answerJson(
      res,
      { jsonrpc: '2.0', id: message.id, result: { ...result, capabilities } },
      { 'mcp-session-id': `upstream-${++sessions}` },
    );
  };
}

/** The last message of an answer, JSON or events. */
export function answerIn(text: string): Message {
  const last = messagesIn(text).at(-1);
  return last ?? (JSON.parse(text) as Message);
}

export function messagesIn(text: string): Message[] {
  return [...text.matchAll(/^data: (\{.*\})$/gm)].map(([, data]) => JSON.parse(data ?? '') as Message);
}

export async function openEverywhere(
  { send }: Pick<Everywhere<string>, 'send'>,
  { user = 'alice', revision = '2025-11-25', capabilities = {}, ready = true } = {},
): Promise<string> {
  const params = { protocolVersion: revision, capabilities, clientInfo: { name: 'raw', version: '1' } };
  const reply = await send({ user, body: call('initialize', params, 0) });
  const id = reply.headers['mcp-session-id'];
  if (typeof id !== 'string') throw new Error(`no session: ${reply.status} ${reply.text}`);
  if (ready) await send(inSession(id, { jsonrpc: '2.0', method: 'notifications/initialized' }, { user }));
  return id;
}

export interface Listening {
  readonly status: number;
  text(): string;
  messages(): Message[];
  ids(): string[];
  isEnded(): boolean;
  until(condition: () => boolean): Promise<void>;
  stop(): void;
}

/** A stream that stays open: the session's own, or that of a call. */
export async function listen(
  gateway: TestGateway,
  session: string,
  { user = 'alice', body, headers = [] }: { user?: string; body?: object; headers?: readonly string[] } = {},
): Promise<Listening> {
  const text = body === undefined ? undefined : JSON.stringify(body);
  const own = { authorization: `Bearer ${user}`, accept: 'application/json, text/event-stream', 'mcp-session-id': session };
  const ofBody = text === undefined ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) };
  const all = ['host', 'x', ...Object.entries({ ...own, ...ofBody }).flat(), ...headers];
  const req: ClientRequest = request(`${gateway.origin}/mcp`, {
    method: text === undefined ? 'GET' : 'POST',
    headers: all as never,
  });
  req.end(text);
  const [res] = (await once(req, 'response')) as [IncomingMessage];
  let received = '';
  let ended = false;
  res.setEncoding('utf8');
  res.on('data', (chunk: string) => {
    received += chunk;
  });
  res.on('close', () => {
    ended = true;
  });
  res.on('error', () => undefined);
  return {
    status: res.statusCode ?? 0,
    text: () => received,
    messages: () => messagesIn(received),
    ids: () => [...received.matchAll(/^id: (.*)$/gm)].map(([, id]) => id ?? ''),
    isEnded: () => ended,
    until: (condition) => until(condition, () => received),
    stop: () => req.destroy(),
  };
}

export async function until(condition: () => boolean, sofar: () => unknown = () => ''): Promise<void> {
  for (let tries = 0; !condition(); tries++) {
    if (tries > 2_000) throw new Error(`never happened; so far: ${String(sofar())}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

export const startStream = (res: ServerResponse): void => {
  res.writeHead(200, { 'content-type': 'text/event-stream' });
  res.flushHeaders();
};

export const event = (message: object, id?: string): string =>
  `${id === undefined ? '' : `id: ${id}\n`}data: ${JSON.stringify({ jsonrpc: '2.0', ...message })}\n\n`;
