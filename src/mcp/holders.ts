/** Sessions that live in the memory of one replica: whichever gets a request, that one answers it, or takes its place. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Log } from '../log.ts';
import type { Peers } from '../replicas/peers.ts';
import type { Presence } from '../replicas/presence.ts';
import type { SessionStore } from '../sessions/store.ts';
import type { Session } from './sessions.ts';

export interface Holders {
  /** `here`: this replica serves it. `broken`: its replica failed while it had the request. */
  place(session: Session, req: IncomingMessage, body: Buffer, res: ServerResponse): Promise<'here' | 'answered' | 'broken'>;
}

export interface HolderParts {
  readonly presence: Presence;
  readonly peers: Peers;
  readonly sessions: SessionStore;
  readonly log: Log;
}

const ADOPTED_KEPT = 10_000;
/** More changes of hands within one request mean that something else is wrong. */
const TRIES = 3;

export function createHolders({ presence, peers, sessions, log }: HolderParts): Holders {
  /** Those that were opened elsewhere. */
  const adopted = new Set<string>();

  function adopt(id: string): 'here' {
    const oldest = adopted.values().next().value;
    if (adopted.size >= ADOPTED_KEPT && oldest !== undefined) adopted.delete(oldest);
    adopted.add(id);
    return 'here';
  }

  return {
    async place(session, req, body, res) {
      if (session.holder === null || session.holder === presence.id || adopted.has(session.id)) return 'here';
      // The replica that passed it on has found out that it belongs here.
      if (peers.isFromPeer(req)) return adopt(session.id);
      for (let tried = 0; tried < TRIES; tried++) {
        const row = await sessions.find(session.id);
        if (row === null || row.holder === null) return 'here';
        if (row.holder === presence.id) return adopt(session.id);
        const address = await presence.addressOf(row.holder);
        const passed = address === null ? 'unreachable' : await peers.forward(address, req, body, res);
        if (passed !== 'unreachable') return passed;
        if (address !== null)
          log.warn(
            { replica: row.holder, address },
            'a replica that holds a session cannot be reached; the session goes on here',
          );
        if (await sessions.adopt(session.id, row.holder, presence.id)) return adopt(session.id);
      }
      return 'broken';
    },
  };
}
