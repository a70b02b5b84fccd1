import type { Knex } from 'knex';
import { hasIndex, tableMaker } from '../tables.ts';

type Column = readonly [name: string, length: number | null];

/** The chain columns. A length of null means a 64-bit integer. They are empty in rows that are older than the chains. */
const STAMP: readonly Column[] = [
  ['chain_id', 36],
  ['chain_seq', null],
  ['mac', 43],
];
const PERSON: readonly Column[] = [
  ['salt', 22],
  ['person_hash', 43],
  ['resource_key', 22],
];

/**
 * Indexes for the rows of a chain in order, and for common searches, newest first. The primary key, which begins with the time,
 * comes last in each index.
 */
const INDEXES: readonly (readonly [table: string, name: string, columns: readonly string[]])[] = [
  ['audit_decisions', 'audit_decisions_chain', ['chain_id', 'chain_seq']],
  ['audit_shown', 'audit_shown_chain', ['chain_id', 'chain_seq']],
  ['audit_outcomes', 'audit_outcomes_chain', ['chain_id', 'chain_seq']],
  ['audit_decisions', 'audit_decisions_user', ['user_id', 'id']],
  ['audit_decisions', 'audit_decisions_target', ['target_name', 'id']],
  ['audit_decisions', 'audit_decisions_policy', ['policy_id', 'id']],
  ['audit_decisions', 'audit_decisions_resource', ['resource_key', 'id']],
  ['audit_decisions', 'audit_decisions_effect', ['effect', 'id']],
  ['audit_decisions', 'audit_decisions_reason', ['reason', 'id']],
  ['audit_shown', 'audit_shown_set', ['set_hash']],
];

export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);

  for (const [table, columns] of [
    ['audit_decisions', [...STAMP, ...PERSON]],
    ['audit_shown', STAMP],
    ['audit_outcomes', STAMP],
  ] as const) {
    for (const [name, length] of columns) {
      if (await db.schema.hasColumn(table, name)) continue;
      await db.schema.alterTable(table, (t) => {
        if (length === null) t.bigInteger(name);
        else t.string(name, length);
      });
    }
  }
  for (const [table, name, columns] of INDEXES) {
    if (await hasIndex(db, table, name, collation)) continue;
    await db.schema.alterTable(table, (t) => t.index([...columns], name));
  }
  await create('audit_chains', (t) => {
    t.string('chain_id', 36).primary();
    t.integer('version').notNullable();
    t.string('key_id', 16).notNullable();
    t.bigInteger('started_at').notNullable();
    t.text('host').notNullable();
    // JSON: the heads of the existing chains, `[chain_id, seq, mac]` each.
    t.text('found', 'mediumtext').notNullable();
    t.bigInteger('unchained').notNullable();
    t.string('mac', 43).notNullable();
  });
  await create('audit_retention', (t) => {
    t.string('chain_id', 36).primary();
    // The last removed record.
    t.bigInteger('seq').notNullable();
    t.string('mac', 43).notNullable();
    t.bigInteger('removed_at').notNullable();
    t.string('key_id', 16).notNullable();
    t.string('signature', 43).notNullable();
  });
  await create('audit_erasures', (t) => {
    t.string('id', 36).primary();
    t.string('user_id', 256).notNullable();
    t.bigInteger('erased_at').notNullable();
    t.string('key_id', 16).notNullable();
    t.string('signature', 43).notNullable();
    t.bigInteger('done_at');
  });
}
