import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

/** The limits of owners. Owners that are in use get a record without limits, so that nothing that works before the upgrade stops. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  const create = tableMaker(db, collation);
  await create('owners', (t) => {
    t.string('name', 63).primary();
    // JSON.
    t.text('limits', 'mediumtext').notNullable();
    // The number of the last change of the record, and the revision of the policies at that time.
    t.bigInteger('sequence').notNullable();
    t.bigInteger('revision').notNullable();
    t.bigInteger('created_at').notNullable();
    t.bigInteger('updated_at').notNullable();
  });
  const used = new Set<string>();
  const add = (owner: unknown): void => {
    if (typeof owner === 'string' && owner !== '') used.add(owner);
  };
  for (const { owner } of await db('rights').distinct('owner')) add(owner);
  for (const { owner } of await db('policy_drafts').distinct('owner')) add(owner);
  for (const { limits } of await db('tokens').whereNotNull('limits').select('limits')) add(JSON.parse(limits).owner);
  for (const { managed_as } of await db('policies').whereNotNull('managed_as').select('managed_as'))
    add(managed_as.split('/')[0]);
  const time = Date.now();
  const { sequence, revision } = (await db('counter').first('sequence', 'revision')) ?? { sequence: 0, revision: 0 };
  for (const name of used) {
    const row = { name, limits: '{}', sequence, revision, created_at: time, updated_at: time };
    await db('owners').insert(row).onConflict('name').ignore();
  }
}
