import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);
  await create('policy_drafts', (t) => {
    t.string('name', 63).primary();
    t.string('owner', 63).notNullable();
    t.boolean('prune').notNullable();
    t.boolean('adopt').notNullable();
    // JSON: the texts of the files, by file name.
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
    // Advances with each write, so that counts of two replicas are not added twice.
    t.integer('version').notNullable();
    // JSON. Long data that rarely changes has its own column.
    t.text('progress', 'mediumtext').notNullable();
    t.text('flips', 'mediumtext').notNullable();
    // The owner: the replica that follows the log for this draft, and until when.
    t.string('holder', 36);
    t.bigInteger('held_until');
  });
}
