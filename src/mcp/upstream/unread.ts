/** Bounds the data that targets have sent and no client has read yet: per target and for the process, across all transports. */
import { createStock, isOverdrawn, type Overdrawn, type Stock, type Taken, type Turn } from '../../base/budgets.ts';

/** The first bytes of a stream or body are not counted. Nearly everything that targets send is smaller. */
export const FREE = 64 * 1024;
/** How long a large body waits for room before it is read. */
const WAIT_MS = 30_000;
const LIMITS = { perKey: 64 * 1024 * 1024, all: 128 * 1024 * 1024 };
/** The same within one target, by user: one of them always leaves something for the others. */
const SHARES = { perKey: LIMITS.perKey / 2, all: LIMITS.perKey };
const USERS = 'unread answers of one target';

/** The reason why an answer or a stream was abandoned. The message is for administrators. */
export class BacklogFault extends Error {
  constructor({ budget, overdrawn, limit }: Overdrawn) {
    const whose = budget === USERS ? 'of this target for one user' : overdrawn === 'key' ? 'of this target' : 'of all targets';
    super(`too much ${whose} waits for clients to read it, or for its end: the limit is ${limit / (1024 * 1024)} MiB`);
  }
}

export interface Unread {
  /** Opens an account for one stream or body of the target. `user`: on whose behalf the target sends it. */
  open(targetId: string, user: string): UnreadAccount;
}

export interface UnreadAccount {
  /** Sets how many bytes wait now. Returns a fault if that is too much: the stream or body must then be abandoned. */
  set(bytes: number): BacklogFault | null;
  /** Does the same for a new account, but waits until there is room. `close` ends the wait. */
  reserve(bytes: number): Promise<BacklogFault | null>;
  close(): void;
}

export function createUnread(stock: Stock = createStock('unread answers', LIMITS)): Unread {
  const shares = new Map<string, Stock>();
  return {
    open(targetId, user) {
      const budgets = (): [Stock, string][] => {
        const share = shares.get(targetId) ?? createStock(USERS, SHARES);
        shares.set(targetId, share);
        return [
          [share, user],
          [stock, targetId],
        ];
      };
      let held: Taken[] = [];
      let turn: Turn | null = null;
      let isClosed = false;
      return {
        async reserve(bytes) {
          if (bytes <= FREE) return null;
          for (const [budget, key] of budgets()) {
            turn = budget.queue(key, bytes - FREE);
            const timer = setTimeout(turn.leave, WAIT_MS);
            const room = await turn.come;
            clearTimeout(timer);
            if (isOverdrawn(room)) return new BacklogFault(room);
            if (isClosed) {
              room.giveBack();
              return null;
            }
            held.push(room);
          }
          return null;
        },
        set(bytes) {
          if (held.length === 0) {
            if (bytes <= FREE) return null;
            for (const [budget, key] of budgets()) {
              const first = budget.take(key, 0);
              if (isOverdrawn(first)) return new BacklogFault(first);
              held.push(first);
            }
          }
          for (const each of held) {
            const refused = each.set(Math.max(0, bytes - FREE));
            if (refused !== null) return new BacklogFault(refused);
          }
          return null;
        },
        close() {
          isClosed = true;
          turn?.leave();
          for (const each of held) each.giveBack();
          held = [];
        },
      };
    },
  };
}
