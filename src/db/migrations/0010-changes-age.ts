import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

/** Adds an index that finds old changes without reading recent ones or those of policies, which are kept. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  if (await hasIndex(db, 'changes', 'changes_age', collation)) return;
  await db.schema.alterTable('changes', (t) => t.index(['object_type', 'created_at'], 'changes_age'));
}
