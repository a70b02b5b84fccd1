import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);

  await create('tasks', (t) => {
    // A digest of the principal, the target and the target's own task id.
    t.string('id', 64).primary();
    t.text('handle').notNullable();
    t.bigInteger('created_at').notNullable().index();
  });
}
