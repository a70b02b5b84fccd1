/**
 * Writes and deletes many rows. knex takes longer to build such a statement than the database to run it, and other requests wait for the
 * transaction.
 */
import { pause } from '../base/turns/slices.ts';
import { batches, bytesOfRow } from './batches.ts';
import type { Connection } from './database.ts';
import { literalOf, statement, type Value } from './statement.ts';

/** A larger statement would hold the event loop while its text is made. */
const STATEMENT_BYTES = 128 * 1024;

type Row = Readonly<Record<string, Value | boolean | undefined>>;

/** Runs the statements one after the other, and makes the text of the next one meanwhile. */
async function runEach(db: Connection, texts: Iterable<string>): Promise<void> {
  let running: Promise<unknown> = Promise.resolve();
  for (const text of texts) {
    await running;
    running = statement(db, text);
    // Awaited below.
    running.catch(() => undefined);
    await pause();
  }
  await running;
}

/** All rows have the columns of the first one. `key`: rows whose key exists are replaced. */
export async function insertRows(
  db: Connection,
  table: string,
  rows: Iterable<object>,
  key: string | null = null,
): Promise<void> {
  const [literal, isMysql] = [literalOf(db), db.client.dialect === 'mysql'];
  const textOf = (value: Row[string]): string => literal(typeof value === 'boolean' ? Number(value) : (value ?? null));
  function* texts(): Generator<string> {
    for (const batch of batches(rows as Iterable<Row>, bytesOfRow, STATEMENT_BYTES)) {
      const columns = Object.keys(batch[0] ?? {});
      const values = batch.map((row) => `(${columns.map((column) => textOf(row[column])).join()})`);
      const named = columns.map((column) => `\`${column}\``);
      const replaced = named.map((column) => `${column} = ${isMysql ? `values(${column})` : `excluded.${column}`}`);
      const end =
        key === null
          ? ''
          : `${isMysql ? ' on duplicate key update ' : ` on conflict (\`${key}\`) do update set `}${replaced.join()}`;
      yield `insert into \`${table}\` (${named.join()}) values ${values.join()}${end}`;
    }
  }
  await runEach(db, texts());
}

export async function deleteRows(db: Connection, table: string, column: string, values: Iterable<string>): Promise<void> {
  const literal = literalOf(db);
  function* texts(): Generator<string> {
    for (const batch of batches(values, ({ length }) => length, STATEMENT_BYTES))
      yield `delete from \`${table}\` where \`${column}\` in (${batch.map(literal).join()})`;
  }
  await runEach(db, texts());
}
