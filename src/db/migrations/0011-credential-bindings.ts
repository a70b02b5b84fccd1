import type { Knex } from 'knex';

/** Marks credentials bound in the old form; the next start binds them again, with the open vault. This may run again. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  await db('target_credentials')
    .whereNot('origin', '')
    .whereNot('origin', 'like', 'bound:%')
    .whereNot('origin', 'like', 'rebind:%')
    .update({ origin: db.raw(collation === null ? "'rebind:' || origin" : "concat('rebind:', origin)") });
}
