/**
 * The caller who does nothing bad, in a process of its own. It calls at a steady rate, whether or not it has been answered, so that waiting
 * counts: a gateway that stands still for a second delays all calls of that second. Takes orders as `bench/gateway/load.ts` does.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Pool } from 'undici';
import { takeOrders } from '../gateway/orders.ts';
import { figuresOf } from '../measure.ts';

export interface VictimPlan {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  /** `call`: `tools/call` over open sessions. `session`: opens one, lists, calls, and ends it. */
  readonly kind: 'call' | 'session';
  readonly tool: string;
  readonly perSecond: number;
}

export interface VictimFigures {
  readonly calls: number;
  /** Milliseconds, over the calls that were served and those that had no answer after `PATIENCE_MS`. */
  readonly p50: number;
  readonly p99: number;
  readonly longest: number;
  /** Number of calls that were not served, by what came instead. */
  readonly refused: Readonly<Record<string, number>>;
}

export interface VictimOrders {
  /** Opens the sessions for later calls. */
  open: { takes: VictimPlan; gives: Record<string, never> };
  /** Calls in eight loops until it has made that many. */
  warm: { takes: { readonly calls: number }; gives: Record<string, never> };
  run: { takes: { readonly ms: number }; gives: VictimFigures };
}

const SESSIONS = 8;
/** So many that no call waits for a connection while the gateway is up to two seconds late. */
const CONNECTIONS = 128;
const PATIENCE_MS = 30_000;
const REVISION = '2025-11-25';

class Refused extends Error {}

type Headers = Readonly<Record<string, string>>;

let plan: VictimPlan | null = null;
let pool: Pool | null = null;
/** Headers of the open sessions. */
let sessions: readonly Headers[] = [];
let counter = 0;

async function request(method: 'POST' | 'DELETE', headers: Headers, message?: object) {
  const path = new URL(plan?.url ?? '').pathname;
  const body = message === undefined ? null : JSON.stringify({ jsonrpc: '2.0', ...message });
  if (pool === null) throw new Error('nothing is open');
  const answer = await pool.request({ path, method, headers, body });
  return { status: answer.statusCode, session: answer.headers['mcp-session-id'], text: await answer.body.text() };
}

/** Throws `Refused`, with what came instead, unless the result is there. */
async function ask(headers: Headers, method: string, params: object, expected: string) {
  const answer = await request('POST', headers, { id: ++counter, method, params });
  if (answer.status !== 200) throw new Refused(`HTTP ${answer.status}`);
  if (!answer.text.includes(expected))
    throw new Refused(`${method}: ${/"code":\s*-?\d+/.exec(answer.text)?.[0] ?? 'another answer'}`);
  return answer;
}

async function openSession(): Promise<Headers> {
  const headers = {
    ...plan?.headers,
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
    'mcp-protocol-version': REVISION,
  };
  const params = { protocolVersion: REVISION, capabilities: {}, clientInfo: { name: 'victim', version: '1' } };
  const { session } = await ask(headers, 'initialize', params, '"protocolVersion"');
  const opened = { ...headers, 'mcp-session-id': String(session) };
  await request('POST', opened, { method: 'notifications/initialized' });
  return opened;
}

async function call(headers: Headers): Promise<void> {
  const message = `hello ${++counter}`;
  await ask(headers, 'tools/call', { name: plan?.tool, arguments: { message } }, `Echo: ${message}"`);
}

/** `headers` are those of an open session; without them the call opens one. */
async function once(headers: Headers | undefined): Promise<void> {
  if (headers !== undefined) return call(headers);
  const opened = await openSession();
  await ask(opened, 'tools/list', {}, `"${plan?.tool}"`);
  await call(opened);
  await request('DELETE', opened);
}

async function run(ms: number): Promise<VictimFigures> {
  const times: number[] = [];
  const refused: Record<string, number> = {};
  const waiting = new Set<{ readonly since: number }>();
  const refuse = (why: string): void => {
    refused[why] = (refused[why] ?? 0) + 1;
  };
  const every = 1_000 / (plan?.perSecond ?? 1);
  const began = performance.now();
  let handed = 0;
  for (; handed * every < ms; handed++) {
    await sleep(Math.max(0, began + handed * every - performance.now()));
    const one = { since: performance.now() };
    waiting.add(one);
    void once(sessions[handed % sessions.length]).then(
      () => {
        if (waiting.delete(one)) times.push(performance.now() - one.since);
      },
      (error: Error & { code?: string }) => {
        if (waiting.delete(one)) refuse(error instanceof Refused ? error.message : (error.code ?? error.message));
      },
    );
  }
  const latest = performance.now() + PATIENCE_MS;
  while (waiting.size > 0 && performance.now() < latest) await sleep(20);
  for (const { since } of waiting) {
    times.push(performance.now() - since);
    refuse(`no answer in ${PATIENCE_MS / 1_000} s`);
  }
  waiting.clear();
  const { p50, p99 } = figuresOf(times);
  return { calls: handed, p50, p99, longest: times.reduce((most, time) => Math.max(most, time), 0), refused };
}

await takeOrders<VictimOrders>({
  async open(order) {
    void pool?.destroy();
    const { origin } = new URL(order.url);
    const limits = { keepAliveTimeout: 600_000, keepAliveMaxTimeout: 600_000, headersTimeout: 120_000 };
    pool = new Pool(origin, { ...limits, connections: CONNECTIONS });
    plan = order;
    sessions = order.kind === 'call' ? await Promise.all(Array.from({ length: SESSIONS }, openSession)) : [];
    return {};
  },
  async warm({ calls }) {
    let left = calls;
    const loop = async (_: unknown, i: number): Promise<void> => {
      while (left-- > 0) await once(sessions[i]);
    };
    await Promise.all(Array.from({ length: SESSIONS }, loop));
    return {};
  },
  run: ({ ms }) => run(ms),
});
