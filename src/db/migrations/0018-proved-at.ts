import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

/** A replica of the older version may still write these tables, so the new columns may be null. */
const COLUMNS: readonly (readonly [table: string, column: string, type: string])[] = [
  // When the user last proved who they are. null: an older version made the session, and `signed_in_at` tells it. 0: unknown.
  ['browser_sessions', 'proved_at', 'bigint'],
  // Whose limit the row counts against: a network, or null.
  ['oauth_clients', 'pool', 'varchar(64)'],
  ['oauth_records', 'pool', 'varchar(64)'],
];

export async function up(db: Knex, collation: string | null): Promise<void> {
  for (const [table, column, type] of COLUMNS) {
    if (!(await db.schema.hasColumn(table, column))) await db.raw(`alter table ${table} add column ${column} ${type}`);
  }
  for (const table of ['oauth_clients', 'oauth_records']) {
    const name = `${table}_pool`;
    if (!(await hasIndex(db, table, name, collation))) await db.raw(`create index ${name} on ${table} (pool)`);
  }
}
