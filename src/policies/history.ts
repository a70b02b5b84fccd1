/**
 * Earlier states of the policy set. They are computed from the recorded changes, which are never altered. `sets/sets.ts` rolls back to one
 * of them.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { AppError } from '../base/errors.ts';
import { newestOf, policiesBefore, readPosition } from '../db/changes.ts';
import type { Connection } from '../db/database.ts';
import type { StoredPolicy } from '../engine/compile/policy.ts';
import { policyStore } from './policy-store.ts';
import { policyFromJson } from './schema.ts';
import type { StoredSet } from './stored-set.ts';

const REST = 2;

/**
 * Returns every policy of the set at this revision, sorted by id, each with its subjects sorted by id. It starts from the current
 * set and undoes the later changes, which need not be read in the same snapshot. Throws AppError `not_found` for a revision that does not
 * exist; 0 is the empty set before the first.
 */
export async function policiesAt(db: Connection, revision: number, current: StoredSet): Promise<StoredPolicy[]> {
  const { revision: newest } = current.position;
  if (!Number.isSafeInteger(revision) || revision < 0 || revision > newest) {
    throw new AppError('not_found', `Revision ${revision} does not exist: the newest is ${newest}.`);
  }
  const set = new Map(current.policies.map((policy) => [policy.id, policy]));
  for (const { object_id, before } of await policiesBefore(db, revision)) {
    if (before === null) set.delete(object_id);
    else set.set(object_id, policyFromJson(before as Parameters<typeof policyFromJson>[0]));
  }
  return [...set.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
}

let reading = Promise.resolve();

/** Does work that reads earlier states. Only one such work runs at a time, and a rest follows that is twice as long. */
export function readEarlier<T>(work: () => Promise<T>): Promise<T> {
  let began = 0;
  const done = reading.then(() => {
    began = performance.now();
    return work();
  });
  const rest = (): Promise<void> => sleep(REST * (performance.now() - began), undefined, { ref: false });
  reading = done.then(rest, rest);
  return done;
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
