/** The open sessions at targets with the transport HTTP with SSE, and the slots for them. */
import { setMaxListeners } from 'node:events';
import { createDemultiplexer, type Demultiplexer } from '../demultiplexer.ts';
import { competitors, type Slot, toEvict } from '../eviction.ts';
import { bindingKey } from '../health.ts';
import type { Unread } from '../unread.ts';
import { silenceOf, type UpstreamLimits, type UpstreamRequest } from '../upstream.ts';

/** The users of one target cannot take the connection slots of all other targets, and one user not those of the others. */
const MAX = { ofUser: 62, ofTarget: 250, all: 1_000 };

export interface SseSession extends Slot {
  readonly id: string;
  /** The target, address and credentials that the session was opened with. */
  readonly bindingKey: string;
  readonly endpoint: URL;
  readonly mailbox: Demultiplexer;
  /** Aborted when the session ends. */
  readonly ended: AbortSignal;
  /** How many answers of the gateway itself are on their way to the target. */
  replies: number;
  /** Restarts the idle timer. */
  touch(): void;
  end(cause: Error): void;
}

export function createSseSessions(limits: UpstreamLimits, newId: () => string, unread: Unread) {
  /** Ordered by last use, oldest first. */
  const sessions = new Map<string, SseSession>();
  /** Connections that are still being opened. They also count as slots. */
  const opening = new Set<Slot>();

  /** Makes room for one more session. False: all slots are taken, and no session can be evicted. */
  function makeRoom(wanted: Slot): boolean {
    const competing = competitors([...sessions.values()], [...opening], wanted, MAX);
    if (competing === null) return true;
    const evicted = toEvict(competing.sessions, wanted.user, competing.opening, ({ mailbox }) => mailbox.isQuiet());
    evicted?.end(new Error('evicted: another session needs the slot'));
    return evicted !== null;
  }

  return {
    /** Takes a slot while the request opens a session. Returns what gives it back; null: there is none. */
    reserve({ target, access }: UpstreamRequest): (() => void) | null {
      const wanted = { targetId: target.id, user: access.user };
      if (!makeRoom(wanted)) return null;
      opening.add(wanted);
      return () => void opening.delete(wanted);
    },

    keep(request: UpstreamRequest, endpoint: URL, connection: AbortController): SseSession {
      const { target, access } = request;
      let unused: NodeJS.Timeout | undefined;
      // Each reply of the gateway on its way listens, too.
      setMaxListeners(0, connection.signal);
      const id = newId();
      const session: SseSession = {
        id,
        targetId: target.id,
        user: access.user,
        bindingKey: bindingKey(request),
        endpoint,
        ended: connection.signal,
        replies: 0,
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
