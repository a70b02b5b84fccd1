import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

/** A grant can have very many used refresh tokens, and few that are not used. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  if (await hasIndex(db, 'oauth_records', 'oauth_records_unused', collation)) return;
  await db.raw('create index oauth_records_unused on oauth_records (grant_id, consumed_at)');
}
