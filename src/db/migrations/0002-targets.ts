import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

interface OldCredential {
  readonly target_id: string;
  readonly subject_type: string;
  readonly subject_value: string;
  readonly header: string;
  readonly sealed: string;
  readonly origin: string;
  readonly created_at: number;
  readonly updated_at: number;
}

export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);

  for (const [column, type] of [
    ['stdio', 'mediumtext'],
    ['options', 'mediumtext'],
  ] as const) {
    if (!(await db.schema.hasColumn('targets', column))) await db.schema.alterTable('targets', (t) => t.text(column, type));
  }

  await create('target_credentials', (t) => {
    t.string('target_id', 36).notNullable();
    t.string('subject_type', 16).notNullable();
    t.string('subject_value', 256).notNullable();
    t.string('key_type', 16).notNullable();
    t.string('key_name', 256).notNullable();
    t.text('sealed', 'mediumtext').notNullable();
    t.string('origin', 2048).notNullable();
    // Empty: the value is sealed as in version 1 of the schema.
    t.string('version', 32).notNullable();
    t.string('supplied_by', 16).notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
    // Each header or variable has one value. A bearer token and a header named `authorization` set the same header.
    t.primary(['target_id', 'subject_type', 'subject_value', 'key_name']);
    t.index(['subject_type', 'subject_value']);
  });

  if (!(await db.schema.hasTable('credentials'))) return;
  const rows: OldCredential[] = await db('credentials').select();
  for (const { header, ...row } of rows) {
    const { target_id, subject_type, subject_value } = row;
    const key = { target_id, subject_type, subject_value, key_name: header.toLowerCase() };
    if (await db('target_credentials').where(key).first('target_id')) continue;
    const key_type = header === 'Authorization' ? 'bearer' : 'header';
    await db('target_credentials').insert({ ...row, ...key, key_type, version: '', supplied_by: 'administrator' });
  }
  // Rows left in the old table would never be deleted, and would stay sealed under keys that were replaced.
  await db.schema.dropTable('credentials');
}
