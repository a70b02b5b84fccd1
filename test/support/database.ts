/** An open, migrated database for tests of stores. */
import type { ExecutionContext } from 'ava';
import { readConfig } from '../../src/config/config.ts';
import { makeCounter } from '../../src/db/changes.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import type { TestDatabase } from './databases/engines.ts';

export async function openTestDatabase(t: ExecutionContext, { url }: TestDatabase): Promise<Database> {
  const database = await openDatabase(readConfig({ DATABASE_URL: url }).database, makeCounter);
  t.teardown(() => database.close());
  return database;
}

/** Returns how many rows a statement has returned at most from now on. */
export function countRows({ knex, reader }: Database): () => number {
  let most = 0;
  for (const each of new Set([knex, reader])) {
    each.on('query-response', (rows: unknown) => {
      if (Array.isArray(rows)) most = Math.max(most, rows.length);
    });
  }
  return () => most;
}
