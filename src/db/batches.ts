/** Statements of limited size, because everybody waits for a statement on SQLite: inserts of many rows, and deletions of old ones. */

import type { Connection } from './database.ts';

/**
 * SQLite accepts statements of up to 1,000,000 bytes. MySQL refuses packets above max_allowed_packet, which is at least 4 MiB by
 * default.
 */
export const MAX_STATEMENT_BYTES = 480 * 1024;
/** SQLite accepts at most 500 rows in the form of knex's inserts. */
export const MAX_STATEMENT_ROWS = 500;

/**
 * Splits the rows into batches and keeps their order. `bytesOf` estimates the size of a row in a statement; escaping at most
 * doubles it. A larger row gets its own batch.
 */
export function* batches<T>(rows: Iterable<T>, bytesOf: (row: T) => number, mostBytes = MAX_STATEMENT_BYTES): Generator<T[]> {
  let batch: T[] = [];
  let size = 0;
  for (const row of rows) {
    const bytes = bytesOf(row);
    if (batch.length > 0 && (size + bytes > mostBytes || batch.length === MAX_STATEMENT_ROWS)) {
      yield batch;
      batch = [];
      size = 0;
    }
    batch.push(row);
    size += bytes;
  }
  if (batch.length > 0) yield batch;
}

/** How many further rows fit into the room that is left, if they are as large as the `count` rows that have used `used` of it. At least 1. */
export const furtherRows = (left: number, used: number, count: number): number =>
  Math.max(1, Math.floor((left * count) / Math.max(1, used)));

/** Estimates, for `batches`, the size of a row of texts and numbers in bytes. */
export function bytesOfRow(row: object): number {
  let bytes = 0;
  for (const value of Object.values(row)) bytes += typeof value === 'string' ? Buffer.byteLength(value) + 3 : 20;
  return bytes;
}

/**
 * Deletes the oldest rows, whose time in the column `time` is before `before`, at most `limit`. `key`: of the table. Returns whether there may be
 * more.
 */
export async function deleteOldest(
  db: Connection,
  {
    table,
    key,
    time = 'created_at',
    before,
  }: { readonly table: string; readonly key: readonly string[]; readonly time?: string; readonly before: number },
  limit: number,
): Promise<boolean> {
  const rows: Readonly<Record<string, string | number>>[] = await db(table)
    .where(time, '<', before)
    .orderBy(time)
    .limit(limit)
    .select(...key);
  const keys = rows.map((row) => key.map((column) => row[column] ?? ''));
  if (keys.length > 0)
    await db(table)
      .whereIn([...key], keys)
      .andWhere(time, '<', before)
      .delete();
  return rows.length === limit;
}
