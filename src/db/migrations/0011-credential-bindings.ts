import type { Knex } from 'knex';

/**
 * Credentials were bound to the origin of a URL, or to a part of a process's environment. Each is marked here, and bound again at
 * the start that follows, when the vault is open. Only rows of the former kind are marked, so this may run again.
 */
export async function up(db: Knex, collation: string | null): Promise<void> {
  await db('target_credentials')
    .whereNot('origin', '')
    .whereNot('origin', 'like', 'bound:%')
    .whereNot('origin', 'like', 'rebind:%')
    .update({ origin: db.raw(collation === null ? "'rebind:' || origin" : "concat('rebind:', origin)") });
}
