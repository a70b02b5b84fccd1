import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);
  await create('invariants', (t) => {
    t.string('id', 36).primary();
    // Advances with each change. Ids are never used again, so id and version identify the content.
    t.integer('version').notNullable();
    t.string('name', 256).notNullable();
    t.string('reason', 1024).notNullable();
    t.boolean('enabled').notNullable();
    // JSON.
    t.text('never', 'mediumtext').notNullable();
    t.text('exceptions', 'mediumtext').notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
  });
}
