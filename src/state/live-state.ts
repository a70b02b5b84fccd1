/**
 * The live state of this replica, and the gate through which every request gets it (laws 4 and 7).
 *
 * The gate decides a request with state that is at least as new as a read of the change counter that began after the request
 * arrived. With `FRESHNESS=bounded:<ms>`, that read may have begun up to this many milliseconds earlier.
 * The gate never serves older state: a replica that cannot read or build the newer state refuses the request.
 */

import type { AuthRefusal, TokenClaims } from '../auth/principal.ts';
import type { Providers } from '../auth/provider.ts';
import type { GivenRight } from '../auth/rights.ts';
import { AppError } from '../base/errors.ts';
import { gathered } from '../base/promises.ts';
import { type Changes, changedBetween, type Position, readPosition, samePosition } from '../db/changes.ts';
import type { Connection, Database } from '../db/database.ts';
import type { Policy } from '../engine/compile/policy.ts';
import type { Engine } from '../engine/decision.ts';
import type { SessionRules } from '../sessions/rules.ts';
import type { RoutedTarget } from '../targets/target.ts';
import type { LocalSignIn } from '../users/local-sign-in.ts';
import { type Admission, type Admit, type Identity, judgeIdentity, type Snapshot, withinLimits } from './admission.ts';
import { createIdentities, keyOf } from './identities.ts';
import { isRead, type Touched, touchedBy } from './touched.ts';

export interface CurrentParts {
  readonly database: Database;
  readonly changes: Changes;
  readonly policies: (db: Connection) => Promise<readonly Policy[]>;
  /** The enabled targets by name, in the order of their ids: all of them, or those in `ids`. */
  readonly targets: (db: Connection, ids: readonly string[] | null) => Promise<ReadonlyMap<string, RoutedTarget>>;
  readonly sessions: (db: Connection) => Promise<SessionRules>;
  /** The rights of administration that administrators have given. */
  readonly rights: (db: Connection) => Promise<readonly GivenRight[]>;
  /** The enabled providers by issuer. */
  readonly providers: (db: Connection) => Promise<Providers>;
  /** The identities that exist, by the claim `jti`. */
  readonly identities: (db: Connection, keys: readonly string[]) => Promise<readonly Identity[]>;
  /** Compiles, loads and self-tests a policy set. Rejects instead of returning an engine that may be wrong. */
  readonly build: (policies: readonly Policy[], revision: number) => Promise<Engine>;
  /** How long a request waits for state that is new enough, in milliseconds (`gateway/decisions.ts`). Then it is refused. */
  readonly gateTimeoutMs: number;
  /** How long a read of the counter may serve requests that arrive after it, in milliseconds; 0: not at all. */
  readonly boundMs: number;
  /** Milliseconds of a monotonic clock. */
  readonly now: () => number;
  /** Milliseconds since the epoch: the clock by which tokens expire. */
  readonly clock: () => number;
  /** Whose logins and grants count among local accounts. Absent: all. */
  readonly localSignIn?: LocalSignIn;
}

/** The number of callers whose identities are cached. */
const IDENTITIES_KEPT = 10_000;

interface State {
  readonly position: Position;
  readonly snapshot: Snapshot;
  /** The position of this load in the order of all reads and loads of this process. */
  readonly began: number;
}

interface CounterRead {
  readonly position: Position;
  readonly began: number;
  /** Milliseconds of the monotonic clock of this process. */
  readonly beganAt: number;
}

/** A caller whose identity is not cached. */
interface Stranger {
  readonly claims: TokenClaims;
  readonly resolve: (answer: Admission | AuthRefusal) => void;
  readonly reject: (error: unknown) => void;
}

/** What a load has read from the database. */
interface Read {
  readonly position: Position;
  /** null: reload everything. */
  readonly touched: Touched | null;
  /** null: unchanged. */
  readonly policies: readonly Policy[] | null;
  readonly targets: Snapshot['targets'];
  readonly sessions: SessionRules;
  readonly rights: Snapshot['rights'];
  readonly providers: Providers;
  readonly identities: readonly Identity[];
}

export type Current = ReturnType<typeof createCurrent>;

export function createCurrent(parts: CurrentParts) {
  const { database, changes } = parts;
  let order = 0;
  // State and identities belong to the same position. Only `load` changes them: it runs alone, and changes both in one turn of
  // the event loop. Therefore, values of both that are read in one turn belong together.
  let state: State | null = null;
  const identities = createIdentities(IDENTITIES_KEPT);
  let strangers: Stranger[] = [];
  let usersChanged: (users: ReadonlySet<string> | null) => void = () => {};
  let loading: Promise<void> | null = null;
  let reading: Promise<unknown> = Promise.resolve();
  let nextRead: Promise<CounterRead> | null = null;
  /** How many calls wait for `nextRead` to begin. */
  let waitingForRead = 0;
  /** The start time of the newest read that found the state up to date. */
  let confirmedAt = Number.NEGATIVE_INFINITY;

  /** All callers that wait at the same moment share one read. The read begins after each of them has called. */
  function readCounter(): Promise<CounterRead> {
    waitingForRead++;
    // Let callers that arrive together share the read, so that its cost does not multiply.
    nextRead ??= reading
      .then(() => gathered(() => waitingForRead))
      .then(() => {
        nextRead = null;
        waitingForRead = 0;
        const began = ++order;
        const beganAt = parts.now();
        const read = withTimeout(changes.position(), parts.gateTimeoutMs).then((position) => ({ position, began, beganAt }));
        reading = read.catch(() => {});
        return read;
      });
    return nextRead;
  }

  const isAtLeast = (candidate: State, read: CounterRead): boolean =>
    candidate.began > read.began || samePosition(candidate.position, read.position);

  /** `db` must be a consistent snapshot. */
  async function read(db: Connection, before: State | null, tokenIds: readonly string[]): Promise<Read> {
    const position = await readPosition(db);
    const changed = before && (await changedBetween(db, before.position, position));
    const touched = changed && touchedBy(changed);
    const found = tokenIds.length === 0 ? [] : await parts.identities(db, tokenIds);
    if (before === null || touched === null) {
      const [targets, sessions, rights] = [await parts.targets(db, null), await parts.sessions(db), await parts.rights(db)];
      const [providers, policies] = [await parts.providers(db), await parts.policies(db)];
      return { position, touched: null, policies, targets, sessions, rights, providers, identities: found };
    }
    const { targets, sessions, rights, providers } = before.snapshot;
    return {
      position,
      touched,
      policies: touched.policies ? await parts.policies(db) : null,
      targets:
        touched.targets.size === 0 ? targets : replaced(targets, touched.targets, await parts.targets(db, [...touched.targets])),
      sessions: touched.sessions ? await parts.sessions(db) : sessions,
      rights: touched.rights ? await parts.rights(db) : rights,
      providers: touched.providers ? await parts.providers(db) : providers,
      identities: found,
    };
  }

  function judged(snapshot: Snapshot, claims: TokenClaims, identity: Identity | null): Admission | AuthRefusal {
    const principal = judgeIdentity(claims, identity, snapshot.providers, parts.clock(), parts.localSignIn);
    return 'refused' in principal ? principal : { snapshot: withinLimits(snapshot, principal.limits), principal };
  }

  /** Makes this the state, and forgets the identities that have changed. `touched` null: perhaps all. */
  function move(began: number, position: Position, touched: Touched | null, loaded: Omit<Snapshot, 'sequence'>): Snapshot {
    if (touched === null || touched.users.size > 0) usersChanged(touched?.users ?? null);
    if (touched === null) identities.clear();
    touched?.users.forEach(identities.forgetUser);
    touched?.tokens.forEach(identities.forgetToken);
    const snapshot =
      state !== null && samePosition(state.position, position) ? state.snapshot : { ...loaded, sequence: position.sequence };
    state = { position, snapshot, began };
    return snapshot;
  }

  /** Follows changes of this process, if nothing has to be read for them: after a change of a user, other users do not wait for a load. */
  function follow(): void {
    const position = changes.known();
    // A load has read the database already, and would take the state back.
    if (position === null || state === null || loading !== null || samePosition(position, state.position)) return;
    const changed = changes.since(state.position);
    const touched = changed && touchedBy(changed);
    if (touched !== null && !isRead(touched)) move(++order, position, touched, state.snapshot);
  }

  /** Brings the state up to date with the database and looks up strangers, in one snapshot that begins after the call. */
  async function load(asked: readonly Stranger[]): Promise<void> {
    const began = ++order;
    const before = state;
    const tokenIds = [...new Set(asked.map(({ claims }) => claims.jti))];
    const { position, touched, policies, targets, sessions, rights, providers, ...found } = await database.snapshot((db) =>
      read(db, before, tokenIds),
    );
    const engine =
      before !== null && policies === null ? before.snapshot.engine : await parts.build(policies ?? [], position.revision);

    // Do not await anything from here on: other requests would find state and identities of different positions.
    const snapshot = move(began, position, touched, { engine, targets, sessions, rights, providers });
    found.identities.forEach(identities.remember);
    const byToken = new Map(found.identities.map((identity) => [keyOf(identity), identity]));
    for (const { claims, resolve } of asked) resolve(judged(snapshot, claims, byToken.get(claims.jti) ?? null));
  }

  function loadOnce(): Promise<void> {
    loading ??= (async () => {
      const asked = strangers;
      strangers = [];
      try {
        await load(asked);
      } catch (error) {
        for (const { reject } of asked) reject(error);
        throw error;
      } finally {
        loading = null;
        if (strangers.length > 0) loadOnce().catch(toldOtherwise);
      }
    })();
    return loading;
  }

  /** Returns the caller as found by a load that begins after this call. */
  function lookUp(claims: TokenClaims): Promise<Admission | AuthRefusal> {
    return new Promise((resolve, reject) => {
      strangers.push({ claims, resolve, reject });
      if (loading === null) loadOnce().catch(toldOtherwise);
    });
  }

  /** Returns the state if it is known to be new enough without a read. */
  function atHand(): State | null {
    if (state === null || parts.now() - confirmedAt < parts.boundMs) return state;
    follow();
    const position = changes.known();
    return position !== null && samePosition(position, state.position) ? state : null;
  }

  async function reach(deadline: number): Promise<Snapshot> {
    const read = await readCounter();
    follow();
    while (state === null || !isAtLeast(state, read)) {
      if (parts.now() > deadline) {
        throw unreadable('The gateway is still loading its newest state. Try again.');
      }
      await withTimeout(loadOnce(), deadline - parts.now());
    }
    confirmedAt = Math.max(confirmedAt, read.beganAt);
    return state.snapshot;
  }

  async function guarded<T>(work: (deadline: number) => Promise<T>, ms = parts.gateTimeoutMs): Promise<T> {
    const deadline = parts.now() + ms;
    try {
      return await withTimeout(work(deadline), ms);
    } catch (error) {
      if (error instanceof AppError) throw error;
      throw unreadable('The gateway cannot read its current state from the database. Try again.', error);
    }
  }

  /** Call this only when the state is known to be new enough. */
  function recall(claims: TokenClaims): Admission | AuthRefusal | null {
    const known = identities.get(claims.jti);
    return known === undefined || state === null ? null : judged(state.snapshot, claims, known);
  }

  return {
    /**
     * Returns state at least as new as this call. Throws AppError `unavailable` if the replica cannot get it in time.
     * `ms`: how long to wait, in milliseconds; absent: as long as a request.
     */
    fresh: (ms?: number): Promise<Snapshot> => guarded(reach, ms),
    /** The loaded state, however old it is; null: none is loaded. No request may be allowed by it. */
    lastKnown: (): Snapshot | null => state?.snapshot ?? null,
    /** The sequence of the loaded state, however old the state is; null: no state is loaded. */
    sequence: (): number | null => state?.position.sequence ?? null,
    /**
     * Calls `listener` with the ids of users that changed (null: perhaps all), before any request is admitted with the state in
     * which they changed.
     */
    whenUsersChange(listener: (users: ReadonlySet<string> | null) => void): void {
      usersChanged = listener;
    },
    /** Like `fresh`, but also returns the caller as that state knows it. */
    admit(claims: TokenClaims): ReturnType<Admit> {
      const near = atHand();
      // Most requests need not wait for anything, so they need no timer.
      const known = near && recall(claims);
      if (known !== null) return known;
      return guarded(async (deadline) => {
        if (near === null) await reach(deadline);
        return recall(claims) ?? lookUp(claims);
      });
    },
  };
}

/** Returns `all`, but with the targets in `ids` replaced by those of them that are in `now`. */
function replaced(all: Snapshot['targets'], ids: ReadonlySet<string>, now: Snapshot['targets']): Snapshot['targets'] {
  const kept = [...all.values()].filter(({ id }) => !ids.has(id));
  const targets = [...kept, ...now.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
  return new Map(targets.map((target) => [target.name, target]));
}

/** The load has already rejected the promises of its callers, so ignore the error here. */
const toldOtherwise = (): void => undefined;

const unreadable = (detail: string, cause?: unknown): AppError => new AppError('unavailable', detail, { retryAfter: 1, cause });

/** Rejects with AppError `unavailable` after `ms` milliseconds; the work itself continues. */
function withTimeout<T>(work: Promise<T>, ms: number): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = (): void =>
      reject(unreadable('The gateway cannot read its current state from the database in time. Try again.'));
    const timer = setTimeout(late, Math.max(0, ms));
    work.then(resolve, reject).then(() => clearTimeout(timer));
  });
}
