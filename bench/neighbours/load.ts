/** The bad neighbour, as a separate process. It takes orders like `bench/gateway/load.ts`. */
import { Agent } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { takeOrders } from '../gateway/orders.ts';
import { type Outcome, type Sending, send } from './wire.ts';
import { ANSWER_BYTES, type LoadOrders, type Step, type Tally, type Workload } from './workload.ts';

interface Sent {
  /** Milliseconds from the beginning of the phase. */
  readonly at: number;
  readonly tookMs: number;
  readonly sending: Sending;
  readonly outcome: Outcome;
}

/** What each loop has sent. */
let remembered: readonly (readonly Sent[])[] = [];
let counter = 0;

/** Whether the answer did not come, or not in full. */
const brokeOff = ({ how }: Outcome): boolean => !/^\d/.test(how) || how.endsWith('cut');

function tallyOf(loops: readonly (readonly Sent[])[]): Tally {
  const outcomes: Record<string, number> = {};
  let [sentBytes, receivedBytes] = [0, 0];
  for (const { outcome } of loops.flat()) {
    outcomes[outcome.how] = (outcomes[outcome.how] ?? 0) + 1;
    sentBytes += outcome.sent;
    receivedBytes += outcome.received;
  }
  return { outcomes, sentBytes, receivedBytes };
}

/** Large bodies are made once. They have no `{name}` in them. */
const bodies = new Map<string, Buffer>();
const LARGE = 16 * 1024;

function bodyOf(text: string, filled: (text: string) => string): Buffer {
  if (text.length < LARGE) return Buffer.from(filled(text));
  const known = bodies.get(text) ?? Buffer.from(text);
  bodies.set(text, known);
  return known;
}

/** null: the step needs a value that no answer has given. */
function sendingOf(
  { method, path, headers, body, sendMs = 0, unread = false }: Step,
  values: Map<string, string>,
): Sending | null {
  let missing = false as boolean;
  const filled = (text: string): string =>
    text.replace(/\{([a-z]+)\}/g, (_, name: string) => {
      if (name === 'n') return String(++counter);
      missing ||= !values.has(name);
      return values.get(name) ?? '';
    });
  const all = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, filled(value)]));
  const sending = {
    ...{ method, path: filled(path), headers: all, sendMs, unread },
    body: body === undefined ? null : bodyOf(body, filled),
  };
  return missing ? null : sending;
}

async function until(at: number, signal: AbortSignal): Promise<void> {
  const ms = at - performance.now();
  if (ms > 0) await sleep(ms, undefined, { signal }).catch(() => undefined);
}

const over = (signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));

/** A connection for each loop, for a phase. What is open at its end is ended. */
async function phase(ms: number, loops: readonly ((agent: Agent, signal: AbortSignal) => Promise<void>)[]): Promise<void> {
  const ended = new AbortController();
  const timer = setTimeout(() => ended.abort(), ms);
  const agents = loops.map(() => new Agent({ keepAlive: true, maxSockets: 1 }));
  await Promise.all(loops.map((loop, i) => loop(agents[i] as Agent, ended.signal)));
  // A loop may have come to its end before.
  if (!ended.signal.aborted) await over(ended.signal);
  clearTimeout(timer);
  for (const agent of agents) agent.destroy();
}

async function begin(origin: string, { given = [], loops, everyMs = 0, first, steps }: Workload, ms: number): Promise<Tally> {
  const began = performance.now();
  const sent: Sent[][] = Array.from({ length: loops }, () => []);
  const loop = (mine: Sent[], i: number) => async (agent: Agent, signal: AbortSignal) => {
    const values = new Map(Object.entries(given[i % given.length] ?? {}));
    let notBefore = 0;
    for (let next = 0; !signal.aborted; next = next + 1 < first.length + steps.length ? next + 1 : first.length) {
      const step = first[next] ?? steps[next - first.length];
      const sending = step === undefined ? null : sendingOf(step, values);
      await until(sending === null ? performance.now() + 50 : notBefore, signal);
      if (step === undefined || sending === null) {
        next = -1;
        continue;
      }
      if (signal.aborted) return;
      notBefore = performance.now() + everyMs;
      const at = performance.now() - began;
      const outcome = await send(origin, agent, sending, signal);
      mine.push({ at, tookMs: performance.now() - began - at, sending, outcome: { ...outcome, text: '' } });
      const { name, pattern } = step.capture ?? {};
      const value = pattern === undefined ? undefined : new RegExp(pattern).exec(outcome.text)?.[1];
      if (name !== undefined) value === undefined ? values.delete(name) : values.set(name, value);
      if (outcome.how.startsWith('404')) next = -1;
      // Without a pause this process would only try to connect if the gateway is gone.
      if (brokeOff(outcome)) await sleep(10);
    }
  };
  await phase(ms, sent.map(loop));
  remembered = sent;
  return tallyOf(sent);
}

async function again(instead: LoadOrders['again']['takes']['instead'], ms: number): Promise<Tally> {
  const began = performance.now();
  const done: Sent[][] = remembered.map(() => []);
  const loop = (before: readonly Sent[], i: number) => async (agent: Agent, signal: AbortSignal) => {
    for (const { at, tookMs, sending, outcome } of before) {
      await until(began + at, signal);
      if (signal.aborted) return;
      const whole = !brokeOff(outcome) && !outcome.how.endsWith('open');
      // A request that was cut off lasts no longer here.
      const limit = whole ? signal : AbortSignal.any([signal, AbortSignal.timeout(Math.ceil(tookMs))]);
      const body = sending.body?.subarray(0, outcome.sent) ?? null;
      const [origin, to] =
        'target' in instead
          ? [new URL(instead.target).origin, { ...sending, path: new URL(instead.target).pathname }]
          : [instead.discard, { ...sending, body, headers: { ...sending.headers, [ANSWER_BYTES]: String(outcome.received) } }];
      const now = performance.now() - began;
      const result = await send(origin, agent, to, limit);
      done[i]?.push({ at: now, tookMs: performance.now() - began - now, sending, outcome: { ...result, text: '' } });
    }
  };
  await phase(ms, remembered.map(loop));
  return tallyOf(done);
}

await takeOrders<LoadOrders>({
  begin: ({ origin, workload, ms }) => begin(origin, workload, ms),
  again: ({ instead, ms }) => again(instead, ms),
});
