/** The open sessions at targets with the transport HTTP with SSE, and the slots for them. */
import { createDemultiplexer, type Demultiplexer } from '../demultiplexer.ts';
import { toEvict } from '../eviction.ts';
import { bindingKey } from '../health.ts';
import type { Unread } from '../unread.ts';
import { silenceOf, type UpstreamLimits, type UpstreamRequest } from '../upstream.ts';

const MAX_SESSIONS = 1_000;
/** The maximum for one target, so that its users cannot take the connection slots of all other targets. */
const MAX_OF_TARGET = MAX_SESSIONS / 4;
/** The maximum of one user at one target, so that this user cannot take the slots of the others. */
const MAX_OF_USER = Math.floor(MAX_OF_TARGET / 4);

export interface SseSession {
  readonly id: string;
  readonly targetId: string;
  readonly user: string;
  /** The target, address and credentials that the session was opened with. */
  readonly bindingKey: string;
  readonly endpoint: URL;
  readonly mailbox: Demultiplexer;
  /** Restarts the idle timer. */
  touch(): void;
  end(cause: Error): void;
}

export function createSseSessions(limits: UpstreamLimits, newId: () => string, unread: Unread) {
  /** Ordered by last use, oldest first. */
  const sessions = new Map<string, SseSession>();
  /** Connections that are still being opened. They also count as slots. */
  const opening = new Set<UpstreamRequest>();

  /** Makes room for one more session. False: all slots are taken, and no session can be evicted. */
  function makeRoom(targetId: string, user: string): boolean {
    const own = [...sessions.values()].filter((session) => session.targetId === targetId);
    const ownOpening = [...opening].filter(({ target }) => target.id === targetId);
    const usersOwn = own.filter((session) => session.user === user);
    const usersOpening = ownOpening.filter(({ access }) => access.user === user);
    const isOverUsersShare = usersOwn.length + usersOpening.length >= MAX_OF_USER;
    const isOverShare = own.length + ownOpening.length >= MAX_OF_TARGET;
    if (!isOverUsersShare && !isOverShare && sessions.size + opening.size < MAX_SESSIONS) return true;
    const candidates = isOverUsersShare ? usersOwn : isOverShare ? own : [...sessions.values()];
    // Without room at all, what the user has at other targets counts, too.
    const ownOpenings =
      isOverUsersShare || isOverShare ? usersOpening : [...opening].filter(({ access }) => access.user === user);
    const evicted = toEvict(candidates, user, ownOpenings.length, ({ mailbox }) => mailbox.isQuiet());
    evicted?.end(new Error('evicted: another session needs the slot'));
    return evicted !== null;
  }

  return {
    /** Takes a slot while the request opens a session. Returns what gives it back; null: there is none. */
    reserve(request: UpstreamRequest): (() => void) | null {
      if (!makeRoom(request.target.id, request.access.user)) return null;
      opening.add(request);
      return () => void opening.delete(request);
    },

    keep(request: UpstreamRequest, endpoint: URL, connection: AbortController): SseSession {
      const { target, access } = request;
      let unused: NodeJS.Timeout | undefined;
      const id = newId();
      const session: SseSession = {
        id,
        targetId: target.id,
        user: access.user,
        bindingKey: bindingKey(request),
        endpoint,
        mailbox: createDemultiplexer(
          target.id,
          silenceOf(target, limits),
          unread.open(target.id, access.user),
          () => sessions.has(id) && session.touch(),
        ),
        touch() {
          sessions.delete(id);
          sessions.set(id, session);
          clearTimeout(unused);
          unused = setTimeout(() => {
            if (session.mailbox.isQuiet()) session.end(new Error('the session was not used'));
          }, limits.idleMs).unref();
        },
        end(cause) {
          sessions.delete(id);
          clearTimeout(unused);
          session.mailbox.fail(cause);
          connection.abort();
        },
      };
      session.touch();
      return session;
    },

    find: (id: string): SseSession | undefined => sessions.get(id),

    endAll(cause: Error): void {
      for (const session of sessions.values()) session.end(cause);
    },
  };
}
