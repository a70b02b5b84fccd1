import test, { type ExecutionContext } from 'ava';
import type { Identity } from '../../src/auth/admission.ts';
import type { TokenClaims } from '../../src/auth/principal.ts';
import type { Changes, Position } from '../../src/db/changes.ts';
import type { Connection, Database } from '../../src/db/database.ts';
import { createCurrent } from '../../src/decision/current.ts';
import type { Engine } from '../../src/decision/decision.ts';
import { AppError } from '../../src/errors.ts';

const claims: TokenClaims = {
  iss: 'portcullis',
  sub: 'u',
  email: 'u@x',
  role: 'user',
  groups: [],
  jti: 't',
  kid: 'k',
  exp: null,
};
const identity = (role: string): Identity => ({
  token: { id: 't', user_id: 'u', kind: 'api', kid: 'k', revoked_at: null },
  user: { id: 'u', email: 'u@x', role, groups: [], enabled: true },
});

/** A database of which only the position, the identity and the time that things take matter. */
function world({ boundMs = 0, gateTimeoutMs = 30_000 } = {}) {
  const w = {
    position: { sequence: 1, nonce: 'a', revision: 1 } as Position,
    history: new Map<number, string>([[1, 'a']]),
    identity: identity('user'),
    /** Whether the position is known without a read. */
    known: false,
    reads: 0,
    builds: [] as number[],
    readGate: null as Promise<void> | null,
    buildGate: null as Promise<void> | null,
    failReads: false,
    move(policies: boolean) {
      w.position = {
        sequence: w.position.sequence + 1,
        nonce: `n${w.position.sequence + 1}`,
        revision: w.position.revision + (policies ? 1 : 0),
      };
      w.history.set(w.position.sequence, w.position.nonce);
    },
  };
  // Stands for knex: `counter` gives the position, `changes` the nonce of a sequence.
  const knex = ((table: string) => ({
    where: (_: string, sequence: number) => ({
      first: async () =>
        table === 'counter' ? w.position : w.history.has(sequence) ? { nonce: w.history.get(sequence) } : undefined,
    }),
  })) as unknown as Connection;
  const database = {
    kind: 'mysql',
    knex,
    snapshot: (work: (db: Connection) => Promise<unknown>) => work(knex),
  } as unknown as Database;
  const changes = {
    position: async () => {
      w.reads++;
      if (w.failReads) throw new Error('connection refused');
      const at = w.position;
      await w.readGate;
      return at;
    },
    known: () => (w.known ? w.position : null),
  } as unknown as Changes;
  const current = createCurrent({
    database,
    changes,
    policies: async () => [],
    targets: async () => new Map(),
    sessions: async () => ({ ended: new Set<string>(), epochOf: () => 0 }),
    identity: async () => w.identity,
    build: async (_, revision) => {
      w.builds.push(revision);
      await w.buildGate;
      return { revision } as unknown as Engine;
    },
    gateTimeoutMs,
    boundMs,
  });
  return { w, current };
}

function latch(): { open(): void; promise: Promise<void> } {
  let open = (): void => {};
  const promise = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { open, promise };
}

const roleOf = async (t: ExecutionContext, current: ReturnType<typeof world>['current']): Promise<string> => {
  const admitted = await current.admit(claims);
  if ('refused' in admitted) return t.fail(admitted.detail) as never;
  return admitted.principal.role;
};

test('a change that was made before the request is in the state that decides it', async (t) => {
  const { w, current } = world();
  t.is(await roleOf(t, current), 'user');
  w.identity = identity('admin');
  w.move(false);
  t.is(await roleOf(t, current), 'admin');
});

test('where the position is known, nothing is read for a request, and a change is in the state that decides the next one', async (t) => {
  const { w, current } = world();
  w.known = true;
  t.is(await roleOf(t, current), 'user');
  const { reads } = w;
  t.is(await roleOf(t, current), 'user');
  t.is(w.reads, reads);
  w.identity = identity('admin');
  w.move(false);
  t.is(await roleOf(t, current), 'admin');
});

test('a change of users alone does not rebuild the engine; a change of policies does', async (t) => {
  const { w, current } = world();
  await current.fresh();
  w.move(false);
  t.is((await current.fresh()).sequence, 2);
  t.deepEqual(w.builds, [1]);
  w.move(true);
  t.is((await current.fresh()).engine.revision, 2);
  t.deepEqual(w.builds, [1, 2]);
});

/** A read begins with the turn after its first caller. */
async function turns(): Promise<void> {
  for (let i = 0; i < 3; i++) await new Promise(setImmediate);
}

test('requests that wait at one moment share one read; one that comes during a read waits for the next', async (t) => {
  const { w, current } = world();
  await current.fresh();
  const before = w.reads;
  const held = latch();
  w.readGate = held.promise;
  const early = Array.from({ length: 10 }, () => current.fresh());
  await turns();
  t.is(w.reads - before, 1);
  w.move(true);
  const late = Array.from({ length: 10 }, () => current.fresh());
  await turns();
  t.is(w.reads - before, 1, 'the second read has not begun');
  held.open();
  w.readGate = null;
  await Promise.all(early);
  for (const snapshot of await Promise.all(late)) t.is(snapshot.sequence, 2);
  t.is(w.reads - before, 2);
});

test('while a newer set is being built, requests that saw it wait and none is decided with the older', async (t) => {
  const { w, current } = world();
  await current.fresh();
  const held = latch();
  w.buildGate = held.promise;
  w.move(true);
  let settled = false;
  const waiting = current.fresh().finally(() => {
    settled = true;
  });
  await new Promise((resolve) => setTimeout(resolve, 50));
  t.false(settled);
  held.open();
  t.is((await waiting).engine.revision, 2);
});

test('a build that takes too long is a refusal, and the next request goes on with it', async (t) => {
  const { w, current } = world({ gateTimeoutMs: 1_000 });
  await current.fresh();
  const held = latch();
  w.buildGate = held.promise;
  w.move(true);
  const error = await t.throwsAsync(() => current.fresh(), { instanceOf: AppError });
  t.is(error.code, 'unavailable');
  held.open();
  t.is((await current.fresh()).engine.revision, 2);
});

test('a counter that cannot be read is a refusal, never the state from before; then it recovers', async (t) => {
  const { w, current } = world();
  await current.fresh();
  w.failReads = true;
  const error = await t.throwsAsync(() => current.admit(claims), { instanceOf: AppError });
  t.is(error.code, 'unavailable');
  w.failReads = false;
  t.is(await roleOf(t, current), 'user');
});

test('a counter that hangs is a refusal in bounded time', async (t) => {
  const { w, current } = world({ gateTimeoutMs: 1_000 });
  await current.fresh();
  w.readGate = new Promise(() => {});
  const started = performance.now();
  await t.throwsAsync(() => current.fresh(), { instanceOf: AppError });
  t.true(performance.now() - started < 20_000);
  w.readGate = null;
  await current.fresh();
  t.pass();
});

test('a restored database (lower counter, or the same number with another history) makes everything load again', async (t) => {
  const { w, current } = world();
  w.move(true);
  w.move(true);
  await current.fresh();
  t.deepEqual(w.builds, [3]);
  w.position = { sequence: 1, nonce: 'a', revision: 3 };
  w.history = new Map([[1, 'a']]);
  t.is((await current.fresh()).sequence, 1);
  t.deepEqual(w.builds, [3, 3], 'the same revision of another history is not the same set');
  w.position = { sequence: 1, nonce: 'other', revision: 3 };
  w.history = new Map([[1, 'other']]);
  await current.fresh();
  t.is(w.builds.length, 3);
});

test('an identity that was looked up while the database moved on is not used', async (t) => {
  const { w, current } = world();
  await current.fresh();
  const held = latch();
  w.readGate = held.promise;
  const admitted = current.admit(claims);
  await new Promise(setImmediate);
  w.identity = identity('demoted');
  w.move(false);
  held.open();
  w.readGate = null;
  const result = await admitted;
  t.true('principal' in result && result.principal.role === 'demoted' && result.snapshot.sequence === 2);
});

test('what does not tie the claims to a live record is a refusal', async (t) => {
  const { w, current } = world();
  const refused = async (change: (i: Identity) => Identity, over: Partial<TokenClaims> = {}) => {
    w.identity = change(identity('user'));
    w.move(false);
    const result = await current.admit({ ...claims, ...over });
    return 'refused' in result;
  };
  t.false(await refused((i) => i));
  t.true(await refused((i) => ({ ...i, token: { ...i.token, revoked_at: 1 } })));
  t.true(await refused((i) => ({ ...i, token: { ...i.token, user_id: 'other' } })));
  t.true(await refused((i) => ({ ...i, token: { ...i.token, kid: 'older' } })));
  t.true(await refused((i) => ({ ...i, token: { ...i.token, kind: 'login' } })), 'a login token without expiry');
  t.true(await refused((i) => ({ ...i, user: { ...i.user, enabled: false } })));
  t.true(await refused((i) => i, { sub: 'other' }));
});

test('with a bound one read serves requests for so long, and no longer, and never an identity of another moment', async (t) => {
  const { w, current } = world({ boundMs: 2_000 });
  await current.fresh();
  const reads = w.reads;
  for (let i = 0; i < 20; i++) t.true('principal' in (await current.admit(claims)));
  t.is(w.reads, reads, 'no read within the bound');
  w.identity = identity('demoted');
  w.move(true);
  // A caller that is not known yet is looked up, and the database has moved on: only a new state can tell who that is.
  const other = await current.admit({ ...claims, jti: 'another token' });
  t.true('principal' in other && other.principal.role === 'demoted' && other.snapshot.sequence === 2);
  await current.admit(claims);
  w.move(true);
  const old = await current.admit(claims);
  t.is('snapshot' in old && old.snapshot.sequence, 2);
  await new Promise((resolve) => setTimeout(resolve, 2_050));
  const fresh = await current.admit(claims);
  t.is('snapshot' in fresh && fresh.snapshot.sequence, 3);
  t.is((await current.fresh()).sequence, 3);
});
