import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

/** Open sessions are counted in the index alone, because a user can open very many. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  if (await hasIndex(db, 'sessions', 'sessions_open', collation)) return;
  await db.raw('create index sessions_open on sessions (created_at, ended_at, user_id, target_id)');
}
