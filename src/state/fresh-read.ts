/** Reads state that is not in the live snapshot, and is as fresh (law 4). */
import { AppError } from '../base/errors.ts';
import { readPosition } from '../db/changes.ts';
import type { Connection, Database } from '../db/database.ts';
import type { Snapshot } from './admission.ts';

/**
 * Returns what `read` finds in a snapshot of the database that is at least as new as the call, and live state that is. Throws AppError
 * `unavailable` if the database has nothing new enough. `inTurn` runs the work that needs a connection, when it is its turn.
 */
export type FreshRead = <T>(
  read: (db: Connection) => Promise<T>,
  inTurn: <R>(work: () => Promise<R>) => Promise<R>,
) => Promise<{ readonly snapshot: Snapshot; readonly found: T }>;

/** `fresh`: the freshness gate. */
export function createFreshRead({ snapshot }: Pick<Database, 'snapshot'>, fresh: () => Promise<Snapshot>): FreshRead {
  return async (read, inTurn) => {
    // All requests wait for the gate together. If it fails, no request waits for a turn.
    const state = await fresh();
    const { sequence, found } = await inTurn(() =>
      snapshot(async (db) => {
        const position = await readPosition(db);
        return { sequence: position.sequence, found: await read(db) };
      }),
    );
    // Behind a proxy, connections may lead to different servers, and one of them may lag.
    if (sequence < state.sequence) {
      throw new AppError('unavailable', 'The database server does not have the newest state. Try again.', { retryAfter: 1 });
    }
    return { snapshot: state, found };
  };
}
