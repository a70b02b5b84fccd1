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
