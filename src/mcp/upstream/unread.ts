/** Bounds the data that targets have sent and no client has read yet: per target and for the process, across all transports. */
import { createStock, isOverdrawn, type Overdrawn, type Stock, type Taken, type Turn } from '../../base/budgets.ts';

/** The first bytes of a stream or body are not counted. Nearly everything that targets send is smaller. */
export const FREE = 64 * 1024;
/** How long a large body waits for room before it is read. */
const WAIT_MS = 30_000;
const LIMITS = { perKey: 32 * 1024 * 1024, all: 96 * 1024 * 1024 };

/** The reason why an answer or a stream was abandoned. The message is for administrators. */
export class BacklogFault extends Error {
  constructor({ overdrawn, limit }: Overdrawn) {
    const whose = overdrawn === 'key' ? 'of this target' : 'of all targets';
    super(`too much ${whose} waits for clients to read it, or for its end: the limit is ${limit / (1024 * 1024)} MiB`);
  }
}

export interface Unread {
  /** Opens an account for one stream or body of the target. */
  open(targetId: string): UnreadAccount;
}

export interface UnreadAccount {
  /** Sets how many bytes wait now. Returns a fault if that is too much: the stream or body must then be abandoned. */
  set(bytes: number): BacklogFault | null;
  /** Does the same for a new account, but waits until there is room. `close` ends the wait. */
  reserve(bytes: number): Promise<BacklogFault | null>;
  close(): void;
}

export function createUnread(stock: Stock = createStock('unread answers', LIMITS)): Unread {
  return {
    open(targetId) {
      let taken: Taken | null = null;
      let turn: Turn | null = null;
      let isClosed = false;
      return {
        async reserve(bytes) {
          if (bytes <= FREE) return null;
          turn = stock.queue(targetId, bytes - FREE);
          const timer = setTimeout(turn.leave, WAIT_MS);
          const room = await turn.come;
          clearTimeout(timer);
          if (isOverdrawn(room)) return new BacklogFault(room);
          if (isClosed) room.giveBack();
          else taken = room;
          return null;
        },
        set(bytes) {
          if (taken === null) {
            if (bytes <= FREE) return null;
            const first = stock.take(targetId, 0);
            if (isOverdrawn(first)) return new BacklogFault(first);
            taken = first;
          }
          const refused = taken.set(Math.max(0, bytes - FREE));
          return refused === null ? null : new BacklogFault(refused);
        },
        close() {
          isClosed = true;
          turn?.leave();
          taken?.giveBack();
          taken = null;
        },
      };
    },
  };
}
