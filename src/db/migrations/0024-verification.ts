import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

/** What the newest verification of the audit log found, in one row. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  await tableMaker(db, collation)('audit_verification', (t) => {
    t.integer('id').primary();
    t.text('statement').notNullable();
  });
}
