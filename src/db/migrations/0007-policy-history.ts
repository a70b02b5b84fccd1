import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

export async function up(db: Knex, collation: string | null): Promise<void> {
  if (!(await db.schema.hasColumn('changes', 'reason'))) await db.schema.alterTable('changes', (t) => t.text('reason'));
  // There is no unique key: names are unique after a transaction, but not necessarily within it.
  if (!(await db.schema.hasColumn('policies', 'managed_as')))
    await db.schema.alterTable('policies', (t) => t.string('managed_as', 200));
  if (await hasIndex(db, 'changes', 'changes_object_type', collation)) return;
  await db.schema.alterTable('changes', (t) => t.index(['object_type', 'revision'], 'changes_object_type'));
}
