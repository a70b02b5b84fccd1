import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

/** Old changes are found without reading the young ones, or those of policies, which stay. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  if (await hasIndex(db, 'changes', 'changes_age', collation)) return;
  await db.schema.alterTable('changes', (t) => t.index(['object_type', 'created_at'], 'changes_age'));
}
