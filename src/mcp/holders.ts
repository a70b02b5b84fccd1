/** Sessions that live in the memory of one replica: whichever gets a request, that one answers it, or takes its place. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { AppError } from '../errors.ts';
import type { Log } from '../log.ts';
import type { Peers } from '../replicas/peers.ts';
import type { Presence } from '../replicas/presence.ts';
import type { SessionStore } from '../sessions/store.ts';
import type { Session } from './sessions.ts';

export interface Holders {
  /**
   * `here`: this replica serves it. `broken`: its replica failed while it had the request. `misdirected`: another replica has
   * passed it on in error. Throws AppError `unavailable` where nobody can say who holds the session.
   */
  place(
    session: Session,
    req: IncomingMessage,
    body: Buffer,
    res: ServerResponse,
  ): Promise<'here' | 'answered' | 'broken' | 'misdirected'>;
}

export interface HolderParts {
  readonly presence: Presence;
  readonly peers: Peers;
  readonly sessions: SessionStore;
  readonly log: Log;
  /** How long the database may take to say who holds a session. */
  readonly patienceMs: number;
}

/** More changes of hands within one request mean that something else is wrong. */
const TRIES = 3;
/** How often it is looked at whether a replica that has a request is still there. */
const LOOK_EVERY_MS = 5_000;

export function createHolders({ presence, peers, sessions, log, patienceMs }: HolderParts): Holders {
  /** A replica that stands still takes a request and never answers. */
  async function forward(holder: string, address: string, req: IncomingMessage, body: Buffer, res: ServerResponse) {
    const gone = new AbortController();
    const timer = setInterval(() => {
      presence.addressOf(holder).then(
        (there) => there ?? gone.abort(),
        () => undefined,
      );
    }, LOOK_EVERY_MS).unref();
    try {
      return await peers.forward({ id: holder, address }, req, body, res, gone.signal);
    } finally {
      clearInterval(timer);
    }
  }

  async function known<T>(reading: Promise<T>): Promise<T> {
    const late = new AppError('unavailable', 'It cannot be read which replica holds the session.', { retryAfter: 1 });
    let timer: NodeJS.Timeout | undefined;
    const patience = new Promise<never>((_, reject) => {
      timer = setTimeout(() => reject(late), patienceMs);
    });
    try {
      return await Promise.race([reading, patience]);
    } catch (err) {
      log.error({ err }, 'it cannot be read which replica holds a session');
      throw late;
    } finally {
      clearTimeout(timer);
    }
  }

  return {
    async place(session, req, body, res) {
      if (session.holder === null || presence.alone) return 'here';
      for (let tried = 0; tried < TRIES; tried++) {
        // Read for each request: a replica that stood still for a while does not know that another has taken its place.
        const row = await known(sessions.find(session.id));
        if (row === null || row.holder === null || row.holder === presence.id) return 'here';
        // Who passes it on takes this replica for another, or somebody has taken the session since.
        if (peers.isFromPeer(req)) return 'misdirected';
        const address = await known(presence.addressOf(row.holder));
        const passed = address === null ? 'gone' : await forward(row.holder, address, req, body, res);
        if (passed === 'answered' || passed === 'broken') return passed;
        log.warn({ replica: row.holder, address, passed }, 'the replica that holds a session is not there; it goes on here');
        if (await known(sessions.adopt(session.id, row.holder, presence.id))) return 'here';
      }
      return 'broken';
    },
  };
}
