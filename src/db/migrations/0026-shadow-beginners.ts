import type { Knex } from 'knex';

/** Who has begun each shadow, because the shadows of one user are limited. Those that there are count for the authors of their drafts. */
export async function up(db: Knex): Promise<void> {
  if (!(await db.schema.hasColumn('policy_shadows', 'begun_by')))
    await db.schema.alterTable('policy_shadows', (t) => t.string('begun_by', 64));
  await db.raw(
    'update policy_shadows set begun_by = (select author_id from policy_drafts where policy_drafts.name = policy_shadows.draft)',
  );
}
