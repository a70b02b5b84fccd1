import type { Knex } from 'knex';

/**
 * Marks credentials that are bound in the old form: to the origin of a URL, or to part of a process's environment. The next start
 * binds them again, when the vault is open. Only rows in the old form are marked, so this may run again.
 */
export async function up(db: Knex, collation: string | null): Promise<void> {
  await db('target_credentials')
    .whereNot('origin', '')
    .whereNot('origin', 'like', 'bound:%')
    .whereNot('origin', 'like', 'rebind:%')
    .update({ origin: db.raw(collation === null ? "'rebind:' || origin" : "concat('rebind:', origin)") });
}
