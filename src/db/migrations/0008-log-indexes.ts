import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

const INDEXES = [
  ['audit_decisions_target_id', 'target_id, id'],
  ['audit_decisions_method', 'method, id'],
] as const;

export async function up(db: Knex, collation: string | null): Promise<void> {
  const missing: (readonly [name: string, columns: string])[] = [];
  for (const index of INDEXES) if (!(await hasIndex(db, 'audit_decisions', index[0], collation))) missing.push(index);
  if (missing.length === 0) return;
  if (collation === null) {
    for (const [name, columns] of missing) await db.raw(`create index ${name} on audit_decisions (${columns})`);
    return;
  }
  // One statement adds all indexes, so a large table is read once. The server appends the primary key to each index.
  await db.raw(`alter table audit_decisions ${missing.map(([name, columns]) => `add index ${name} (${columns})`).join()}`);
}
