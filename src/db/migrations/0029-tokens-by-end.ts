import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

/** Logins of strangers can be most of the tokens. Neither the ended tokens nor the API tokens of a key are searched for among them. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  if (await hasIndex(db, 'tokens', 'tokens_by_end', collation)) return;
  await db.raw('create index tokens_by_end on tokens (kind, revoked_at, expires_at, kid)');
}
