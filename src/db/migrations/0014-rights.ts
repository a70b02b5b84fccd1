import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);
  await create('rights', (t) => {
    t.string('id', 36).primary();
    t.string('subject_type', 8).notNullable();
    t.string('subject_value', 256).notNullable();
    t.string('right', 32).notNullable();
    // Empty: of every owner. A unique key does not cover nulls.
    t.string('owner', 63).notNullable();
    t.bigInteger('created_at').notNullable();
    t.unique(['subject_type', 'subject_value', 'right', 'owner']);
  });
  // JSON; null: the token has all rights of its user.
  if (!(await db.schema.hasColumn('tokens', 'limits'))) await db.schema.alterTable('tokens', (t) => t.text('limits'));
}
