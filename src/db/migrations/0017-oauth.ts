import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);
  await create('grants', (t) => {
    t.string('id', 36).primary();
    t.string('user_id', 36).notNullable().index();
    // The id in `oauth_clients`.
    t.string('client', 36).notNullable().index();
    // JSON: the scopes by resource, as the client names it; and the OpenID scopes.
    t.text('resources').notNullable();
    t.string('openid', 256).notNullable();
    t.text('redirect_uri').notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('used_at').notNullable();
    t.bigInteger('expires_at').notNullable().index();
  });
  await create('oauth_clients', (t) => {
    t.string('id', 36).primary();
    // SHA-256 of the client id, which may be a long URL.
    t.string('key', 64).notNullable().unique();
    t.text('client_id').notNullable();
    t.string('kind', 16).notNullable();
    t.text('name').notNullable();
    // JSON; null: the metadata is in the client's document, or built in.
    t.text('metadata', 'mediumtext');
    t.boolean('enabled').notNullable();
    t.bigInteger('created_at').notNullable();
    // null: no user has ever approved the client.
    t.bigInteger('used_at');
    t.index(['kind', 'used_at', 'created_at']);
  });
  await create('oauth_records', (t) => {
    t.string('kind', 32).notNullable();
    // SHA-256 of the id, so that a person who can read the table cannot use a code or a refresh token.
    t.string('key', 64).notNullable();
    t.text('payload', 'mediumtext').notNullable();
    t.string('grant_id', 36).index();
    // SHA-256 of the code that a person types.
    t.string('user_code', 64).index();
    // How often a refresh token was rotated before.
    t.integer('rotation');
    t.bigInteger('created_at').notNullable();
    t.bigInteger('expires_at').notNullable().index();
    t.bigInteger('consumed_at');
    t.bigInteger('answered_at');
    t.bigInteger('polled_at');
    t.primary(['kind', 'key']);
  });
}
