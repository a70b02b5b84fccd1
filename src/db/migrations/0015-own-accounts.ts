import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

/** Creates the tables for users' own accounts at targets. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);
  await create('connections', (t) => {
    t.string('id', 36).primary();
    t.string('user_id', 36).notNullable().index();
    t.string('target_id', 36).notNullable().index();
    t.string('issuer', 512).notNullable();
    t.text('scope').notNullable();
    t.text('sealed', 'mediumtext').notNullable();
    // Rises with each renewal of the tokens.
    t.integer('version').notNullable();
    // Why the user must connect again; null: the connection works as far as the gateway knows.
    t.string('problem', 32);
    // The scopes that the target asked for besides the granted ones.
    t.text('wanted_scope');
    // The lock of a renewal. A time that has passed means that a renewal began and its end is not known.
    t.string('renewing_by', 36);
    t.bigInteger('renewing_until');
    t.bigInteger('created_at').notNullable();
    t.bigInteger('renewed_at').notNullable();
    // An ended connection stays until its tokens are revoked at the authorization server.
    t.bigInteger('ended_at');
    t.bigInteger('revoke_at').index();
    t.integer('attempts').notNullable().defaultTo(0);
  });
  await create('connection_flows', (t) => {
    // SHA-256 of the parameter `state`.
    t.string('id', 64).primary();
    t.string('user_id', 36).notNullable().index();
    t.string('browser_session_id', 36).notNullable();
    t.string('target_id', 36).notNullable();
    t.text('sealed', 'mediumtext').notNullable();
    t.bigInteger('created_at').notNullable().index();
  });
  await create('connection_clients', (t) => {
    // SHA-256 of target and issuer.
    t.string('id', 64).primary();
    t.string('target_id', 36).notNullable().index();
    t.string('issuer', 512).notNullable();
    t.string('client_id', 1024).notNullable();
    t.boolean('registered').notNullable();
    t.text('sealed', 'mediumtext').notNullable();
    t.bigInteger('created_at').notNullable();
  });
}
