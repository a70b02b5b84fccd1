/**
 * Bounds the data that targets have sent and no client has read yet: per target, per user, and for the process, across all
 * transports.
 */
import { createStock, isOverdrawn, type Overdrawn, type Stock, type Taken, type Turn } from '../../base/budgets.ts';

/** The first bytes of a stream or body are not counted. Nearly everything that targets send is smaller. */
export const FREE = 64 * 1024;
/** How long a large body waits for room before it is read. */
const WAIT_MS = 30_000;
const LIMITS = { perKey: 64 * 1024 * 1024, all: 128 * 1024 * 1024 };
/** The share of one user in what one target may have: one user always leaves something for the others. */
const SHARE = LIMITS.perKey / 2;
/** The part of all that parts of lists at the aggregate endpoint may have: one list asks all targets at once. */
const OF_LISTS = { perKey: 16 * 1024 * 1024, all: 48 * 1024 * 1024 };
const OF_USER_AT_TARGET = 'unread answers of one target';
const OF_USER = 'unread answers for users';
const OF_USERS_LISTS = 'unread lists for users';

/** The reason why an answer or a stream was abandoned. The message is for administrators. */
export class BacklogFault extends Error {
  constructor({ budget, overdrawn, limit }: Overdrawn) {
    const own = budget === OF_USER ? 'of one user' : budget === OF_USERS_LISTS ? 'of the lists of one user' : 'of this target';
    const common = overdrawn === 'key' ? own : 'of all targets';
    const whose = budget === OF_USER_AT_TARGET ? 'of this target for one user' : common;
    super(`too much ${whose} waits for clients to read it, or for its end: the limit is ${limit / (1024 * 1024)} MiB`);
  }
}

export type UnreadAccount = ReturnType<Unread['open']>;

export type Unread = ReturnType<typeof createUnread>;

/** `answerBytes`: the largest answer that a target may give. One of that size must fit into the share of its user. */
export function createUnread(answerBytes = 0, stock: Stock = createStock('unread answers', LIMITS)) {
  const perKey = Math.max(SHARE, answerBytes);
  const shares = new Map<string, Stock>();
  // A user who holds much at several targets must not use up what is left for the others there.
  const users = createStock(OF_USER, LIMITS);
  const ofLists = Math.max(OF_LISTS.perKey, answerBytes);
  const lists = createStock(OF_USERS_LISTS, { perKey: ofLists, all: Math.max(OF_LISTS.all, 2 * ofLists) });
  return {
    /**
     * Opens an account for one stream or body of the target. `user`: on whose behalf the target sends it; null: several users. `isPart`: of a list at
     * the aggregate endpoint.
     */
    open(targetId: string, user: string | null, isPart = false) {
      const budgets = (): [Stock, string][] => {
        const share = shares.get(targetId) ?? createStock(OF_USER_AT_TARGET, { perKey, all: 2 * perKey });
        shares.set(targetId, share);
        const own: [Stock, string][] =
          user === null
            ? []
            : isPart
              ? [
                  [lists, user],
                  [users, user],
                ]
              : [[users, user]];
        return [[share, user ?? ''], ...own, [stock, targetId]];
      };
      let held: Taken[] = [];
      let turn: Turn | null = null;
      let isClosed = false;
      const giveBack = (): void => {
        for (const each of held) each.giveBack();
        held = [];
      };
      return {
        /** Does the same as `set` for a new account, but waits until there is room. `close` ends the wait. */
        async reserve(bytes: number): Promise<BacklogFault | null> {
          if (bytes <= FREE) return null;
          const timer = setTimeout(() => turn?.leave(), WAIT_MS);
          try {
            for (const [budget, key] of budgets()) {
              turn = budget.queue(key, bytes - FREE);
              const room = await turn.come;
              if (isOverdrawn(room)) return new BacklogFault(room);
              if (isClosed) {
                room.giveBack();
                return null;
              }
              held.push(room);
            }
            return null;
          } finally {
            clearTimeout(timer);
          }
        },
        /**
         * Sets how many bytes wait now. Returns a fault if that is too much: the stream or body must then be abandoned. A closed account takes no
         * room, because nothing would give it back.
         */
        set(bytes: number): BacklogFault | null {
          if (held.length === 0) {
            if (isClosed || bytes <= FREE) return null;
            for (const [budget, key] of budgets()) {
              const first = budget.take(key, 0);
              if (isOverdrawn(first)) {
                // All of them or none: with some, the next call would count for these alone.
                giveBack();
                return new BacklogFault(first);
              }
              held.push(first);
            }
          }
          for (const each of held) {
            const refused = each.set(Math.max(0, bytes - FREE));
            if (refused !== null) return new BacklogFault(refused);
          }
          return null;
        },
        close(): void {
          isClosed = true;
          turn?.leave();
          giveBack();
        },
      };
    },
  };
}
