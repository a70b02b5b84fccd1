import test, { type ExecutionContext } from 'ava';
import type { TokenClaims } from '../../src/auth/principal.ts';
import { AppError } from '../../src/base/errors.ts';
import type { Changes, Position } from '../../src/db/changes.ts';
import type { Connection, Database } from '../../src/db/database.ts';
import type { Engine } from '../../src/engine/decision.ts';
import type { Identity } from '../../src/state/admission.ts';
import { createCurrent } from '../../src/state/live-state.ts';
import type { RoutedTarget } from '../../src/targets/target.ts';
import { localUser } from '../../src/users/user-store.ts';

const claims: TokenClaims = {
  iss: 'portcullis',
  sub: 'u',
  jti: 't',
  kid: 'k',
  exp: null,
  provider: null,
  resource: null,
};
const identity = (role: string): OfToken => ({
  token: { id: 't', user_id: 'u', kind: 'api', kid: 'k', expires_at: null, limits: null, revoked_at: null },
  user: localUser({ id: 'u', email: 'u@x', role, groups: [] }, 1),
});

type OfToken = Identity & { readonly token: NonNullable<Identity['token']> };

/** A database of which only the position, the identity and the time that things take matter. */
function world({ boundMs = 0, gateTimeoutMs = 30_000 } = {}) {
  const w = {
    position: { sequence: 1, nonce: 'a', revision: 1 } as Position,
    history: new Map<number, string>([[1, 'a']]),
    /** The changed object by sequence. If there is none, the change is of the user `u`. */
    objects: new Map<number, { object_type: string; object_id: string }>(),
    identity: identity('user'),
    /** Identities of users other than `u`, by token. */
    others: new Map<string, Identity>(),
    /** The targets by id. */
    targets: new Map<string, RoutedTarget>(),
    /** The parts that each load has read, except the position. */
    read: [] as string[],
    identityGate: null as Promise<void> | null,
    failLoads: false,
    /** Whether the position is known without a read. */
    known: false,
    /** Whether what has changed is known, too. */
    followed: false,
    reads: 0,
    builds: [] as number[],
    readGate: null as Promise<void> | null,
    buildGate: null as Promise<void> | null,
    failReads: false,
    /** How far the clock is ahead, in milliseconds. */
    passedMs: 0,
    /** A change of policies, of the user, or of something else. */
    move(policies: boolean, object = { object_type: policies ? 'policy' : 'user', object_id: 'u' }) {
      w.position = {
        sequence: w.position.sequence + 1,
        nonce: `n${w.position.sequence + 1}`,
        revision: w.position.revision + (policies ? 1 : 0),
      };
      w.history.set(w.position.sequence, w.position.nonce);
      w.objects.set(w.position.sequence, object);
    },
  };
  // This replaces knex: `counter` returns the position, `changes` the rows of the feed.
  const feed = ([from, to]: readonly [number, number]) =>
    [...w.history].flatMap(([sequence, nonce]) => {
      const object = w.objects.get(sequence) ?? { object_type: 'user', object_id: 'u' };
      return sequence < from || sequence > to ? [] : [{ sequence, nonce, ...object }];
    });
  const knex = (() => ({
    where: () => ({ first: async () => w.position }),
    whereBetween: (_: string, range: readonly [number, number]) => ({ orderBy: () => ({ select: async () => feed(range) }) }),
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
    since: ({ sequence }: Position) => (w.followed ? feed([sequence + 1, w.position.sequence]) : null),
  } as unknown as Changes;
  const current = createCurrent({
    database,
    changes,
    policies: async () => {
      w.read.push('policies');
      return [];
    },
    targets: async (_, ids) => {
      w.read.push(ids === null ? 'all targets' : `targets ${ids.join()}`);
      if (w.failLoads) throw new Error('connection lost');
      const found = [...w.targets.values()].filter(({ id }) => ids === null || ids.includes(id));
      return new Map(found.map((target) => [target.name, target]));
    },
    sessions: async () => {
      w.read.push('sessions');
      return { ended: new Set<string>(), epochOf: () => 0 };
    },
    rights: async () => [],
    clock: () => Date.now(),
    providers: async () => {
      w.read.push('providers');
      return new Map();
    },
    identities: async (_, ids) => {
      w.read.push(`tokens ${ids.join()}`);
      if (w.failLoads) throw new Error('connection lost');
      const found = ids.map((id) => w.others.get(id) ?? { ...w.identity, token: { ...w.identity.token, id } });
      await w.identityGate;
      return found;
    },
    build: async (_, revision) => {
      w.builds.push(revision);
      await w.buildGate;
      return { revision } as unknown as Engine;
    },
    gateTimeoutMs,
    boundMs,
    now: () => performance.now() + w.passedMs,
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

test('a request is decided with every change made before it', async (t) => {
  const { w, current } = world();
  t.is(await roleOf(t, current), 'user');
  w.identity = identity('admin');
  w.move(false);
  t.is(await roleOf(t, current), 'admin');
});

test('with a known position no request reads the counter, and a change decides the next request', async (t) => {
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

test('with known changes of users and tokens only their callers are read, and all others wait for nothing', async (t) => {
  const { w, current } = world();
  w.known = true;
  w.followed = true;
  t.is(await roleOf(t, current), 'user');
  w.move(false, { object_type: 'user', object_id: 'v' });
  w.move(false, { object_type: 'token', object_id: 'v1' });
  const told: (ReadonlySet<string> | null)[] = [];
  current.whenUsersChange((users) => told.push(users));
  t.deepEqual(await readFor(w, async () => t.false(current.admit(claims) instanceof Promise)), []);
  t.deepEqual(told, [new Set(['v'])]);
  t.is(current.sequence(), 3);
  w.identity = identity('admin');
  w.move(false);
  t.deepEqual(await readFor(w, async () => t.is(await roleOf(t, current), 'admin')), ['tokens t']);
  w.move(false, { object_type: 'session', object_id: 'v' });
  t.deepEqual(await readFor(w, () => Promise.resolve(current.admit(claims))), ['sessions']);
});

test('the state never goes back to that of a load which began before a known change', async (t) => {
  const { w, current } = world();
  w.known = true;
  w.followed = true;
  t.is(await roleOf(t, current), 'user');
  const { open, promise } = latch();
  w.identityGate = promise;
  const stranger = current.admit(claimsOf('v1', 'v'));
  w.others.set('v1', other('v1', 'v'));
  await new Promise((resolve) => setImmediate(resolve));
  w.move(false, { object_type: 'user', object_id: 'x' });
  const known = current.admit(claims);
  open();
  await Promise.all([stranger, known]);
  t.is(current.sequence(), 2);
});

test('a change of users does not rebuild the engine; a change of policies does', async (t) => {
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

test('requests that wait together share one read, and a request during a read waits for the next', async (t) => {
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

test('requests that saw a newer set wait for its engine, and none is decided with the older set', async (t) => {
  const { w, current } = world();
  await current.fresh();
  const held = latch();
  w.buildGate = held.promise;
  w.move(true);
  let settled = false;
  const waiting = current.fresh().finally(() => {
    settled = true;
  });
  await turns();
  t.false(settled);
  held.open();
  t.is((await waiting).engine.revision, 2);
});

test('a request is refused if a build takes too long, and the next request uses that build', async (t) => {
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

test('whoever may wait longer than a request gets the state of a slow build', async (t) => {
  const { w, current } = world({ gateTimeoutMs: 100 });
  const held = latch();
  w.buildGate = held.promise;
  const patient = current.fresh(60_000);
  await t.throwsAsync(() => current.fresh(), { instanceOf: AppError });
  held.open();
  t.is((await patient).engine.revision, 1);
  t.deepEqual(w.builds, [1]);
});

test('an unreadable counter refuses requests instead of using the older state, and recovers', async (t) => {
  const { w, current } = world();
  await current.fresh();
  w.failReads = true;
  const error = await t.throwsAsync(async () => current.admit(claims), { instanceOf: AppError });
  t.is(error.code, 'unavailable');
  w.failReads = false;
  t.is(await roleOf(t, current), 'user');
});

test('a hanging counter refuses requests within the time limit', async (t) => {
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

test('a restored database (lower counter, or equal number with another history) is loaded completely', async (t) => {
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

test('an identity that was read while the database changed is not used', async (t) => {
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

test('claims without a matching live record are refused', async (t) => {
  const { w, current } = world();
  const refused = async (change: (i: OfToken) => OfToken, over: Partial<TokenClaims> = {}) => {
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

test('a bounded freshness reuses one read for exactly that time, and never an identity of another moment', async (t) => {
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
  w.passedMs += 2_000;
  const fresh = await current.admit(claims);
  t.is('snapshot' in fresh && fresh.snapshot.sequence, 3);
  t.is((await current.fresh()).sequence, 3);
});

/** The parts that the next request makes the replica read. */
async function readFor(w: ReturnType<typeof world>['w'], request: () => Promise<unknown>): Promise<string[]> {
  w.read.length = 0;
  await request();
  return w.read;
}

const other = (token: string, user: string): Identity => ({
  token: { id: token, user_id: user, kind: 'api', kid: 'k', expires_at: null, limits: null, revoked_at: null },
  user: localUser({ id: user, email: `${user}@x`, role: 'user', groups: [] }, 1),
});
const claimsOf = (jti: string, sub: string): TokenClaims => ({ ...claims, jti, sub });

test('a change of a user or token makes a replica forget only that identity', async (t) => {
  const { w, current } = world();
  for (const [token, user] of [
    ['v1', 'v'],
    ['v2', 'v'],
    ['x1', 'x'],
  ] as const)
    w.others.set(token, other(token, user));
  const everybody = async (): Promise<void> => {
    for (const [token, user] of [
      ['t', 'u'],
      ['v1', 'v'],
      ['v2', 'v'],
      ['x1', 'x'],
    ] as const) {
      t.true('principal' in (await current.admit(claimsOf(token, user))), token);
    }
  };
  t.deepEqual(await readFor(w, everybody), [
    'all targets',
    'sessions',
    'providers',
    'policies',
    'tokens t',
    'tokens v1',
    'tokens v2',
    'tokens x1',
  ]);
  t.deepEqual(await readFor(w, everybody), []);
  w.move(false, { object_type: 'user', object_id: 'v' });
  t.deepEqual(await readFor(w, everybody), ['tokens v1', 'tokens v2']);
  w.move(false, { object_type: 'token', object_id: 'v2' });
  t.deepEqual(await readFor(w, everybody), ['tokens v2']);
  w.move(false, { object_type: 'key', object_id: 'k' });
  w.move(false, { object_type: 'draft', object_id: 'd' });
  t.deepEqual(await readFor(w, everybody), []);
  t.is((await current.fresh()).sequence, 5);
});

test('a change of a target makes a replica read only that target again, and older snapshots stay unchanged', async (t) => {
  const { w, current } = world();
  const target = (id: string, name: string): RoutedTarget => ({ id, name }) as RoutedTarget;
  w.targets = new Map([
    ['1', target('1', 'one')],
    ['2', target('2', 'two')],
    ['3', target('3', 'three')],
  ]);
  const before = await current.fresh();
  const names = async () => [...(await current.fresh()).targets].map(([name, { id }]) => `${id} ${name}`).join();
  t.is(await names(), '1 one,2 two,3 three');

  // Two targets exchange their names, one target is added, and one is removed.
  w.targets = new Map([
    ['0', target('0', 'zero')],
    ['1', target('1', 'two')],
    ['2', target('2', 'one')],
  ]);
  for (const object_id of ['1', '2', '3']) w.move(false, { object_type: 'target', object_id });
  w.move(false, { object_type: 'credential', object_id: '0' });
  t.deepEqual(await readFor(w, names), ['targets 1,2,3,0']);
  t.is(await names(), '0 zero,1 two,2 one');
  t.deepEqual([...before.targets.keys()], ['one', 'two', 'three']);
  const admission = await current.admit(claims);
  t.is('snapshot' in admission ? admission.snapshot.targets.get('two')?.id : null, '1');
});

test('a replica reads everything again and forgets all identities if the feed is incomplete', async (t) => {
  const { w, current } = world();
  const everything = ['all targets', 'sessions', 'providers', 'policies', 'tokens t'];
  const afterwards = () => readFor(w, async () => current.admit(claims));
  t.deepEqual(await afterwards(), everything);
  const user = { object_type: 'user', object_id: 'somebody else' };

  w.move(false, user);
  w.move(false, user);
  w.history.delete(w.position.sequence - 1);
  t.deepEqual(await afterwards(), everything, 'a row is gone');

  w.history.delete(w.position.sequence);
  w.move(false, user);
  t.deepEqual(await afterwards(), everything, 'its own row is gone');

  w.move(false, { object_type: 'what a newer version has', object_id: 'x' });
  t.deepEqual(await afterwards(), everything, 'an unknown type');

  w.position = { ...w.position, nonce: 'restored' };
  t.deepEqual(await afterwards(), everything, 'the same number in another history');

  w.history.set(w.position.sequence, 'another one yet');
  w.move(false, user);
  t.deepEqual(await afterwards(), everything, 'a higher number in another history');

  w.position = { ...w.position, sequence: w.position.sequence - 1, nonce: 'earlier' };
  t.deepEqual(await afterwards(), everything, 'a lower number');

  for (let i = 0; i < 1_001; i++) w.move(false, user);
  t.deepEqual(await afterwards(), everything, 'too many changes');
  for (let i = 0; i < 1_000; i++) w.move(false, user);
  t.deepEqual(await afterwards(), [], 'many changes in one go');
});

test('a listener hears of changed users before a request is admitted, and of all users if commits may be lost', async (t) => {
  const { w, current } = world();
  const heard: (readonly string[] | null)[] = [];
  current.whenUsersChange((users) => heard.push(users === null ? null : [...users].sort()));
  const afterwards = async () => {
    await current.admit(claims);
    return heard.splice(0);
  };
  t.deepEqual(await afterwards(), [null], 'the first state');
  t.deepEqual(await afterwards(), []);
  w.move(true);
  t.deepEqual(await afterwards(), [], 'a policy');
  w.move(false, { object_type: 'user', object_id: 'b' });
  w.move(false, { object_type: 'user', object_id: 'a' });
  t.deepEqual(await afterwards(), [['a', 'b']]);
  w.position = { ...w.position, sequence: w.position.sequence - 1, nonce: 'earlier' };
  t.deepEqual(await afterwards(), [null], 'a lower number: the database lost commits');
});

test('an identity that is read while its user changes is not remembered in its old form', async (t) => {
  const { w, current } = world();
  await current.fresh();
  const held = latch();
  w.identityGate = held.promise;
  const early = current.admit(claims);
  await turns();
  t.true(w.read.includes('tokens t'), 'it has been read, and waits');
  w.identity = identity('demoted');
  w.move(false);
  const late = current.admit(claims);
  await turns();
  w.identityGate = null;
  held.open();
  const [before, after] = [await early, await late];
  t.true(
    'principal' in before && before.snapshot.sequence === 1 && before.principal.role === 'user',
    'it came before the change',
  );
  t.true('principal' in after && after.snapshot.sequence === 2 && after.principal.role === 'demoted');
  t.is(await roleOf(t, current), 'demoted');
});

test('unknown callers that wait together are read together, each from the same state', async (t) => {
  const { w, current } = world();
  w.known = true;
  await current.fresh();
  w.read.length = 0;
  const held = latch();
  w.identityGate = held.promise;
  const first = current.admit(claimsOf('first', 'u'));
  await turns();
  const later = Array.from({ length: 50 }, (_, i) => current.admit(claimsOf(`t${i % 25}`, 'u')));
  await turns();
  t.deepEqual(w.read, ['tokens first']);
  held.open();
  t.true('principal' in (await first));
  for (const admitted of await Promise.all(later)) t.true('principal' in admitted);
  t.deepEqual(w.read, ['tokens first', `tokens ${Array.from({ length: 25 }, (_, i) => `t${i}`).join()}`]);
});

test('a failed load refuses the requests that wait for it, and loses no change', async (t) => {
  const { w, current } = world();
  t.is(await roleOf(t, current), 'user');
  const refused = async (token: string): Promise<void> => {
    const error = await t.throwsAsync(async () => current.admit(claimsOf(token, 'u')), { instanceOf: AppError });
    t.is(error.code, 'unavailable');
  };
  w.failLoads = true;
  await refused('a stranger');
  t.is(await roleOf(t, current), 'user', 'whoever is known need not wait for that');
  w.identity = identity('demoted');
  w.move(false);
  w.move(false, { object_type: 'target', object_id: '1' });
  await refused('t');
  w.failLoads = false;
  t.is(await roleOf(t, current), 'demoted');
});
