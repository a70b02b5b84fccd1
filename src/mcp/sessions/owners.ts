/** Sessions in the memory of one replica, their owner: the owner answers each request, or another replica takes over. */

import type { IncomingMessage, ServerResponse } from 'node:http';
import { AppError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { inTime } from '../../base/promises.ts';
import type { Peers } from '../../replicas/peers.ts';
import type { Presence } from '../../replicas/presence.ts';
import type { SessionStore } from '../../sessions/session-store.ts';
import type { Session } from './sessions.ts';

export type SessionOwners = ReturnType<typeof createSessionOwners>;

export interface SessionOwnersParts {
  readonly presence: Presence;
  readonly peers: Peers;
  readonly sessions: SessionStore;
  readonly log: Log;
  /** How long the database may take to tell the owner of a session. */
  readonly patienceMs: number;
}

/** If the owner changes more often within one request, something else is wrong. */
const TRIES = 3;
/** How often the gateway checks that a replica with a forwarded request is still alive. */
const LOOK_EVERY_MS = 5_000;

export function createSessionOwners({ presence, peers, sessions, log, patienceMs }: SessionOwnersParts) {
  /** Forwards the request until the replica counts as gone: a replica that hangs would accept it and never answer. */
  async function forward(owner: string, address: string, req: IncomingMessage, body: Buffer, res: ServerResponse) {
    const gone = new AbortController();
    const timer = setInterval(() => {
      presence.isSeen(owner).then(
        (seen) => (seen ? undefined : gone.abort()),
        () => undefined,
      );
    }, LOOK_EVERY_MS).unref();
    try {
      return await peers.forward({ id: owner, address }, req, body, res, gone.signal);
    } finally {
      clearInterval(timer);
    }
  }

  async function known<T>(reading: Promise<T>): Promise<T> {
    const late = new AppError('unavailable', 'The gateway cannot read which replica owns the session.', { retryAfter: 1 });
    try {
      const found = await inTime(
        reading.then((value) => ({ value })),
        patienceMs,
      );
      if (found === null) throw late;
      return found.value;
    } catch (err) {
      log.error({ err }, 'reading the owner of a session failed');
      throw late;
    }
  }

  return {
    /**
     * Forwards the request if another replica owns the session. `here`: this replica serves the request. `answered`: the owner
     * has answered it. `broken`: the owner failed while it had the request. `misdirected`: another replica has forwarded the
     * request to this one in error. Throws AppError `unavailable` if the owner cannot be read.
     */
    async answerOrForward(
      session: Session,
      req: IncomingMessage,
      body: Buffer,
      res: ServerResponse,
    ): Promise<'here' | 'answered' | 'broken' | 'misdirected'> {
      if (session.replica === null || presence.alone) return 'here';
      for (let tried = 0; tried < TRIES; tried++) {
        // Read for each request: a replica that hung for a while does not know that another has taken over its sessions.
        const row = await known(sessions.find(session.id));
        if (row === null || row.holder === null || row.holder === presence.id) return 'here';
        // The replica that forwarded the request took this one for another, or the session has a new owner since.
        if (peers.isFromPeer(req)) return 'misdirected';
        const address = await known(presence.addressOf(row.holder));
        const passed = address === null ? 'gone' : await forward(row.holder, address, req, body, res);
        if (passed === 'answered' || passed === 'broken') return passed;
        log.warn({ replica: row.holder, address, passed }, 'owner of a session is gone, taking over the session');
        if (await known(sessions.adopt(session.id, row.holder, presence.id))) return 'here';
      }
      return 'broken';
    },
  };
}
