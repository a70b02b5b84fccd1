/** Rows in statements of bounded size. */

/** SQLite takes statements up to 1000000 bytes; servers refuse packets over max_allowed_packet, 4 MiB where it was lowered least. */
export const MAX_STATEMENT_BYTES = 480 * 1024;
/** SQLite takes at most 500 rows in the form in which knex inserts them. */
export const MAX_STATEMENT_ROWS = 500;

/** In their order. `bytesOf`: about how many a row is in a statement before escapes, which at most double them. A row that is larger goes alone. */
export function* batches<T>(rows: Iterable<T>, bytesOf: (row: T) => number): Generator<T[]> {
  let batch: T[] = [];
  let size = 0;
  for (const row of rows) {
    const bytes = bytesOf(row);
    if (batch.length > 0 && (size + bytes > MAX_STATEMENT_BYTES || batch.length === MAX_STATEMENT_ROWS)) {
      yield batch;
      batch = [];
      size = 0;
    }
    batch.push(row);
    size += bytes;
  }
  if (batch.length > 0) yield batch;
}

/** For `batches`: what a row of texts and numbers comes to. */
export function bytesOfRow(row: object): number {
  let bytes = 0;
  for (const value of Object.values(row)) bytes += typeof value === 'string' ? Buffer.byteLength(value) + 3 : 20;
  return bytes;
}
