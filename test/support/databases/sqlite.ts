import { randomBytes } from 'node:crypto';
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { readConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/db/database.ts';
import type { TestDatabase } from './engines.ts';
import { SPARE_DATABASES } from './start.ts';

/** Returns the path of a migrated file without rows, which all tests of this run copy: migrations take longer than many tests. */
async function migratedIn(folder: string): Promise<string> {
  const path = join(folder, 'migrated.db');
  if (existsSync(path)) return path;
  mkdirSync(folder, { recursive: true });
  const draft = join(folder, `${randomBytes(6).toString('hex')}.db`);
  const database = await openDatabase(readConfig({ DATABASE_URL: `sqlite:${draft}` }).database, async () => undefined);
  await database.close();
  // Another process may have done the same meanwhile: a reader sees one whole file.
  renameSync(draft, path);
  return path;
}

/** A database without rows. In a run of `npm test` its tables are there already. */
export async function createSqlite(): Promise<TestDatabase> {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-sqlite-'));
  const path = join(folder, 'portcullis.db');
  const spare = process.env[SPARE_DATABASES];
  if (spare !== undefined) copyFileSync(await migratedIn(spare), path);
  return {
    url: `sqlite:${path}`,
    async drop() {
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
