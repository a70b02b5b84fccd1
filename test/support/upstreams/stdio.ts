/** The stdio upstream driven as the gateway drives it, with the fixture or a real server as its target. */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { ExecutionContext } from 'ava';
import type { JsonObject } from '../../../src/base/json/json.ts';
import { createStdioUpstream, type StdioLimits } from '../../../src/mcp/upstream/stdio/stdio.ts';
import { createUnread } from '../../../src/mcp/upstream/unread.ts';
import {
  isFault,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamLimits,
  type UpstreamRequest,
  type UpstreamStream,
} from '../../../src/mcp/upstream/upstream.ts';
import type { Access, RoutedTarget } from '../../../src/targets/target.ts';

export const FIXTURE = fileURLToPath(new URL('stdio-fixture.mjs', import.meta.url));
const LIMITS: UpstreamLimits = {
  connectMs: 1_000,
  headersMs: 20_000,
  silenceMs: 20_000,
  idleMs: 20_000,
  answerBytes: 4 * 1024 * 1024,
};
const STDIO: StdioLimits = { allowed: [process.execPath, '/bin/sh'], maxProcesses: 20, idleMs: 600_000, lifetimeMs: 86_400_000 };

export interface Message {
  readonly jsonrpc: string;
  readonly id?: string | number;
  readonly method?: string;
  readonly params?: JsonObject;
  // biome-ignore lint/suspicious/noExplicitAny: what a tool of the fixture answers is for its test to know
  readonly result?: any;
  readonly error?: { readonly code: number; readonly message: string };
}

export interface LogLine {
  readonly level: 'debug' | 'info' | 'warn' | 'error';
  readonly message: string;
  readonly about: Record<string, unknown>;
}

export interface StdioWorld {
  readonly upstream: Upstream;
  readonly logged: LogLine[];
  /** Moves the clock, which only the bookkeeping of idle times uses. */
  pass(ms: number): void;
}

export function startStdio(
  t: ExecutionContext,
  limits: Partial<UpstreamLimits> = {},
  stdio: Partial<StdioLimits> = {},
  clock: () => number = Date.now,
): StdioWorld {
  const logged: LogLine[] = [];
  let offset = 0;
  const write =
    (level: LogLine['level']) =>
    (about: object, message = '') =>
      void logged.push({ level, message, about: about as LogLine['about'] });
  const upstream = createStdioUpstream({
    limits: { ...LIMITS, ...limits },
    stdio: { ...STDIO, ...stdio },
    log: { debug: write('debug'), info: write('info'), warn: write('warn'), error: write('error') } as never,
    newId: randomUUID,
    now: () => clock() + offset,
    unread: createUnread(),
  });
  t.teardown(() => upstream.close());
  return {
    upstream,
    logged,
    pass(ms) {
      offset += ms;
    },
  };
}

export interface Place {
  readonly target: RoutedTarget;
  readonly access: Access;
}

interface PlaceOptions {
  readonly command?: string;
  readonly args?: readonly string[];
  readonly cwd?: string;
  readonly env?: Record<string, string>;
  readonly credentials?: Record<string, string>;
  /** Callers with the same scope share a process. */
  readonly scope?: string;
  readonly identity?: string;
  readonly binding?: string;
  readonly owner?: string;
}

/** The same target whatever the options say of the caller. */
export function placeFor({ command, args, cwd, env, credentials, scope, identity, binding, owner }: PlaceOptions = {}): Place {
  const access: Access = {
    credentials: { headers: [], env: credentials ?? {}, identity: identity ?? 'nobody' },
    scope: scope ?? null,
    binding: binding ?? 'one',
    user: owner ?? 'alice',
    ...(owner === undefined ? {} : { owner }),
  };
  const target: RoutedTarget = {
    id: '00000000-0000-4000-8000-000000000001',
    name: 'fixture',
    description: null,
    enabled: true,
    denials: 'shown',
    may_ask: [],
    extension_methods: [],
    user_credentials: [],
    capture_arguments: null,
    own_accounts: null,
    timeout_ms: null,
    created_at: 0,
    updated_at: 0,
    transport: 'stdio',
    command: command ?? process.execPath,
    args: command === undefined ? [FIXTURE, ...(args ?? [])] : (args ?? []),
    cwd: cwd ?? null,
    env: env ?? {},
    isolation: scope === undefined ? 'per_user' : 'shared',
    accessOf: () => access,
  };
  return { target, access };
}

export type Sent = UpstreamAnswer | UpstreamFault;

export const INITIALIZE = {
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: { sampling: {} }, clientInfo: { name: 'test', version: '1' } },
};

export class Client {
  readonly #upstream: Upstream;
  readonly #place: Place;
  readonly id: string;
  /** The whole answer to its `initialize`. */
  readonly opened: Message;

  constructor(upstream: Upstream, place: Place, id: string, opened: Message) {
    this.#upstream = upstream;
    this.#place = place;
    this.id = id;
    this.opened = opened;
  }

  send(request: Pick<UpstreamRequest, 'method' | 'signal'> & { message?: object | string }): Promise<Sent> {
    const { message, method, signal } = request;
    const body = message === undefined ? undefined : typeof message === 'string' ? message : JSON.stringify(message);
    return this.#upstream.send({
      method,
      ...this.#place,
      session: { upstreamId: this.id },
      ...(body === undefined ? {} : { body }),
      ...(signal === undefined ? {} : { signal }),
    });
  }

  post(message: object | string, signal?: AbortSignal): Promise<Sent> {
    return this.send({ method: 'POST', message, ...(signal === undefined ? {} : { signal }) });
  }

  async listen(signal?: AbortSignal): Promise<Reader> {
    return new Reader(stream(await this.send({ method: 'GET', ...(signal === undefined ? {} : { signal }) })));
  }

  /** The stream of a call. */
  async start(name: string, args: object = {}, options: { id?: number | string; meta?: object; signal?: AbortSignal } = {}) {
    const { id = 1, meta, signal } = options;
    const params = { name, arguments: args, ...(meta === undefined ? {} : { _meta: meta }) };
    return new Reader(stream(await this.post({ jsonrpc: '2.0', id, method: 'tools/call', params }, signal)));
  }

  /** The answer to a call. */
  async call(name: string, args: object = {}, id: number | string = 1): Promise<Message> {
    const all = await (await this.start(name, args, { id })).all();
    const last = all.at(-1);
    if (last === undefined) throw new Error('no answer');
    return last;
  }

  /** The messages that the process has received, in order. */
  async received(): Promise<Message[]> {
    const { result } = await this.call('received');
    return (result.received as string[]).map((line) => JSON.parse(line) as Message);
  }

  async pid(): Promise<number> {
    return (await this.call('facts')).result.pid as number;
  }
}

export class Reader {
  readonly #events: AsyncIterator<readonly { data: string }[]>;
  readonly #there: Message[] = [];
  readonly discard: () => void;

  constructor(answer: UpstreamStream) {
    this.#events = answer.events[Symbol.asyncIterator]();
    this.discard = () => answer.discard();
  }

  /** null: the stream has ended. */
  async next(): Promise<Message | null> {
    while (this.#there.length === 0) {
      const step = await this.#events.next();
      if (step.done) return null;
      this.#there.push(...step.value.map(({ data }) => JSON.parse(data) as Message));
    }
    return this.#there.shift() ?? null;
  }

  async all(): Promise<Message[]> {
    const messages: Message[] = [];
    for (let message = await this.next(); message !== null; message = await this.next()) messages.push(message);
    return messages;
  }
}

export async function initialize(
  upstream: Upstream,
  place: Place,
  signal?: AbortSignal,
  message: object = INITIALIZE,
): Promise<Sent> {
  return upstream.send({ method: 'POST', ...place, body: JSON.stringify(message), ...(signal === undefined ? {} : { signal }) });
}

export async function open(upstream: Upstream, place: Place, message: object = INITIALIZE): Promise<Client> {
  const answer = await initialize(upstream, place, undefined, message);
  if (isFault(answer)) throw new Error(`no session: ${answer.fault}`, { cause: answer.cause });
  const opened = JSON.parse(await textOf(answer)) as Message;
  if (answer.sessionId === null) throw new Error(`no session: ${JSON.stringify(opened)}`);
  const client = new Client(upstream, place, answer.sessionId, opened);
  await client.post({ jsonrpc: '2.0', method: 'notifications/initialized' });
  return client;
}

export async function textOf(answer: UpstreamAnswer): Promise<string> {
  if (answer.type === 'stream') throw new Error('a stream');
  const body = await answer.read();
  if (isFault(body)) throw new Error(body.fault);
  return body.toString();
}

export function stream(sent: Sent): UpstreamStream {
  if (isFault(sent)) throw new Error(`no stream but ${sent.fault}`, { cause: sent.cause });
  if (sent.type !== 'stream') throw new Error(`no stream but ${sent.status}`);
  return sent;
}

/** The status of an answer, or the fault. */
export function outcomeOf(sent: Sent): number | string {
  return isFault(sent) ? sent.fault : sent.status;
}

/** Whether the process runs. A zombie does not count as running. */
export function isAlive(pid: number): boolean {
  try {
    return !/^\d+ \(.*\) [ZX]/s.test(readFileSync(`/proc/${pid}/stat`, 'utf8'));
  } catch {
    return false;
  }
}

export async function until(condition: () => boolean, what: string, ms = 20_000): Promise<void> {
  for (const deadline = Date.now() + ms; !condition(); ) {
    if (Date.now() > deadline) throw new Error(`not within ${ms} ms: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
