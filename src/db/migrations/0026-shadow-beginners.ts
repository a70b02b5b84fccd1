import type { Knex } from 'knex';

/** Who has begun each shadow, because the shadows of one user are limited. null: it was begun before this was stored. */
export async function up(db: Knex): Promise<void> {
  await db.schema.alterTable('policy_shadows', (t) => {
    t.string('begun_by', 64);
  });
}
