/**
 * Earlier states of the policy set. They are computed from the recorded changes, which are never altered. `sets/sets.ts` rolls back to one
 * of them.
 */
import { AppError } from '../base/errors.ts';
import { isInHistory, newestOf, policiesBefore, readPosition } from '../db/changes.ts';
import type { Connection, Database } from '../db/database.ts';
import { readInTurn } from '../db/turns.ts';
import type { StoredPolicy } from '../engine/compile/policy.ts';
import { policyStore } from './policy-store.ts';
import { policyFromJson } from './schema.ts';
import type { StoredSet } from './stored-set.ts';

/** Throws AppError `not_found` for a revision that does not exist; 0 is the empty set before the first. */
function requireRevision(revision: number, newest: number): void {
  if (Number.isSafeInteger(revision) && revision >= 0 && revision <= newest) return;
  throw new AppError('not_found', `Revision ${revision} does not exist: the newest is ${newest}.`);
}

/**
 * Returns every policy of the set at this revision, sorted by id, each with its subjects sorted by id. It starts from the current
 * set and undoes the later changes. `current` may be older than the newest state: changes that came later undo themselves. Throws AppError
 * `not_found`.
 */
export async function policiesAt(db: Connection, revision: number, current: StoredSet): Promise<StoredPolicy[]> {
  requireRevision(revision, current.position.revision);
  const set = new Map(current.policies.map((policy) => [policy.id, policy]));
  for (const { object_id, before } of await policiesBefore(db, revision)) {
    if (before === null) set.delete(object_id);
    else set.set(object_id, policyFromJson(before as Parameters<typeof policyFromJson>[0]));
  }
  return [...set.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
}

/**
 * Like `policiesAt`, for a set that was read before. On SQLite a snapshot keeps all others from writing, so none may be open
 * meanwhile. Throws AppError `unavailable` if the database was restored after `since`, which is not after `current`.
 */
export async function setAt(
  { knex }: Pick<Database, 'knex'>,
  revision: number,
  current: StoredSet,
  since = current.position,
): Promise<StoredPolicy[]> {
  const policies = await policiesAt(knex, revision, current);
  for (const position of [since, current.position])
    if (!(await isInHistory(knex, position)))
      throw new AppError('unavailable', 'The history of the policies has changed while the answer was made.', { retryAfter: 1 });
  return policies;
}

/** Like `setAt`, in the turn of the user. */
export async function earlierSet(
  database: Pick<Database, 'knex'>,
  by: string,
  revision: number,
  current: StoredSet,
): Promise<readonly StoredPolicy[]> {
  requireRevision(revision, current.position.revision);
  if (revision === current.position.revision) return current.policies;
  return readInTurn(by, () => setAt(database, revision, current));
}

/** What was changed of the policies of an owner. */
export interface OwnerHistory {
  /** The newest revision that changed a policy of the owner. */
  readonly revision: number;
  /** For policies that were deleted outside of their files: `drift_since`, by `managed_as`. */
  readonly deleted: ReadonlyMap<string, number>;
}

/** `owner` null: no file is involved, so every revision counts. `db` is a snapshot or a transaction. */
export async function ownerHistory(db: Connection, owner: string | null): Promise<OwnerHistory> {
  if (owner === null) return { revision: (await readPosition(db)).revision, deleted: new Map() };
  return { revision: await newestOf(db, owner), deleted: await policyStore(db).deletedOf(owner) };
}
