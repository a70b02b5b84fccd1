import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);

  await create('sessions', (t) => {
    t.string('id', 36).primary();
    t.string('issuer', 512).notNullable();
    t.string('user_id', 256).notNullable().index();
    t.string('target_id', 36);
    t.string('revision', 16).notNullable();
    // What the client declared when it opened the session. The gateway sends it again when it opens a new upstream session.
    t.text('client', 'mediumtext').notNullable();
    t.string('holder', 36);
    t.bigInteger('created_at').notNullable().index();
    t.bigInteger('seen_at').notNullable();
    t.bigInteger('ended_at');
    t.string('ended_by', 16);
    t.index(['ended_by', 'created_at']);
  });
  await create('session_upstreams', (t) => {
    t.string('session_id', 36).notNullable();
    t.string('cause', 64).notNullable();
    t.text('upstream_id');
    t.string('revision', 16).notNullable();
    t.bigInteger('created_at').notNullable().index();
    t.primary(['session_id', 'cause']);
  });
  await create('session_settings', (t) => {
    t.string('session_id', 36).notNullable();
    t.string('target_id', 36).notNullable();
    t.string('key', 64).notNullable();
    t.text('value').notNullable();
    t.bigInteger('created_at').notNullable().index();
    t.primary(['session_id', 'target_id', 'key']);
  });
  await create('recycles', (t) => {
    t.string('user_id', 256).notNullable();
    t.string('target_id', 36).notNullable();
    t.bigInteger('epoch').notNullable();
    t.primary(['user_id', 'target_id']);
  });
  await create('replicas', (t) => {
    t.string('id', 36).primary();
    t.text('address').notNullable();
    t.bigInteger('sequence').notNullable();
    t.bigInteger('revision').notNullable();
    t.string('engine_hash', 64).notNullable();
    t.bigInteger('started_at').notNullable();
    t.bigInteger('seen_at').notNullable();
  });
}
