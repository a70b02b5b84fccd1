/**
 * Runs the statements of every request without knex's query builder: building a statement, binding its values and reading its
 * answer costs knex many times as much as sending it. Connections, transactions, errors and their codes are those of knex.
 */
import type { Connection, Transaction } from './database.ts';

export type Value = string | number | null;

/** Returns a value as an SQL literal. */
export type Literal = (value: Value) => string;

interface Client {
  readonly dialect: string;
  readonly driver: { escape(value: Value): string };
  acquireConnection(): Promise<{ destroy(): void }>;
  releaseConnection(connection: unknown): Promise<void>;
  /** Runs the statement unchanged. */
  _query(connection: unknown, query: { sql: string }): Promise<{ readonly response?: unknown }>;
}

const clientOf = (db: Connection): Client => db.client;

const SPECIAL = /['\0]/;

/** SQLite has no escape except for the quote, and treats a NUL as the end of the statement. */
function sqliteLiteral(value: Value): string {
  if (typeof value !== 'string') return value === null ? 'null' : `${value}`;
  return `'${SPECIAL.test(value) ? value.replaceAll("'", "''").replaceAll('\0', '\ufffd') : value}'`;
}

export function literalOf(db: Connection): Literal {
  const { dialect, driver } = clientOf(db);
  // The driver escapes with backslashes. The sql_mode that `prepare` in database.ts sets allows them.
  return dialect === 'mysql' ? (value) => driver.escape(value) : sqliteLiteral;
}

/**
 * Runs `sql` unchanged, on a pool connection or on the transaction's own. Returns the driver's result: `[rows, fields]` for
 * MySQL, nothing useful for SQLite. `isOfUse`: whether the connection to MySQL is kept after this result.
 */
export async function statement(
  db: Connection | Transaction,
  sql: string,
  isOfUse: (response: unknown) => boolean = () => true,
): Promise<unknown> {
  const client = clientOf(db);
  const connection = await client.acquireConnection();
  try {
    // The pool may have given its connection to other work by now.
    if ('isCompleted' in db && db.isCompleted()) throw new Error('The transaction has ended.');
    const { response } = await client._query(connection, { sql });
    if (!isOfUse(response)) connection.destroy();
    return response;
  } finally {
    void client.releaseConnection(connection);
  }
}

const DUPLICATE = new Set(['ER_DUP_ENTRY', 'SQLITE_CONSTRAINT', 'SQLITE_CONSTRAINT_UNIQUE', 'SQLITE_CONSTRAINT_PRIMARYKEY']);

/** Whether an insert failed because its key is taken. */
export function isDuplicate(error: unknown): boolean {
  return DUPLICATE.has((error as { code?: string }).code ?? '');
}
