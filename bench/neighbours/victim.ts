/**
 * The caller who does nothing bad, in a process of its own. It calls at a steady rate, whether or not it has been answered, so that waiting
 * counts: a gateway that stands still for a second delays all calls of that second. Takes orders as `bench/gateway/load.ts` does.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Client } from 'undici';
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
  /** Milliseconds, of the calls that were served and those that nobody had answered when the patience was over. */
  readonly p50: number;
  readonly p99: number;
  readonly longest: number;
  /** How many were not served, by what came instead. */
  readonly refused: Readonly<Record<string, number>>;
}

export interface VictimOrders {
  /** Opens what later calls go over. */
  open: { takes: VictimPlan; gives: Record<string, never> };
  /** One call after the other on each connection, until there were so many. */
  warm: { takes: { readonly calls: number }; gives: Record<string, never> };
  run: { takes: { readonly ms: number }; gives: VictimFigures };
}

const CONNECTIONS = 8;
const PATIENCE_MS = 30_000;
const REVISION = '2025-11-25';

class Refused extends Error {}

interface Line {
  readonly client: Client;
  /** With its session, if calls go over one. */
  readonly headers: Readonly<Record<string, string>>;
}

let plan: VictimPlan | null = null;
let lines: readonly Line[] = [];
let counter = 0;

type Headers = Readonly<Record<string, string>>;

async function request(client: Client, method: 'POST' | 'DELETE', headers: Headers, message?: object) {
  const path = new URL(plan?.url ?? '').pathname;
  const body = message === undefined ? null : JSON.stringify({ jsonrpc: '2.0', ...message });
  const answer = await client.request({ path, method, headers, body });
  return { status: answer.statusCode, session: answer.headers['mcp-session-id'], text: await answer.body.text() };
}

/** Throws `Refused` with what came instead of a result. */
async function ask(client: Client, headers: Headers, method: string, params: object, expected: string) {
  const answer = await request(client, 'POST', headers, { id: ++counter, method, params });
  if (answer.status !== 200) throw new Refused(`HTTP ${answer.status}`);
  if (!answer.text.includes(expected))
    throw new Refused(`${method}: ${/"code":\s*-?\d+/.exec(answer.text)?.[0] ?? 'another answer'}`);
  return answer;
}

async function openSession(client: Client): Promise<Headers> {
  const headers = {
    ...plan?.headers,
    'content-type': 'application/json',
    accept: 'application/json, text/event-stream',
    'mcp-protocol-version': REVISION,
  };
  const params = { protocolVersion: REVISION, capabilities: {}, clientInfo: { name: 'victim', version: '1' } };
  const { session } = await ask(client, headers, 'initialize', params, '"protocolVersion"');
  const opened = { ...headers, 'mcp-session-id': String(session) };
  await request(client, 'POST', opened, { method: 'notifications/initialized' });
  return opened;
}

async function call(client: Client, headers: Headers): Promise<void> {
  const message = `hello ${++counter}`;
  await ask(client, headers, 'tools/call', { name: plan?.tool, arguments: { message } }, `Echo: ${message}"`);
}

async function once({ client, headers }: Line): Promise<void> {
  if (plan?.kind === 'call') return call(client, headers);
  const opened = await openSession(client);
  await ask(client, opened, 'tools/list', {}, `"${plan?.tool}"`);
  await call(client, opened);
  await request(client, 'DELETE', opened);
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
    const line = lines[handed % lines.length];
    if (line === undefined) throw new Error('nothing is open');
    const one = { since: performance.now() };
    waiting.add(one);
    void once(line).then(
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
    for (const { client } of lines) void client.destroy();
    plan = order;
    const { origin } = new URL(order.url);
    lines = await Promise.all(
      Array.from({ length: CONNECTIONS }, async () => {
        const client = new Client(origin, { keepAliveTimeout: 600_000, keepAliveMaxTimeout: 600_000, headersTimeout: 120_000 });
        return { client, headers: order.kind === 'call' ? await openSession(client) : {} };
      }),
    );
    return {};
  },
  async warm({ calls }) {
    let left = calls;
    await Promise.all(
      lines.map(async (line) => {
        while (left-- > 0) await once(line);
      }),
    );
    return {};
  },
  run: ({ ms }) => run(ms),
});
