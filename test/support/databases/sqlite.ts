import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestDatabase } from './engines.ts';

export async function createSqlite(): Promise<TestDatabase> {
  const folder = mkdtempSync(join(tmpdir(), 'portcullis-sqlite-'));
  return {
    url: `sqlite:${join(folder, 'portcullis.db')}`,
    async drop() {
      rmSync(folder, { recursive: true, force: true });
    },
  };
}
