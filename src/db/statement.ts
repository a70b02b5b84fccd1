/**
 * Statements that run with every request: to build one, bind its values and read its answer costs knex many times what it
 * costs to send it. Connections, transactions, faults and their codes are those of knex.
 */
import type { Connection, Transaction } from './database.ts';

export type Value = string | number | null;

/** A value as a statement has it. */
export type Literal = (value: Value) => string;

interface Client {
  readonly dialect: string;
  readonly driver: { escape(value: Value): string };
  acquireConnection(): Promise<unknown>;
  releaseConnection(connection: unknown): Promise<void>;
  /** Runs the statement as it is. */
  _query(connection: unknown, query: { sql: string }): Promise<{ readonly response?: unknown }>;
}

const clientOf = (db: Connection): Client => db.client;

const SPECIAL = /['\0]/;

/** SQLite knows no escape but that of the quote, and takes a NUL for the end of the statement. */
function sqliteLiteral(value: Value): string {
  if (typeof value !== 'string') return value === null ? 'null' : `${value}`;
  return `'${SPECIAL.test(value) ? value.replaceAll("'", "''").replaceAll('\0', '\ufffd') : value}'`;
}

export function literalOf(db: Connection): Literal {
  const { dialect, driver } = clientOf(db);
  // By backslashes, which the sql_mode of `prepare` in database.ts lets it.
  return dialect === 'mysql' ? (value) => driver.escape(value) : sqliteLiteral;
}

/**
 * Runs `sql` as it is, on a connection of the pool or the transaction's own. Gives what the driver gives: of MySQL `[rows, fields]`,
 * of SQLite nothing that is of use.
 */
export async function statement(db: Connection | Transaction, sql: string): Promise<unknown> {
  const client = clientOf(db);
  const connection = await client.acquireConnection();
  try {
    // Its connection may be another's by now.
    if ('isCompleted' in db && db.isCompleted()) throw new Error('The transaction has ended.');
    return (await client._query(connection, { sql })).response;
  } finally {
    void client.releaseConnection(connection);
  }
}
