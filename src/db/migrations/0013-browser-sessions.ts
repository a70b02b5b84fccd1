import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

export async function up(db: Knex, collation: string | null): Promise<void> {
  await tableMaker(db, collation)('browser_sessions', (t) => {
    t.string('id', 36).primary();
    // SHA-256 of the cookie's value, in hexadecimal digits. A person who can read the table cannot use the sessions.
    t.string('digest', 64).notNullable().unique();
    t.string('user_id', 36).notNullable().index();
    t.string('method', 256).notNullable();
    t.string('role', 256).notNullable();
    t.string('agent', 256).notNullable();
    t.string('address', 64).notNullable();
    t.bigInteger('signed_in_at').notNullable().index();
    t.bigInteger('seen_at').notNullable().index();
  });
}
