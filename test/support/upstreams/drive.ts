/** A target as the request path sees it, and an upstream that is used without a gateway. */

import { readAll } from '../../../src/mcp/upstream/http.ts';
import {
  isFault,
  type Upstream,
  type UpstreamAnswer,
  type UpstreamFault,
  type UpstreamLimits,
  type UpstreamRequest,
} from '../../../src/mcp/upstream/upstream.ts';
import type { Access, HttpTarget, RoutedTarget } from '../../../src/targets/target.ts';
import type { Message } from './recording.ts';

export const LIMITS: UpstreamLimits = {
  connectMs: 2_000,
  headersMs: 5_000,
  silenceMs: 15_000,
  idleMs: 15_000,
  answerBytes: 1024 * 1024,
};

export const ACCESS: Access = {
  credentials: { headers: [['x-upstream-key', 'gateway-secret']], env: {}, identity: 'one' },
  scope: null,
  binding: 'one',
  user: 'alice',
};

export function httpTarget(transport: HttpTarget['transport'], url: string, access: Access = ACCESS): RoutedTarget {
  return {
    id: '00000000-0000-4000-8000-000000000001',
    name: 'driven',
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
    transport,
    url,
    accessOf: () => access,
  };
}

/** One session, driven by messages. */
export interface Driver {
  /** Set by `open`, or by a test. */
  upstreamId: string | null;
  send(request: Partial<UpstreamRequest>): Promise<UpstreamAnswer | UpstreamFault>;
  post(message: object, more?: Partial<UpstreamRequest>): Promise<UpstreamAnswer | UpstreamFault>;
  /** Initializes the session and returns the answer. */
  open(capabilities?: object): Promise<Message>;
  /** Sends a request and returns its answer, without the messages that came before it. */
  ask(method: string, params?: object, more?: Partial<UpstreamRequest>): Promise<Message>;
}

export function drive(upstream: Upstream, target: RoutedTarget, access: Access = ACCESS): Driver {
  let id = 0;
  const driver: Driver = {
    upstreamId: null,
    send: (request) =>
      upstream.send({
        method: 'POST',
        target,
        access,
        ...(driver.upstreamId === null ? {} : { session: { upstreamId: driver.upstreamId } }),
        ...request,
      }),
    post: (message, more = {}) => driver.send({ body: JSON.stringify({ jsonrpc: '2.0', ...message }), ...more }),
    async open(capabilities = {}) {
      const clientInfo = { name: 'driver', version: '1' };
      const params = { protocolVersion: '2025-11-25', capabilities, clientInfo };
      const answer = succeeded(await driver.post({ id: 'init', method: 'initialize', params }));
      driver.upstreamId = answer.sessionId;
      const message = await finalOf(answer);
      succeeded(await driver.post({ method: 'notifications/initialized' })).discard();
      return message;
    },
    async ask(method, params = {}, more = {}) {
      return finalOf(succeeded(await driver.post({ id: ++id, method, params }, more)));
    },
  };
  return driver;
}

export function succeeded(answer: UpstreamAnswer | UpstreamFault): UpstreamAnswer {
  if (isFault(answer)) throw new Error(`fault ${answer.fault}`, { cause: answer.cause });
  return answer;
}

export function statusOf(answer: UpstreamAnswer | UpstreamFault): number | string {
  if (isFault(answer)) return answer.fault;
  answer.discard();
  return answer.status;
}

/** The messages of an answer, in order. */
export async function* messagesOf(answer: UpstreamAnswer): AsyncGenerator<Message> {
  if (answer.type !== 'stream') {
    const bytes = await readAll(answer, LIMITS.answerBytes);
    if (isFault(bytes)) throw new Error(bytes.fault);
    if (bytes.length > 0) yield JSON.parse(bytes.toString('utf8')) as Message;
    return;
  }
  for await (const events of answer.events) for (const { data } of events) yield JSON.parse(data) as Message;
}

export async function collect(answer: UpstreamAnswer): Promise<Message[]> {
  const messages: Message[] = [];
  for await (const message of messagesOf(answer)) messages.push(message);
  return messages;
}

async function finalOf(answer: UpstreamAnswer): Promise<Message> {
  const last = (await collect(answer)).at(-1);
  if (last === undefined) throw new Error(`no message in an answer of status ${answer.status}`);
  return last;
}

/** Reads the messages of an answer one by one. */
export function reader(answer: UpstreamAnswer): { next(): Promise<Message> } {
  const messages = messagesOf(answer);
  return {
    async next() {
      const { value, done } = await messages.next();
      if (done) throw new Error('the stream has ended');
      return value;
    },
  };
}
