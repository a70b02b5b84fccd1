import type { Knex } from 'knex';

export async function up(db: Knex): Promise<void> {
  if (await db.schema.hasColumn('audit_decisions', 'arguments')) return;
  await db.schema.alterTable('audit_decisions', (t) => t.text('arguments'));
}
