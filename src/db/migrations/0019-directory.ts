import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

/** What companies' directories send over SCIM. A member of a group is a user in `directory_users`. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);
  await create('directory_tokens', (t) => {
    t.string('provider_id', 36).primary();
    // SHA-256 of the token.
    t.string('hash', 64).notNullable();
    t.bigInteger('created_at').notNullable();
  });
  await create('directory_users', (t) => {
    t.string('user_id', 36).primary();
    t.string('provider_id', 36).notNullable();
    // Also the subject of the user.
    t.string('external_id', 255).notNullable();
    t.string('user_name', 256).notNullable();
    // The user name in lower case.
    t.string('name_key', 512).notNullable();
    t.boolean('active').notNullable();
    // JSON: the attributes that only the directory reads.
    t.text('document', 'mediumtext').notNullable();
    t.integer('version').notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
    t.unique(['provider_id', 'name_key']);
    t.unique(['provider_id', 'external_id']);
    t.unique(['provider_id', 'user_id']);
  });
  await create('directory_groups', (t) => {
    t.string('id', 36).primary();
    t.string('provider_id', 36).notNullable();
    t.string('name', 256).notNullable();
    t.string('name_key', 512).notNullable();
    t.string('external_id', 255);
    t.integer('version').notNullable();
    // Whether records of members may still have an earlier name of the group.
    t.boolean('stale').notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
    t.unique(['provider_id', 'name_key']);
    t.unique(['provider_id', 'id']);
    t.index(['provider_id', 'external_id']);
  });
  await create('directory_members', (t) => {
    t.string('group_id', 36).notNullable();
    t.string('user_id', 36).notNullable();
    t.primary(['group_id', 'user_id']);
    t.index(['user_id']);
  });
}
