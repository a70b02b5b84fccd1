import test from 'ava';
import type { TokenClaims } from '../../src/auth/principal.ts';
import { type Changes, type ObjectType, type Position, samePosition } from '../../src/db/changes.ts';
import type { Connection, Database } from '../../src/db/database.ts';
import type { Engine } from '../../src/engine/decision.ts';
import type { Identity } from '../../src/state/admission.ts';
import { createCurrent } from '../../src/state/live-state.ts';
import type { RoutedTarget } from '../../src/targets/target.ts';
import { localUser } from '../../src/users/user-store.ts';
import { randomFrom } from '../engine/increments.ts';

/** Everything that a replica can read at one moment. */
interface Moment {
  readonly position: Position;
  readonly feed: readonly { sequence: number; nonce: string; object_type: string; object_id: string }[];
  readonly policies: number;
  readonly sessions: number;
  /** When each target was last changed, by id. A missing id means that the target does not exist. */
  readonly targets: ReadonlyMap<string, number>;
  readonly users: ReadonlyMap<string, { readonly at: number; readonly enabled: boolean }>;
  /** Whether each token is revoked, by id. */
  readonly tokens: ReadonlyMap<string, boolean>;
}

const USERS = ['u0', 'u1', 'u2'];
const TARGETS = ['a', 'b', 'c'];
const userOf = (token: string): string => `u${token.charAt(1)}`;
const TOKENS = USERS.flatMap((_, user) => [`t${user}x`, `t${user}y`]);
const claimsOf = (token: string): TokenClaims => ({
  iss: 'portcullis',
  sub: userOf(token),
  jti: token,
  kid: 'k',
  exp: null,
  provider: null,
  resource: null,
});

/** The correct answer at one moment. */
function expected(at: Moment, token: string): string {
  const user = at.users.get(userOf(token));
  if (user === undefined || !user.enabled || at.tokens.get(token) !== false) return 'refused';
  return JSON.stringify([`r${user.at}`, at.policies, at.sessions, [...at.targets].sort()]);
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** `known`: like on SQLite, where the process knows the position without a query, and mostly what has changed, too. */
async function schedule(seed: number, boundMs: number, known: boolean): Promise<{ answers: number; refused: number }> {
  const random = randomFrom(seed);
  const below = (n: number): number => Math.floor(random() * n);
  const pick = <T>(from: readonly T[]): T => from[below(from.length)] as T;
  const wait = async (): Promise<void> => {
    for (let turns = below(5); turns > 0; turns--) await turn();
  };
  let clock = 0;
  const start: Position = { sequence: 1, nonce: 'n', revision: 1 };
  const moments: { readonly moment: Moment; readonly since: number }[] = [];
  const put = (moment: Moment): void => {
    moments.push({ moment, since: performance.now() });
  };
  const now = (): Moment => moments.at(-1)?.moment as Moment;
  put({
    position: start,
    feed: [{ sequence: 1, nonce: 'n', object_type: 'key', object_id: 'k' }],
    policies: 0,
    sessions: 0,
    targets: new Map([['a', 0]]),
    users: new Map(USERS.map((id) => [id, { at: 0, enabled: true }])),
    tokens: new Map(TOKENS.slice(0, 4).map((id) => [id, false])),
  });

  /** Makes one transaction with one or more changes. */
  function change(): void {
    const before = now();
    const users = new Map(before.users);
    const tokens = new Map(before.tokens);
    const targets = new Map(before.targets);
    let { position, policies, sessions } = before;
    const feed = [...before.feed];
    for (let some = 1 + (random() < 0.2 ? below(4) : 0); some > 0; some--) {
      clock++;
      let object: [ObjectType | 'unheard-of', string];
      const user = pick(USERS);
      switch (below(9)) {
        case 0:
          policies = clock;
          object = ['policy', 'p'];
          break;
        case 1:
          sessions = clock;
          object = ['session', user];
          break;
        case 2: {
          const id = pick(TARGETS);
          if (!targets.delete(id) || random() < 0.6) targets.set(id, clock);
          object = ['target', id];
          break;
        }
        case 3: {
          const id = pick(TARGETS);
          if (targets.has(id)) targets.set(id, clock);
          object = ['credential', id];
          break;
        }
        case 4:
        case 5:
          if (!users.delete(user) || random() < 0.9) users.set(user, { at: clock, enabled: random() < 0.8 });
          object = ['user', user];
          break;
        case 6: {
          const id = pick(TOKENS);
          tokens.set(id, true);
          object = ['token', id];
          break;
        }
        case 7:
          // Tokens that end with a change of their user.
          for (const id of tokens.keys()) if (userOf(id) === user && random() < 0.5) tokens.set(id, true);
          object = ['user', user];
          break;
        default: {
          const id = pick(TARGETS);
          targets.set(id, clock);
          object = ['unheard-of', id];
        }
      }
      position = { sequence: position.sequence + 1, nonce: `n${clock}-${below(1e6)}`, revision: position.revision + 1 };
      feed.push({ sequence: position.sequence, nonce: position.nonce, object_type: object[0], object_id: object[1] });
    }
    put({ position, feed, policies, sessions, targets, users, tokens });
  }

  function disturb(): void {
    const at = now();
    const made = TOKENS.find((id) => !at.tokens.has(id));
    switch (below(4)) {
      case 0:
        // A token is made; the counter stays.
        if (made !== undefined) put({ ...at, tokens: new Map([...at.tokens, [made, false]]) });
        break;
      case 1: {
        // Old rows of the feed are removed; never the newest.
        const newest = at.feed.at(-1);
        put({ ...at, feed: at.feed.filter((row) => row === newest || row.object_type === 'policy' || random() < 0.5) });
        break;
      }
      case 2: {
        // A restore, then another history. Of what moves no counter, nothing is lost: such failovers are outside of the promise.
        if (random() < 0.7) break;
        const { position } = pick(moments).moment;
        put(moments.findLast(({ moment }) => samePosition(moment.position, position))?.moment ?? at);
        change();
        break;
      }
      default:
        change();
    }
  }

  const queryOf = (at: () => Moment): Connection =>
    (() => ({
      where: () => ({ first: () => wait().then(() => at().position) }),
      whereBetween: (_: string, [from, to]: readonly [number, number]) => ({
        orderBy: () => ({
          select: () => wait().then(() => at().feed.filter(({ sequence }) => sequence >= from && sequence <= to)),
        }),
      }),
    })) as unknown as Connection;
  const seen = new WeakMap<object, Moment>();
  const snapshotOf = (db: Connection): Moment => seen.get(db) as Moment;
  const fail = (): void => {
    if (random() < 0.05) throw new Error('connection lost');
  };
  const routed = (id: string, at: number): RoutedTarget => ({ id, name: id, at }) as unknown as RoutedTarget;
  const database = {
    kind: 'mysql',
    knex: queryOf(now),
    async snapshot<T>(work: (db: Connection) => Promise<T>): Promise<T> {
      await wait();
      fail();
      const at = now();
      const db = queryOf(() => at);
      seen.set(db, at);
      return work(db);
    },
  } as unknown as Database;
  const current = createCurrent({
    database,
    changes: {
      async position() {
        await wait();
        fail();
        const { position } = now();
        await wait();
        return position;
      },
      known: () => (known ? now().position : null),
      since(from: Position) {
        const { feed } = now();
        const first = feed.findIndex(({ sequence, nonce }) => samePosition({ sequence, nonce, revision: 0 }, from));
        const complete = first >= 0 && feed.slice(first).every(({ sequence }, index) => sequence === from.sequence + index);
        return complete && random() < 0.8 ? feed.slice(first + 1) : null;
      },
    } as unknown as Changes,
    policies: async (db) => {
      await wait();
      return [snapshotOf(db).policies] as never;
    },
    async targets(db, ids) {
      await wait();
      const found = [...snapshotOf(db).targets].filter(([id]) => ids === null || ids.includes(id));
      return new Map(found.map(([id, at]) => [id, routed(id, at)]));
    },
    sessions: async (db) => {
      await wait();
      return { at: snapshotOf(db).sessions } as never;
    },
    providers: async () => new Map(),
    async identities(db, tokens) {
      await wait();
      fail();
      const at = snapshotOf(db);
      const found: Identity[] = [];
      for (const id of tokens) {
        const [user, revoked] = [at.users.get(userOf(id)), at.tokens.get(id)];
        if (user === undefined || revoked === undefined) continue;
        found.push({
          token: {
            id,
            user_id: userOf(id),
            kind: 'api',
            kid: 'k',
            expires_at: null,
            limits: null,
            revoked_at: revoked ? 1 : null,
          },
          user: {
            ...localUser({ id: userOf(id), email: 'u@x', role: `r${user.at}`, groups: [] }, 1),
            enabled: user.enabled,
          },
        });
      }
      await wait();
      return found;
    },
    build: async (policies) => {
      await wait();
      fail();
      return { policies: policies[0] } as unknown as Engine;
    },
    gateTimeoutMs: 30_000,
    rights: async () => [],
    clock: () => Date.now(),
    boundMs,
    now: () => performance.now(),
  });

  let answers = 0;
  let refused = 0;
  async function request(): Promise<void> {
    const arrived = moments.length - 1;
    const arrivedAt = performance.now();
    const token = pick(TOKENS);
    const answer = await Promise.resolve(current.admit(claimsOf(token))).catch(() => null);
    if (answer === null) return;
    answers++;
    let said = 'refused';
    if ('refused' in answer) refused++;
    else {
      const { engine, sessions, targets } = answer.snapshot as unknown as {
        engine: { policies: number };
        sessions: { at: number };
        targets: Map<string, { at: number }>;
      };
      const shown = [...targets].map(([id, target]) => [id, target.at]).sort();
      said = JSON.stringify([answer.principal.role, engine.policies, sessions.at, shown]);
    }
    // A moment may serve that was the newest when the request arrived, so long before as is allowed, or later.
    const fitting = moments.some(({ moment }, index) => {
      const ended = moments[index + 1]?.since ?? Number.POSITIVE_INFINITY;
      return (index >= arrived || ended >= arrivedAt - boundMs) && expected(moment, token) === said;
    });
    if (!fitting) throw new Error(`seed ${seed}: ${token} was told ${said}, and is ${expected(now(), token)}`);
  }

  const pending: Promise<void>[] = [];
  for (let step = 0; step < 60; step++) {
    const what = random();
    if (what < 0.5) pending.push(request());
    else if (what < 0.65) change();
    else if (what < 0.75) disturb();
    else await wait();
  }
  await Promise.all(pending);
  return { answers, refused };
}

for (const [boundMs, known] of [
  [0, false],
  [1, false],
  [0, true],
] as const) {
  const how = known ? 'position known' : `bound ${boundMs} ms`;
  test(`no schedule of changes, removals, restores and faults gives a stale answer (${how})`, async (t) => {
    const runs = Number(process.env['PORTCULLIS_TEST_SCHEDULES'] ?? 300);
    let answers = 0;
    let refused = 0;
    for (let seed = 1; seed <= runs; seed++) {
      const done = await schedule(seed, boundMs, known);
      answers += done.answers;
      refused += done.refused;
    }
    t.log({ runs, answers, refused });
    t.true(answers > runs * 10 && refused > runs && refused < answers);
  });
}
