import type { Knex } from 'knex';
import { hasIndex } from '../tables.ts';

/** Of a name, which may be too long for an index of a server, what it begins with. */
const HEAD = 64;

const INDEXES: readonly (readonly [name: string, columns: string])[] = [
  ['audit_decisions_target_id', 'target_id, id'],
  ['audit_decisions_method', 'method, id'],
  ['audit_decisions_type', 'resource_type, id'],
  ['audit_decisions_name', 'resource_name, id'],
];

export async function up(db: Knex, collation: string | null): Promise<void> {
  const missing: (readonly [name: string, columns: string])[] = [];
  for (const index of INDEXES) if (!(await hasIndex(db, 'audit_decisions', index[0], collation))) missing.push(index);
  if (missing.length === 0) return;
  if (collation === null) {
    for (const [name, columns] of missing) await db.raw(`create index ${name} on audit_decisions (${columns})`);
    return;
  }
  // One statement reads a large table once. The server adds the key of the table to each of its indexes.
  const added = missing.map(
    ([name, columns]) => `add index ${name} (${columns.replace('resource_name', `resource_name(${HEAD})`)})`,
  );
  await db.raw(`alter table audit_decisions ${added.join()}`);
}
