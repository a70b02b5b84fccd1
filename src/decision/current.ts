/**
 * The live state of this replica, and the gate through which every request gets it (laws 4 and 7).
 *
 * A request is decided with state at least as new as a read of the change counter that began after the request arrived,
 * or, where the configuration allows older ones (`FRESHNESS=bounded:<ms>`), at most so long before.
 * What is older is never served: a replica that cannot read or build the newer state refuses.
 */
import type { Admission, Admit, Identity, Snapshot } from '../auth/admission.ts';
import { judgeIdentity } from '../auth/admission.ts';
import type { AuthRefusal, TokenClaims } from '../auth/principal.ts';
import { type Changes, holds, type Position, readPosition } from '../db/changes.ts';
import type { Connection, Database } from '../db/database.ts';
import { AppError } from '../errors.ts';
import type { Policy } from '../policies/document.ts';
import type { SessionRules } from '../sessions/rules.ts';
import type { RoutedTarget } from '../targets/target.ts';
import type { Engine } from './decision.ts';

export interface CurrentParts {
  readonly database: Database;
  readonly changes: Changes;
  readonly policies: (db: Connection) => Promise<Policy[]>;
  readonly targets: (db: Connection) => Promise<ReadonlyMap<string, RoutedTarget>>;
  readonly sessions: (db: Connection) => Promise<SessionRules>;
  readonly identity: (db: Connection, claims: TokenClaims) => Promise<Identity | null>;
  /** Compiles, loads and self-tests a policy set. Rejects rather than give an engine that may be wrong. */
  readonly build: (policies: readonly Policy[], revision: number) => Promise<Engine>;
  readonly gateTimeoutMs: number;
  /** How long a read of the counter may serve requests that arrive after it; 0: none. */
  readonly boundMs: number;
}

export interface Current {
  /** State at least as new as this call. Throws AppError `unavailable` where that cannot be had in time. */
  fresh(): Promise<Snapshot>;
  /** `fresh`, and the caller as that state knows it. */
  readonly admit: Admit;
}

/** How many callers' identities one state remembers. */
const IDENTITIES_KEPT = 10_000;

interface State extends Snapshot {
  readonly position: Position;
  /** Place of the load in the order of reads and loads of this process. */
  readonly began: number;
  readonly identities: Map<string, Identity>;
}

interface CounterRead {
  readonly position: Position;
  readonly began: number;
  /** Milliseconds on the clock of this process. */
  readonly beganAt: number;
}

export function createCurrent(parts: CurrentParts): Current {
  const { database, changes } = parts;
  let order = 0;
  let state: State | null = null;
  let reading: Promise<unknown> = Promise.resolve();
  let nextRead: Promise<CounterRead> | null = null;
  let loading: Promise<void> | null = null;
  /** When the newest read began that the state was as new as. */
  let confirmedAt = Number.NEGATIVE_INFINITY;

  /** All callers that wait at one moment share one read, and it begins after every one of them has called. */
  function readCounter(): Promise<CounterRead> {
    // Who arrives in the same turn shares the read; what one read costs is not repeated for each.
    nextRead ??= reading.then(turnOver).then(() => {
      nextRead = null;
      const began = ++order;
      const beganAt = performance.now();
      const read = withTimeout(changes.position(), parts.gateTimeoutMs).then((position) => ({ position, began, beganAt }));
      reading = read.catch(() => {});
      return read;
    });
    return nextRead;
  }

  const isAtLeast = (candidate: State, read: CounterRead): boolean =>
    candidate.began > read.began || samePosition(candidate.position, read.position);

  async function load(): Promise<void> {
    const began = ++order;
    const before = state;
    const { position, targets, sessions, policies } = await database.snapshot(async (db) => {
      const position = await readPosition(db);
      // The same revision means the same policies only where this state's own change is still part of the history.
      const unchanged = before !== null && position.revision === before.position.revision && (await holds(db, before.position));
      return {
        position,
        targets: await parts.targets(db),
        sessions: await parts.sessions(db),
        policies: unchanged ? null : await parts.policies(db),
      };
    });
    const engine = before !== null && policies === null ? before.engine : await parts.build(policies ?? [], position.revision);
    state = { position, began, sequence: position.sequence, engine, targets, sessions, identities: new Map() };
  }

  /** The state, if it is known to be new enough without a read. */
  function atHand(): State | null {
    if (state === null || performance.now() - confirmedAt < parts.boundMs) return state;
    const position = changes.known();
    return position !== null && samePosition(position, state.position) ? state : null;
  }

  async function reach(deadline: number): Promise<State> {
    const read = await readCounter();
    while (state === null || !isAtLeast(state, read)) {
      if (performance.now() > deadline) throw new AppError('unavailable', STILL_LOADING, { retryAfter: 1 });
      loading ??= load().finally(() => {
        loading = null;
      });
      await withTimeout(loading, deadline - performance.now());
    }
    confirmedAt = Math.max(confirmedAt, read.beganAt);
    return state;
  }

  /** null: the database has moved on from `from`. */
  async function lookUp(from: State, claims: TokenClaims): Promise<Identity | 'unknown' | null> {
    const found = await database.snapshot(async (db) => {
      if (!samePosition(await readPosition(db), from.position)) return null;
      return (await parts.identity(db, claims)) ?? 'unknown';
    });
    if (found !== null && found !== 'unknown') {
      const oldest = from.identities.keys().next().value;
      if (from.identities.size >= IDENTITIES_KEPT && oldest !== undefined) from.identities.delete(oldest);
      from.identities.set(claims.jti, found);
    }
    return found;
  }

  async function guarded<T>(work: (deadline: number) => Promise<T>): Promise<T> {
    const deadline = performance.now() + parts.gateTimeoutMs;
    try {
      return await withTimeout(work(deadline), parts.gateTimeoutMs);
    } catch (error) {
      if (error instanceof AppError) throw error;
      throw new AppError('unavailable', 'The gateway cannot read its current state.', { retryAfter: 1, cause: error });
    }
  }

  return {
    fresh: () => guarded(reach),
    async admit(claims) {
      const near = atHand();
      const known = near?.identities.get(claims.jti);
      // Most requests need not wait for anything, and so need no timer.
      if (near !== null && known !== undefined) return judged(near, claims, known);
      return guarded(async (deadline) => {
        for (let snapshot = near ?? (await reach(deadline)); ; snapshot = await reach(deadline)) {
          const identity = snapshot.identities.get(claims.jti) ?? (await lookUp(snapshot, claims));
          if (identity !== null) return judged(snapshot, claims, identity === 'unknown' ? null : identity);
          if (performance.now() > deadline) throw new AppError('unavailable', STILL_LOADING, { retryAfter: 1 });
        }
      });
    },
  };
}

function judged(snapshot: State, claims: TokenClaims, identity: Identity | null): Admission | AuthRefusal {
  const principal = judgeIdentity(claims, identity);
  return 'refused' in principal ? principal : { snapshot, principal };
}

const turnOver = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

const STILL_LOADING = 'The newest state is still being loaded.';

const samePosition = (a: Position, b: Position): boolean => a.sequence === b.sequence && a.nonce === b.nonce;

/** Rejects with AppError `unavailable` after `ms`; the work itself goes on. */
function withTimeout<T>(work: Promise<T>, ms: number): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(
      () => reject(new AppError('unavailable', 'The gateway cannot read its current state in time.', { retryAfter: 1 })),
      Math.max(0, ms),
    );
    work.then(resolve, reject).then(() => clearTimeout(timer));
  });
}
