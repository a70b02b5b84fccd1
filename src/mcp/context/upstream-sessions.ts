/**
 * Upstream sessions: the sessions that the gateway opens at targets. A client keeps its session id until the session ends.
 * The gateway opens a new upstream session when the credentials have changed, an administrator recycles it, the target has
 * lost it, or a session at the aggregate endpoint first needs this target. Several replicas may notice at once. They end up
 * with the same upstream session, because each cause has one row.
 */

import { createHash } from 'node:crypto';
import type { Principal } from '../../auth/principal.ts';
import { keep } from '../../base/kept.ts';
import { deferred, inTime, type Now } from '../../base/promises.ts';
import { isSessionRevision } from '../../protocol/mode.ts';
import type { SessionStore } from '../../sessions/session-store.ts';
import { type Admission, mayUseTarget } from '../../state/admission.ts';
import type { Seal } from '../sessions/seal.ts';
import { AGGREGATE, bindingOf, fingerprintOf, type Session, type UpstreamSession } from '../sessions/sessions.ts';
import type { Attempt } from '../upstream/pace.ts';
import { CHANGED, isStillAllowed, type UpstreamFault } from '../upstream/upstream.ts';
import { createSessionMemory } from './session-memory.ts';
import {
  announce,
  askedAt,
  LATE,
  OPENING,
  type OpeningParts,
  openAt,
  post,
  type ServerHello,
  type SessionTarget,
  setUp,
  turnToAsk,
} from './upstream-opening.ts';

/** The session has ended, on this replica or on another. */
export const ENDED = { ended: true } as const;
export type UpstreamSessionFailure = UpstreamFault | typeof ENDED;

export type UpstreamSessions = ReturnType<typeof createUpstreamSessions>;

export interface UpstreamSessionsParts extends OpeningParts {
  readonly sessions: SessionStore;
  readonly seal: Seal;
  readonly now: () => number;
}

export function isUpstreamSessionFailure(value: UpstreamSession | UpstreamSessionFailure): value is UpstreamSessionFailure {
  return 'fault' in value || 'ended' in value;
}

/** What is remembered of upstream sessions, in bytes. */
const MEMORY = { perUser: 8 * 1024 * 1024, all: 128 * 1024 * 1024 };
/** Upstream sessions that were not used for this long no longer count as in use. */
const UNUSED_MS = 60 * 60_000;
/** About what an entry takes in memory beside its id. */
const ENTRY_BYTES = 1_024;
/** At most this many sessions wait until their clients are ready. */
const WAITING_KEPT = 20_000;
/** The gateway remembers what targets have announced for at most this many sessions that are being opened. */
const OPENING_KEPT = 1_000;
/** How many lost upstream sessions of one session are followed to their successors. */
const MAX_LOST = 100;

/** An open upstream session whose target has not yet been told that the client is ready. */
interface Held {
  readonly targetId: string;
  readonly binding: string;
  readonly link: UpstreamSession;
}

/** An upstream session that is found or opened. */
interface Entry {
  readonly binding: string;
  link: Promise<UpstreamSession | UpstreamSessionFailure>;
  /** Resolves when `initialize` is sent to the target. */
  readonly asked: ReturnType<typeof deferred<void>>;
  attempt: Attempt | null;
  /** Whether this process has opened it. */
  isOpened: boolean;
  settled: UpstreamSession | null;
}

export function createUpstreamSessions(parts: UpstreamSessionsParts) {
  const { sessions, seal, limits, health, pace, now, log } = parts;
  const listeners = new Map<string, (targetId: string) => void>();
  /** Upstream sessions that wait until their client is ready, by session. */
  const waiting = new Map<string, Held[]>();
  /**
   * What targets have announced for sessions that are being opened, by session, then by target. It is not kept longer: it can take 200 KB
   * for each target.
   */
  const hellos = new Map<string, Map<string, ServerHello>>();
  const known = createSessionMemory<Entry>(MEMORY, (sessionId) => waiting.delete(sessionId));

  /** `before`: this process has used a different upstream session. `asking`: ask even if the target is late and already asked. */
  function settle(
    sessionTarget: SessionTarget,
    binding: string,
    lost: UpstreamSession | null,
    before: boolean,
    asking = true,
  ): Entry {
    const { session, target, admission } = sessionTarget;
    const entry: Entry = {
      binding,
      asked: deferred(),
      attempt: null,
      isOpened: false,
      settled: null,
      link: Promise.resolve(LATE),
    };
    entry.link = bounded(find(sessionTarget, lost, before, asking, entry));
    known.set(admission.principal.sub, session.id, target.id, entry, ENTRY_BYTES);
    void entry.link.then((link) => {
      if (isUpstreamSessionFailure(link)) return known.remove(session.id, target.id, entry);
      entry.settled = link;
      entry.attempt = null;
      known.grow(session.id, target.id, entry, link.upstreamId?.length ?? 0);
      try {
        listeners.get(session.id)?.(target.id);
      } catch (err) {
        log.error({ err }, 'upstream session opened, but its listener failed');
      }
    });
    return entry;
  }

  /** Limits the wait, so that a target or a database that does not answer cannot block the session's requests for ever. */
  async function bounded(
    finding: Promise<UpstreamSession | UpstreamSessionFailure>,
  ): Promise<UpstreamSession | UpstreamSessionFailure> {
    const withinMs = 3 * limits.openMs;
    const late = { fault: 'timeout', cause: new Error('opening the upstream session took too long'), withinMs } as const;
    return (await inTime(finding, withinMs).catch((cause: unknown) => ({ fault: 'broken_off', cause }) as const)) ?? late;
  }

  async function find(
    sessionTarget: SessionTarget,
    lost: UpstreamSession | null,
    before: boolean,
    asking: boolean,
    entry: Entry,
  ): Promise<UpstreamSession | UpstreamSessionFailure> {
    const { session, target } = sessionTarget;
    const { binding } = entry;
    const row = await sessions.find(session.id);
    if (row === null) return ENDED;
    const known = await newestOf(parts, session, target.id, binding, lost);
    if (known !== null) {
      // This upstream session lacks the settings that the client has meanwhile sent to the other one.
      if (before) await setUp(parts, sessionTarget, known, await sessions.settings(session.id, target.id));
      return known;
    }
    if (!asking && pace.isAsking(askedAt(sessionTarget), OPENING)) return LATE;
    const opened = await openAt(parts, sessionTarget, row.client, (attempt) => {
      entry.attempt = attempt;
      entry.asked.resolve();
    });
    if ('fault' in opened) return opened;
    // What follows would reach the target after a change that forbids it.
    if (!(await isStillAllowed(sessionTarget.access))) return CHANGED;
    entry.isOpened = true;
    if (opened.hello !== null) hellos.get(session.id)?.set(target.id, opened.hello);
    const { link } = opened;
    const cause = causeOf(target.id, binding, lost);
    try {
      const held = waiting.get(session.id);
      if (held === undefined) await announce(parts, sessionTarget, link);
      else held.push({ targetId: target.id, binding, link });
      await setUp(parts, sessionTarget, link, await sessions.settings(session.id, target.id));
      const upstream_id = link.upstreamId === null ? null : seal.seal('link', session.id, { u: link.upstreamId });
      const ours = await sessions.insertUpstream(session.id, cause, { upstream_id, revision: link.revision }, now());
      // The client or an administrator may meanwhile have ended the session.
      const kept = (await sessions.find(session.id)) !== null;
      if (ours && kept) return link;
      void post(parts, sessionTarget, link, 'DELETE');
      return (kept ? await stored(parts, session, cause) : null) ?? ENDED;
    } catch (cause) {
      void post(parts, sessionTarget, link, 'DELETE');
      throw cause;
    }
  }

  /** The client may become ready late: by then the target may have moved, or the caller may have lost access to it. */
  async function tell(session: Session, admission: Admission | null, { targetId, binding, link }: Held): Promise<void> {
    if (admission === null) return;
    const target = [...admission.snapshot.targets.values()].find(({ id }) => id === targetId);
    if (target === undefined || !mayUseTarget(admission, target)) return;
    const sessionTarget = { session, target, access: target.accessOf(admission.principal), admission };
    if (bindingAt(sessionTarget) === binding) await announce(parts, sessionTarget, link);
  }

  /**
   * The session that another request is opening. If that request loses its access, for instance with its token, this one opens the session
   * itself.
   */
  async function shared(sessionTarget: SessionTarget, opening: Entry): Promise<UpstreamSession | UpstreamSessionFailure> {
    const link = await opening.link;
    if (!('fault' in link) || link.fault !== CHANGED.fault || !(await isStillAllowed(sessionTarget.access))) return link;
    const newer = known.get(sessionTarget.session.id, sessionTarget.target.id);
    // The newer one may lose its access, too.
    if (newer?.binding === opening.binding) return shared(sessionTarget, newer);
    return settle(sessionTarget, opening.binding, null, false).link;
  }

  async function joined(sessionTarget: SessionTarget): Promise<UpstreamSession | UpstreamSessionFailure> {
    const binding = bindingAt(sessionTarget);
    const before = known.get(sessionTarget.session.id, sessionTarget.target.id);
    const isSame = before?.binding === binding;
    const isLost = isSame && before.attempt?.isLost() === true;
    const entry = isSame && !isLost ? before : settle(sessionTarget, binding, null, before !== undefined && !isSame, false);
    // A slow database does not make the target late.
    await Promise.race([entry.link, entry.asked.promise]);
    if (entry.settled !== null) return entry.settled;
    const link = await pace.wait(askedAt(sessionTarget), OPENING, entry === before ? shared(sessionTarget, entry) : entry.link);
    if (link !== null) return link;
    return entry.attempt?.isLost() === true ? joined(sessionTarget) : LATE;
  }

  return {
    /** The upstream session for the target and the access as they are now. Opens one if needed. */
    current(sessionTarget: SessionTarget): Now<UpstreamSession | UpstreamSessionFailure> {
      const binding = bindingAt(sessionTarget);
      const entry = known.get(sessionTarget.session.id, sessionTarget.target.id);
      // If opening took too long for other requests, this one does not wait for it either.
      if (entry?.binding === binding) {
        const refusal = entry.settled === null ? health.refusal(askedAt(sessionTarget)) : null;
        return refusal ?? entry.settled ?? shared(sessionTarget, entry);
      }
      const { session } = sessionTarget;
      if (entry === undefined && session.fingerprint !== AGGREGATE && session.binding === binding) return session;
      return settle(sessionTarget, binding, null, entry !== undefined).link;
    },
    /** The same for requests to several targets: does not wait for a target that is late, but asks it in the background. */
    joined,
    /** Replaces an upstream session that the target no longer knows. */
    replace(sessionTarget: SessionTarget, lost: UpstreamSession): Promise<UpstreamSession | UpstreamSessionFailure> {
      const binding = bindingAt(sessionTarget);
      const entry = known.get(sessionTarget.session.id, sessionTarget.target.id);
      // Another request has already noticed the loss.
      if (entry?.binding === binding && (entry.settled === null || entry.settled.upstreamId !== lost.upstreamId))
        return entry.link;
      return settle(sessionTarget, binding, lost, false).link;
    },
    /** The newest upstream session that any replica has opened for this target and access; null: none. Opens nothing. */
    newest: (sessionTarget: SessionTarget) =>
      newestOf(parts, sessionTarget.session, sessionTarget.target.id, bindingAt(sessionTarget), null),
    /** The upstream session that this process uses for this target and access; null: none. Opens nothing. */
    open(sessionTarget: SessionTarget): UpstreamSession | null {
      const entry = known.get(sessionTarget.session.id, sessionTarget.target.id);
      return entry?.binding === bindingAt(sessionTarget) ? entry.settled : null;
    },
    /** Reports the target whenever this process uses a new upstream session. Returns a function that unsubscribes. */
    onOpened(session: Session, listener: (targetId: string) => void): () => void {
      listeners.set(session.id, listener);
      return () => {
        if (listeners.get(session.id) === listener) listeners.delete(session.id);
      };
    },
    /** Delays `notifications/initialized` to targets until `begin`: what they send after it needs a client that listens. */
    hold(session: Session): void {
      keep(waiting, session.id, [], WAITING_KEPT);
      keep(hellos, session.id, new Map(), OPENING_KEPT);
    },
    /** Returns what targets have announced since `hold`, by target, and forgets it. */
    takeHellos(session: Session): ReadonlyMap<string, ServerHello> {
      const told = hellos.get(session.id) ?? new Map<string, ServerHello>();
      hellos.delete(session.id);
      return told;
    },
    /**
     * Tells targets that the client is ready; does nothing if they know. Does not wait for targets that are late. Returns whether it has waited for
     * any. `admitted`: what the caller may use when the turn of a target has come; null: nothing.
     */
    async begin(
      session: Session,
      principal: Pick<Principal, 'sub'>,
      admitted: () => Promise<Admission | null>,
    ): Promise<boolean> {
      const held = waiting.get(session.id) ?? [];
      waiting.delete(session.id);
      await Promise.all(held.map((half) => turnToAsk(principal, async () => tell(session, await admitted(), half))));
      return held.length > 0;
    },
    /** Whether this process has opened the upstream session that it uses for the target. */
    hasOpened: (session: Session, targetId: string): boolean => known.get(session.id, targetId)?.isOpened === true,
    /** How many upstream sessions this process has used lately, without those that clients opened themselves at the endpoint of a target. */
    count(): number {
      // Nobody reports the end of a session to each replica.
      known.evictUnused(UNUSED_MS);
      return [...known.values()].filter(({ settled }) => settled !== null).length;
    },
    forget(session: Session): void {
      known.forget(session.id);
      waiting.delete(session.id);
    },
  };
}

function bindingAt({ session, access, admission, target }: SessionTarget): string {
  const binding = bindingOf(access, admission.snapshot.sessions.epochOf(admission.principal.sub, target.id));
  // A session at the aggregate endpoint survives the move of a target, but the new server must not get what the old one issued.
  return session.fingerprint === AGGREGATE ? JSON.stringify([fingerprintOf(target), binding]) : binding;
}

type Rows = Pick<UpstreamSessionsParts, 'sessions' | 'seal'>;

/**
 * The newest upstream session with this binding: the last successor of `lost`, or of the one that the client opened. null:
 * there is none.
 */
async function newestOf(
  rows: Rows,
  session: Session,
  targetId: string,
  binding: string,
  lost: UpstreamSession | null,
): Promise<UpstreamSession | null> {
  const own = session.fingerprint !== AGGREGATE && session.binding === binding ? session : null;
  let newest: UpstreamSession | null = lost === null ? own : null;
  for (let from: UpstreamSession | null = lost ?? own, followed = 0; followed < MAX_LOST; followed++) {
    const next = await stored(rows, session, causeOf(targetId, binding, from));
    if (next === null || next.upstreamId === from?.upstreamId) break;
    newest = next;
    from = next;
  }
  return newest;
}

async function stored({ sessions, seal }: Rows, session: Session, cause: string): Promise<UpstreamSession | null> {
  const row = await sessions.upstream(session.id, cause);
  if (row === null || !isSessionRevision(row.revision)) return null;
  if (row.upstream_id === null) return { upstreamId: null, revision: row.revision };
  const content = seal.open('link', session.id, row.upstream_id) as { u: string } | null;
  return content && { upstreamId: content.u, revision: row.revision };
}

function causeOf(targetId: string, binding: string, lost: UpstreamSession | null): string {
  return createHash('sha256')
    .update(JSON.stringify([targetId, binding, lost?.upstreamId ?? null]))
    .digest('hex');
}
