import type { Knex } from 'knex';

/**
 * Counters that a transaction advances when it makes something that a change of the same row must end: sign-ins of the user, grants by
 * assertions of the provider. Members of a cluster do not see each other's locks, but do not let two transactions that overlap write a row.
 */
export async function up(db: Knex): Promise<void> {
  for (const table of ['users', 'providers']) {
    if (await db.schema.hasColumn(table, 'sign_ins')) continue;
    await db.schema.alterTable(table, (t) => t.bigInteger('sign_ins').notNullable().defaultTo(0));
  }
}
