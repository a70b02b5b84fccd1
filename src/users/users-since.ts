/** Reads again the users who were changed while a long list of users was read page by page. */
import { AppError } from '../base/errors.ts';
import { changedBetween, type Position, readPosition } from '../db/changes.ts';
import type { Connection, Database } from '../db/database.ts';

/**
 * Returns the users who were changed after `since`, and the ids of those and of deleted ones, all at one moment. Throws AppError `unavailable` if
 * the changes cannot tell.
 */
export const usersSince = <T>(
  database: Pick<Database, 'snapshot'>,
  since: Position,
  read: (db: Connection, ids: readonly string[]) => Promise<T[]>,
): Promise<{ readonly ids: readonly string[]; readonly users: readonly T[] }> =>
  database.snapshot(async (db) => {
    const changed = await changedBetween(db, since, await readPosition(db));
    if (changed === null) throw new AppError('unavailable', 'Too much has changed while the users were read.', { retryAfter: 1 });
    const ids = [...new Set(changed.flatMap(({ object_type: type, object_id: id }) => (type === 'user' ? [id] : [])))];
    return { ids, users: ids.length === 0 ? [] : await read(db, ids) };
  });
