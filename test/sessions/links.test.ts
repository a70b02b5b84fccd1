/** The targets' halves of sessions where targets and databases misbehave, and the streams that several sources make. */
import test, { type ExecutionContext } from 'ava';
import { createLog } from '../../src/base/log.ts';
import { createMerge } from '../../src/mcp/answers/merge.ts';
import { createAdmissionChanges, createRevalidation } from '../../src/mcp/context/revalidation.ts';
import type { SessionTarget } from '../../src/mcp/context/upstream-opening.ts';
import {
  createUpstreamSessions,
  isUpstreamSessionFailure,
  type UpstreamSessions,
} from '../../src/mcp/context/upstream-sessions.ts';
import { DEFAULT_LIMITS } from '../../src/mcp/limits/limits.ts';
import { createSeal } from '../../src/mcp/sessions/seal.ts';
import type { Session } from '../../src/mcp/sessions/sessions.ts';
import { createHealth } from '../../src/mcp/upstream/health.ts';
import { createPace, MONOTONIC } from '../../src/mcp/upstream/pace.ts';
import type { Upstream, UpstreamRequest } from '../../src/mcp/upstream/upstream.ts';
import type { SessionStore } from '../../src/sessions/session-store.ts';
import type { Admission } from '../../src/state/admission.ts';
import { noCredentials, routed } from '../mcp/gateway.ts';
import { memorySessions } from '../mcp/stores.ts';
import { until } from '../support/listener.ts';

interface Sent extends UpstreamRequest {
  readonly rpc: string;
}

interface Fixture {
  readonly links: UpstreamSessions;
  readonly sessions: SessionStore;
  readonly sent: Sent[];
  place(epoch?: number): SessionTarget;
  /** Answers the methods that it is not null for. */
  answer: (request: Sent) => Promise<object> | object | null;
}

const OPEN_MS = 1_000;

const session: Session = {
  id: 'the session',
  fingerprint: 'p',
  binding: 'b',
  upstreamId: 'first',
  revision: '2025-11-25',
  lists: ['tools'],
  replica: null,
  issuedAt: 0,
};

async function fixture(changes: (store: SessionStore) => Partial<SessionStore> = () => ({})): Promise<Fixture> {
  const memory = memorySessions();
  const sessions = { ...memory, ...changes(memory) };
  await memory.insert({
    id: session.id,
    issuer: 'i',
    user_id: 'alice',
    target_id: 't',
    revision: session.revision,
    client: { capabilities: {}, clientInfo: { name: 'c', version: '1' } },
    holder: null,
    created_at: 0,
    seen_at: 0,
  });
  const sent: Sent[] = [];
  let opened = 0;
  const answerOf = (body: object, sessionId: string | null) => ({
    status: 200,
    sessionId,
    held: false,
    retryAfter: null,
    discard: () => undefined,
    type: 'json' as const,
    read: async () => Buffer.from(JSON.stringify(body)),
  });
  const made: Omit<Fixture, 'links'> = {
    sessions,
    sent,
    answer: () => null,
    place: (epoch = 0) => ({
      session,
      target: routed('t', 'http://t.test/mcp'),
      access: { credentials: noCredentials, scope: null, binding: 'b', user: 'alice' },
      admission: {
        principal: { sub: 'alice' },
        snapshot: {
          sessions: { ended: new Set(), epochOf: () => epoch },
          engine: {
            estimate: () => 0,
            decideMany: (_p: unknown, _t: unknown, objects: unknown[]) => objects.map(() => ({ effect: 'allow' })),
          },
        },
      } as unknown as Admission,
    }),
  };
  const upstream: Upstream = {
    async send(request) {
      const { id, method = request.method } = request.body === undefined ? {} : JSON.parse(request.body);
      const entry = { ...request, rpc: method as string };
      sent.push(entry);
      const own = await made.answer(entry);
      if (own !== null) return own as never;
      const result =
        method === 'initialize'
          ? { protocolVersion: '2025-11-25', capabilities: { tools: {} }, serverInfo: { name: 's', version: '1' } }
          : {};
      return answerOf({ jsonrpc: '2.0', id, result }, method === 'initialize' ? `up-${++opened}` : null);
    },
    close: async () => undefined,
  };
  const links = createUpstreamSessions({
    upstream,
    sessions,
    seal: createSeal([Buffer.alloc(32, 7)]),
    limits: { ...DEFAULT_LIMITS, openMs: OPEN_MS },
    health: createHealth(() => 0),
    pace: createPace(DEFAULT_LIMITS, MONOTONIC),
    now: () => 0,
    log: createLog('silent'),
  });
  return Object.assign(made, { links });
}

/** Keeps the process of the test alive: the gateway's own timers do not. */
function staysAlive(t: ExecutionContext): void {
  const timer = setInterval(() => undefined, 1_000);
  t.teardown(() => clearInterval(timer));
}

const aborted = ({ signal }: UpstreamRequest): Promise<object> =>
  new Promise((resolve) => signal?.addEventListener('abort', () => resolve({ fault: 'aborted' }), { once: true }));

test.serial('a target that opens a session and then hangs delays its requests for a limited time', async (t) => {
  staysAlive(t);
  const f = await fixture();
  for (let n = 0; n < 50; n++) await f.sessions.set(session.id, 'id-of-t', { key: `k${n}`, value: `file:///${n}` }, n);
  f.answer = (sent) => (sent.rpc === 'resources/subscribe' ? aborted(sent) : null);
  const began = performance.now();
  t.deepEqual(await f.links.current(f.place(1)), { upstreamId: 'up-1', revision: '2025-11-25' });
  t.true(performance.now() - began < 10 * OPEN_MS);
  f.answer = aborted;
  const failed = await f.links.current(f.place(2));
  t.is('fault' in failed && failed.fault, 'timeout');
});

test.serial('a database that fails or hangs is a fault in limited time, and the next request tries again', async (t) => {
  staysAlive(t);
  let state: 'fails' | 'hangs' | 'works' = 'fails';
  const f = await fixture((store) => ({
    upstream(id, cause) {
      if (state === 'fails') return Promise.reject(new Error('the database is down'));
      return state === 'hangs' ? new Promise(() => undefined) : store.upstream(id, cause);
    },
  }));
  const first = await f.links.current(f.place(1));
  t.true(isUpstreamSessionFailure(first));
  state = 'hangs';
  const began = performance.now();
  t.true(isUpstreamSessionFailure(await f.links.replace(f.place(), session)));
  t.true(performance.now() - began < 6 * OPEN_MS);
  state = 'works';
  t.deepEqual(await f.links.current(f.place(1)), { upstreamId: 'up-1', revision: '2025-11-25' });
});

test.serial('an upstream session that was opened and cannot be stored is ended at the target', async (t) => {
  const f = await fixture(() => ({ insertUpstream: () => Promise.reject(new Error('the database is down')) }));
  t.true(isUpstreamSessionFailure(await f.links.current(f.place(1))));
  const last = f.sent.at(-1);
  t.deepEqual([last?.rpc, last?.session?.upstreamId], ['DELETE', 'up-1']);
});

test.serial('a session that ends while its upstream session is reopened leaves nothing behind', async (t) => {
  const f = await fixture();
  f.answer = async ({ rpc }) => {
    if (rpc === 'initialize') await f.sessions.end(session.id, 'client', 0);
    return null;
  };
  t.deepEqual(await f.links.current(f.place(1)), { ended: true });
  await until('the half is ended', () => f.sent.at(-1)?.rpc === 'DELETE');
  t.deepEqual(await f.links.current(f.place(1)), { ended: true });
});

for (const join of ['current', 'joined'] as const) {
  test.serial(`a request does not fail because another one lost its access while it opened the session (${join})`, async (t) => {
    staysAlive(t);
    const f = await fixture();
    let isAllowed = true;
    f.answer = async ({ rpc }) => {
      if (rpc === 'initialize') isAllowed = false;
      return null;
    };
    const place = f.place(1);
    const opener = f.links[join]({ ...place, access: { ...place.access, stillAllowed: () => isAllowed } });
    const others = [f.links[join](place), f.links[join](place)];
    t.deepEqual(await opener, { fault: 'changed' });
    t.deepEqual(await Promise.all(others), Array(2).fill({ upstreamId: 'up-2', revision: '2025-11-25' }));
    t.is(f.sent.filter(({ rpc }) => rpc === 'initialize').length, 2);
  });
}

test.serial('a request opens the session itself after two others lost their access while they opened it', async (t) => {
  staysAlive(t);
  const f = await fixture();
  let opens = 0;
  f.answer = async ({ rpc }) => {
    if (rpc === 'initialize') opens++;
    return null;
  };
  const place = f.place(1);
  const endsWith = (initialize: number): SessionTarget => ({
    ...place,
    access: { ...place.access, stillAllowed: () => opens < initialize },
  });
  const lost = [f.links.current(endsWith(1)), f.links.current(endsWith(2))];
  const others = [f.links.current(endsWith(9)), f.links.current(endsWith(9))];
  t.deepEqual(await Promise.all(lost), Array(2).fill({ fault: 'changed' }));
  t.deepEqual(await Promise.all(others), Array(2).fill({ upstreamId: 'up-3', revision: '2025-11-25' }));
  t.is(opens, 3);
});

test.serial('an upstream session is used only with the binding that it was opened with', async (t) => {
  const f = await fixture();
  t.is(f.links.open(f.place(1)), null);
  const link = await f.links.current(f.place(1));
  t.deepEqual(f.links.open(f.place(1)), link as never);
  t.is(f.links.open(f.place(2)), null, 'recycled');
  const { access } = f.place();
  t.is(f.links.open({ ...f.place(1), access: { ...access, binding: 'other credentials' } }), null);
});

test.serial('what a target announces is remembered until initialize is answered, unless it is very large', async (t) => {
  const f = await fixture();
  const large = Object.fromEntries(Array.from({ length: 2_000 }, (_, n) => [`capability-${n}`, {}]));
  f.links.hold(session);
  await f.links.current(f.place(1));
  t.deepEqual([...f.links.takeHellos(session)], [['id-of-t', { capabilities: { tools: {} } }]]);
  t.is(f.links.takeHellos(session).size, 0);
  await f.links.current(f.place(3));
  t.is(f.links.takeHellos(session).size, 0, 'the client has its answer');
  const initialize = (body: object) => ({
    status: 200,
    sessionId: 'up-9',
    held: false,
    retryAfter: null,
    discard: () => undefined,
    type: 'json',
    read: async () => Buffer.from(JSON.stringify(body)),
  });
  f.answer = ({ rpc, body }) =>
    rpc === 'initialize'
      ? initialize({ id: JSON.parse(body ?? '').id, result: { protocolVersion: '2025-11-25', capabilities: large } })
      : null;
  f.links.hold(session);
  await f.links.current(f.place(2));
  t.is(f.links.takeHellos(session).size, 0);
  t.true(f.links.hasOpened(session, 'id-of-t'));
});

test.serial('a merged stream reads from its sources as fast as its reader, and ends them when the reader leaves', async (t) => {
  const merged = createMerge<number>();
  let made = 0;
  let finished = 0;
  async function* source(): AsyncGenerator<number> {
    try {
      for (;;) yield ++made;
    } finally {
      finished++;
    }
  }
  const added = [merged.add(source()), merged.add(source())];
  t.is((await merged.items.next()).value, 1);
  await new Promise((resolve) => setImmediate(resolve));
  t.true(made <= 3, 'no source runs ahead of the reader');
  await merged.items.return(undefined);
  await Promise.all(added);
  t.is(finished, 2);
  merged.push(7, 'late');
  t.true((await merged.items.next()).done);
});

test.serial('a notification that a slow reader has not read yet is not queued again', async (t) => {
  const merged = createMerge<string>();
  for (let n = 0; n < 1_000; n++) for (const kind of ['tools', 'prompts']) merged.push(kind, kind);
  merged.end();
  merged.push('resources', 'resources');
  const heard: string[] = [];
  for await (const item of merged.items) heard.push(item);
  t.deepEqual(heard, ['tools', 'prompts']);
});

test.serial('a source that fails does not end the other sources', async (t) => {
  const merged = createMerge<number>();
  const failing = merged.add(
    (async function* () {
      yield 1;
      throw new Error('broken off');
    })(),
  );
  t.is((await merged.items.next()).value, 1);
  const next = merged.items.next();
  await failing;
  merged.push(2, 'two');
  t.is((await next).value, 2);
});

test.serial('a change without a listener is delivered to the first listener', (t) => {
  const [first, opened, admission] = [{}, {}, {}] as [Admission, Admission, Admission];
  const changes = createAdmissionChanges(first);
  const told: Admission[] = [];
  t.is(changes.heard(), first);
  changes.emit(admission);
  changes.begin(opened);
  t.is(changes.heard(), opened, 'the stream does not know of the change yet');
  const leave = changes.listen((state) => void told.push(state));
  t.deepEqual(told, [admission]);
  t.is(changes.heard(), admission);
  changes.emit(admission);
  leave();
  changes.emit(admission);
  t.is(told.length, 2);
});

test.serial('a stream is checked again when its own caller has changed, and not when other users have', async (t) => {
  const parts = { engine: {}, targets: new Map(), sessions: {} };
  const groups: string[] = [];
  let admission = { snapshot: { sequence: 1, ...parts }, principal: { role: 'user', groups } } as unknown as Admission;
  let admitted = 0;
  const watch = createRevalidation(
    async () => {
      admitted++;
      return admission;
    },
    1,
    Date.now,
  );
  t.teardown(() => watch.stop());
  let examined = 0;
  watch.add({
    claims: { exp: null } as never,
    mayGoOn: () => {
      examined++;
      return true;
    },
    end: () => undefined,
  });
  const after = async (now: object, who: object = {}): Promise<number> => {
    const { snapshot, principal } = admission;
    admission = { snapshot: { ...snapshot, ...now }, principal: { ...principal, ...who } } as Admission;
    const before = admitted;
    await until('the stream was checked twice', () => admitted >= before + 2);
    const found = examined;
    examined = 0;
    return found;
  };
  t.is(await after({}), 1);
  t.is(await after({ sequence: 2 }), 0);
  t.is(await after({ engine: {} }), 1);
  t.is(await after({ targets: new Map() }), 1);
  t.is(await after({ sessions: {} }), 1);
  t.is(await after({}, { role: 'admin' }), 1);
  t.is(await after({}, { groups: ['red'] }), 1);
  t.is(await after({ sequence: 3 }), 0);
});

test.serial('a stream ends if the check of its right to stay open fails', async (t) => {
  const snapshot = {} as Admission['snapshot'];
  const watch = createRevalidation(async () => ({ snapshot, principal: {} }) as Admission, 5, Date.now);
  t.teardown(() => watch.stop());
  const claims = { exp: null } as never;
  const ended = new Set<string>();
  const add = (name: string, rest: { mayGoOn: (() => boolean) | null; changed?: () => void }) =>
    watch.add({ claims, ...rest, end: () => void ended.add(name) });
  const broken = (): never => {
    throw new Error('a fault of the gateway');
  };
  add('cannot be decided', { mayGoOn: broken });
  add('cannot be told', { mayGoOn: () => true, changed: broken });
  add('may not', { mayGoOn: () => false });
  add('may', { mayGoOn: () => true });
  add('a call', { mayGoOn: null });
  await until('it is seen', () => ended.size >= 3);
  t.deepEqual([...ended].sort(), ['cannot be decided', 'cannot be told', 'may not']);
});

test.serial('a stream ends when its token expires, and a call in flight continues', async (t) => {
  let now = 1_000_000;
  let admitted = 0;
  const snapshot = {} as Admission['snapshot'];
  const watch = createRevalidation(
    async () => {
      admitted++;
      return { snapshot, principal: {} } as Admission;
    },
    1,
    () => now,
  );
  t.teardown(() => watch.stop());
  const ended: string[] = [];
  const add = (name: string, exp: number | null, mayGoOn: (() => boolean) | null) =>
    watch.add({ claims: { exp } as never, mayGoOn, end: () => void ended.push(name) });
  const leave = add('a stream', 1_000, () => true);
  add('a stream of a token that never expires', null, () => true);
  add('a call', 1_000, null);
  await until('it has looked', () => admitted >= 3);
  t.deepEqual(ended, []);
  now += 5_000;
  await until('the end', () => ended.length > 0);
  leave();
  const before = admitted;
  await until('the stream was checked twice', () => admitted >= before + 4);
  t.deepEqual([...new Set(ended)], ['a stream']);
});
