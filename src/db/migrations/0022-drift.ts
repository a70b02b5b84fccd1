import type { Knex } from 'knex';
import { hasIndex, tableMaker } from '../tables.ts';

/** What changes policies outside of their files, and what the owner of the files is. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  if (!(await db.schema.hasColumn('policies', 'drift_since')))
    await db.schema.alterTable('policies', (t) => t.bigInteger('drift_since'));
  // Policies that were deleted outside of their files.
  await tableMaker(db, collation)('deleted_policies', (t) => {
    t.string('managed_as', 200).primary();
    t.bigInteger('drift_since').notNullable();
  });
  // null: an older version wrote the change, so it may concern every owner. Empty: no owner.
  if (!(await db.schema.hasColumn('changes', 'owner'))) await db.schema.alterTable('changes', (t) => t.string('owner', 63));
  if (!(await db.schema.hasColumn('changes', 'override'))) await db.schema.alterTable('changes', (t) => t.boolean('override'));
  if (await hasIndex(db, 'changes', 'changes_owner', collation)) return;
  await db.schema.alterTable('changes', (t) => t.index(['object_type', 'owner', 'revision'], 'changes_owner'));
}
