/** What has come of targets and is not read yet: bounded for each target and for the process, across transports. */
import { createStock, isOverdrawn, type Overdrawn, type Stock, type Taken } from '../budgets.ts';

/** Less of a stream or a body is not counted: nearly all that targets send. */
const FREE = 64 * 1024;
const LIMITS = { perKey: 32 * 1024 * 1024, all: 96 * 1024 * 1024 };

/** Why an answer or a stream was given up; the message is for administrators. */
export class BacklogFault extends Error {
  constructor({ overdrawn, limit }: Overdrawn) {
    const whose = overdrawn === 'key' ? 'of this target' : 'of all targets';
    super(`too much ${whose} waits for clients to read it, or for its end: the limit is ${limit / (1024 * 1024)} MiB`);
  }
}

export interface Unread {
  /** For one stream or body of the target. */
  open(targetId: string): UnreadAccount;
}

export interface UnreadAccount {
  /** What waits now. A fault: it is too much, and has to be given up. */
  set(bytes: number): BacklogFault | null;
  close(): void;
}

export function createUnread(stock: Stock = createStock('unread answers', LIMITS)): Unread {
  return {
    open(targetId) {
      let taken: Taken | null = null;
      return {
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
          taken?.giveBack();
          taken = null;
        },
      };
    },
  };
}
