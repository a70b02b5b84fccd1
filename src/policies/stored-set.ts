/** The stored policies as they were read last. Reading the set takes long, and most changes are about few policies. */
import { changedBetween, isInHistory, type Position, readPosition } from '../db/changes.ts';
import type { Connection } from '../db/database.ts';
import type { StoredPolicy } from '../engine/compile/policy.ts';
import { policyStore } from './policy-store.ts';

export interface StoredSet {
  readonly position: Position;
  /** Sorted by id. */
  readonly policies: readonly StoredPolicy[];
}

/** Returns the stored policies. `db` must be a consistent snapshot, or hold the counter and have written no policies. */
export type ReadStoredSet = (db: Connection) => Promise<StoredSet>;

export function createStoredSet(): ReadStoredSet {
  let known: StoredSet | null = null;
  return async (db) => {
    const position = await readPosition(db);
    const last = known;
    known = { position, policies: (last && (await followed(db, last, position))) ?? (await policyStore(db).all()) };
    return known;
  };
}

/** null: the last position is not in the history of this one, or too much has changed. */
async function followed(db: Connection, last: StoredSet, position: Position): Promise<StoredSet['policies'] | null> {
  // In one history, the same revision is the same set.
  if (last.position.revision === position.revision) return (await isInHistory(db, last.position)) ? last.policies : null;
  const changed = await changedBetween(db, last.position, position);
  if (changed === null) return null;
  const ids = new Set(changed.filter(({ object_type }) => object_type === 'policy').map(({ object_id }) => object_id));
  const stored = await policyStore(db).some([...ids]);
  return [...last.policies.filter(({ id }) => !ids.has(id)), ...stored].sort((a, b) => (a.id < b.id ? -1 : 1));
}
