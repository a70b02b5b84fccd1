import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

/** There are no foreign keys. Administrative transactions run one at a time and check their references. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);

  await create('counter', (t) => {
    t.integer('id').primary();
    t.bigInteger('sequence').notNullable();
    t.string('nonce', 32).notNullable();
    t.bigInteger('revision').notNullable();
  });
  await create('changes', (t) => {
    t.bigInteger('sequence').primary();
    t.string('nonce', 32).notNullable();
    t.bigInteger('revision').notNullable();
    t.bigInteger('created_at').notNullable();
    t.string('actor_id', 36).notNullable();
    t.string('actor_email', 320).notNullable();
    t.string('request_id', 64).notNullable();
    t.string('action', 64).notNullable();
    t.string('object_type', 32).notNullable();
    t.string('object_id', 64).notNullable();
    t.text('before', 'mediumtext');
    t.text('after', 'mediumtext');
  });
  await create('first_administrator', (t) => {
    t.integer('id').primary();
    t.string('user_id', 36).notNullable();
  });
  await create('users', (t) => {
    t.string('id', 36).primary();
    t.string('email', 320).notNullable();
    t.string('email_key', 320).notNullable().unique();
    t.string('password_hash', 255).notNullable();
    t.string('role', 256).notNullable();
    t.text('groups').notNullable();
    t.boolean('enabled').notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
  });
  await create('tokens', (t) => {
    t.string('id', 36).primary();
    t.string('user_id', 36).notNullable().index();
    t.string('kind', 8).notNullable();
    t.string('name', 256);
    t.string('kid', 64).notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('expires_at');
    t.bigInteger('revoked_at');
  });
  await create('secret_keys', (t) => {
    t.string('id', 64).primary();
    t.string('purpose', 16).notNullable();
    t.text('public_jwk');
    t.text('sealed').notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('retired_at');
  });
  await create('targets', (t) => {
    t.string('id', 36).primary();
    t.string('name', 63).notNullable().unique();
    t.text('description');
    t.string('transport', 16).notNullable();
    t.string('url', 2048).notNullable();
    t.boolean('enabled').notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
  });
  await create('credentials', (t) => {
    t.string('target_id', 36).notNullable();
    t.string('subject_type', 16).notNullable();
    t.string('subject_value', 256).notNullable();
    t.string('header', 256).notNullable();
    t.text('sealed', 'mediumtext').notNullable();
    t.string('origin', 2048).notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
    t.primary(['target_id', 'subject_type', 'subject_value']);
  });
  await create('policies', (t) => {
    t.string('id', 36).primary();
    t.string('name', 256).notNullable();
    t.text('description');
    t.string('target_id', 36).index();
    t.string('resource_type', 16).notNullable();
    t.string('resource_pattern', 512);
    t.string('effect', 8).notNullable();
    t.integer('priority').notNullable();
    t.boolean('enabled').notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
  });
  await create('policy_subjects', (t) => {
    t.string('id', 36).primary();
    t.string('policy_id', 36).notNullable();
    t.string('subject_type', 16).notNullable();
    // Empty for `everyone`: a unique key does not cover nulls.
    t.string('subject_value', 256).notNullable();
    t.unique(['policy_id', 'subject_type', 'subject_value']);
  });
  await create('audit_decisions', (t) => {
    t.string('id', 36).primary();
    t.bigInteger('created_at').notNullable();
    t.string('issuer', 512).notNullable();
    t.string('user_id', 256).notNullable();
    t.string('user_email', 320).notNullable();
    t.string('user_role', 256).notNullable();
    t.text('user_groups').notNullable();
    t.string('target_id', 36);
    t.string('target_name', 63).notNullable();
    t.string('method', 256).notNullable();
    t.string('resource_type', 16);
    t.string('resource_name', 2048);
    t.string('effect', 8).notNullable();
    t.string('reason', 32).notNullable();
    t.string('policy_id', 36);
    t.string('policy_name', 256);
    t.integer('policy_priority');
    t.bigInteger('revision').notNullable();
    t.string('data_hash', 64).notNullable();
    t.string('engine_hash', 64).notNullable();
  });
  await create('audit_sets', (t) => {
    t.string('hash', 64).primary();
    t.text('names', 'mediumtext').notNullable();
  });
  await create('audit_shown', (t) => {
    t.string('decision_id', 36).primary();
    t.string('resource_type', 16).notNullable();
    t.integer('shown').notNullable();
    t.integer('hidden').notNullable();
    t.string('set_hash', 64).notNullable();
  });
  await create('audit_outcomes', (t) => {
    t.string('decision_id', 36).primary();
    t.string('outcome', 32).notNullable();
    t.integer('duration_ms').notNullable();
    t.bigInteger('created_at').notNullable();
  });
}
