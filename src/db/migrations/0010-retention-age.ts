import type { Knex } from 'knex';

/**
 * Adds the time of the newest record that retention removed, and how far an older version removed records without checking their
 * age.
 */
export async function up(db: Knex): Promise<void> {
  if (!(await db.schema.hasColumn('audit_retention', 'newest'))) {
    await db.schema.alterTable('audit_retention', (t) => t.bigInteger('newest'));
  }
  if (!(await db.schema.hasColumn('audit_retention', 'unproven'))) {
    await db.schema.alterTable('audit_retention', (t) => t.string('unproven', 64));
  }
}
