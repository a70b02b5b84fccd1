import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);
  await create('policy_drafts', (t) => {
    t.string('name', 63).primary();
    t.string('owner', 63).notNullable();
    t.boolean('prune').notNullable();
    t.boolean('adopt').notNullable();
    // JSON: texts by file name.
    t.text('files', 'mediumtext').notNullable();
    t.text('tests', 'mediumtext').notNullable();
    t.string('hash', 64).notNullable();
    t.string('author_id', 64).notNullable();
    t.string('author_email', 320).notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
  });
  await create('policy_shadows', (t) => {
    t.string('draft', 63).primary();
    t.bigInteger('since').notNullable();
    // Moves with each write: what two replicas have counted is counted once.
    t.integer('version').notNullable();
    // JSON, and a column of its own for what is long and seldom changes.
    t.text('progress', 'mediumtext').notNullable();
    t.text('flips', 'mediumtext').notNullable();
    // The replica that follows the log for it, and until when.
    t.string('holder', 36);
    t.bigInteger('held_until');
  });
}
