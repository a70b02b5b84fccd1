/** The stored policies as they were read last. Most questions are about the current set, and reading it takes long. */
import { isInHistory, type Position, readPosition } from '../db/changes.ts';
import type { Connection } from '../db/database.ts';
import type { StoredPolicy } from '../engine/compile/policy.ts';
import { policyStore } from './policy-store.ts';

export interface StoredSet {
  readonly position: Position;
  /** Sorted by id. */
  readonly policies: readonly StoredPolicy[];
}

/** Returns the stored policies. `db` must be a consistent snapshot. */
export type ReadStoredSet = (db: Connection) => Promise<StoredSet>;

export function createStoredSet(): ReadStoredSet {
  let known: StoredSet | null = null;
  return async (db) => {
    const position = await readPosition(db);
    const last = known;
    // In one history, the same revision is the same set.
    const isSame = last?.position.revision === position.revision && (await isInHistory(db, last.position));
    known = { position, policies: isSame ? last.policies : await policyStore(db).all() };
    return known;
  };
}
