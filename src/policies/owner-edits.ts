/** Changes of the records of owners. The policies of an owner with a record are always within its limits. */

import type { Administer, Caller } from '../auth/caller.ts';
import { AppError, type FieldError, invalidRequest } from '../base/errors.ts';
import { etagOf, requireMatch } from '../base/etag.ts';
import type { RunSteps } from '../base/turns/slices.ts';
import { readOnlyErrors } from '../base/validate.ts';
import { type Change, isInHistory, readPosition } from '../db/changes.ts';
import type { Connection, Database, Transaction } from '../db/database.ts';
import { type PatternCheck, stateProblemInSteps } from '../engine/compile/pattern.ts';
import type { StoredPolicy } from '../engine/compile/policy.ts';
import { type FindNamesFor, stepsOf } from './edit.ts';
import { createLimitCheck, type FindNames, type LimitCheck, type Limits } from './limits/limits.ts';
import { type Owner, ownerStore } from './limits/owner-store.ts';
import { type OutsideField, outsideLimits } from './limits/refusal.ts';
import { type OwnerUpdate, ownerJson } from './owner-document.ts';
import { policyStore } from './policy-store.ts';
import { Moved, type Settle } from './settle.ts';

const MOST = 1_000;
/** How many characters of JSON the limits of all owners together may have; MySQL counts bytes. Each plan reads all of them at once. */
const MOST_LENGTH = 2 * 1024 * 1024;

export interface OwnerEditParts {
  readonly database: Database;
  readonly administer: Administer;
  readonly targetExists: (db: Connection, id: string) => Promise<boolean>;
  readonly checkPattern: PatternCheck;
  readonly findNames: FindNamesFor;
  /** Runs all changes of owners. */
  readonly settle: Settle;
  readonly now: () => number;
}

/** All methods throw AppError `precondition_failed`, `put` also `retry`, and what `Administer` throws. `ifMatch` is the header of the request. */
export type OwnerEdits = ReturnType<typeof createOwnerEdits>;

export const ownerEtag = (owner: Owner): string => etagOf(ownerJson(owner));

export function createOwnerEdits(parts: OwnerEditParts) {
  const { database, administer, targetExists, checkPattern, findNames, settle, now } = parts;
  /** Throws AppError `invalid_request`. A target that the record names already may be deleted by now. */
  async function checkLimits(
    db: Connection,
    { targets = [], resource_patterns = [] }: Limits,
    before: Owner | null,
    run: RunSteps,
  ): Promise<void> {
    const errors: FieldError[] = [];
    const known = new Set(before?.limits.targets);
    for (const [index, id] of targets.entries()) {
      if (id !== null && !known.has(id) && !(await targetExists(db, id)))
        errors.push({ path: `limits.targets.${index}`, message: 'no target has this id' });
    }
    for (const [index, pattern] of resource_patterns.entries()) {
      const refusal = checkPattern(pattern) ?? (await run(stateProblemInSteps(pattern)));
      if (refusal !== null) errors.push({ path: `limits.resource_patterns.${index}`, message: refusal });
    }
    if (errors.length > 0) throw invalidRequest(errors);
  }

  return {
    /** Creates the record, or replaces its limits. Throws AppError `outside_limits` if policies of the owner break the limits. */
    async put(
      caller: Caller,
      name: string,
      { limits, ...rest }: OwnerUpdate,
      ifMatch: string | undefined,
    ): Promise<{ readonly owner: Owner; readonly created: boolean }> {
      const [time, outsideOf] = [now(), createLimitCheck()];
      const read = async (db: Connection) => ({
        position: await readPosition(db),
        before: await ownerStore(db).find(name),
        policies: await policyStore(db).page(null, null, new Set([name])),
      });
      const check = async (
        db: Connection,
        { before, policies }: Awaited<ReturnType<typeof read>>,
        search: FindNames,
        run: RunSteps,
      ): Promise<void> => {
        if (before !== null) {
          const errors = readOnlyErrors(['name', 'created_at', 'updated_at'], rest, ownerJson(before));
          if (errors.length > 0) throw invalidRequest(errors);
        }
        await checkLimits(db, limits, before, run);
        const limited = policies.map((policy) => ({ policy, limits }));
        requireWithin(policies, await outsideOf(limited, search));
      };
      const replace = async (calm: () => Promise<void>): Promise<{ readonly owner: Owner; readonly created: boolean }> => {
        const early = await database.snapshot(read);
        await check(database.knex, early, (outside) => findNames(outside, caller), stepsOf(caller));
        await calm();
        const { result } = await administer(caller, ['boundaries:manage'], (trx) => replaceIn(trx, early));
        return result;
      };
      const replaceIn = async (trx: Transaction, early: Awaited<ReturnType<typeof read>>) => {
        const store = ownerStore(trx);
        const { sequence, revision } = await readPosition(trx);
        const before = await store.find(name);
        if (before !== null) requireMatch(ifMatch, ownerEtag(before));
        else if (ifMatch !== undefined) throw new AppError('precondition_failed', `No owner has the name ${name}.`);
        // Check again only what has changed in the meantime. The targets of a record are ids, which are never used again.
        const isSame = revision === early.position.revision && before?.sequence === early.before?.sequence;
        if (!isSame || !(await isInHistory(trx, early.position)))
          await check(trx, await read(trx), notInTransaction, stepsOf(null));
        if (before === null && (await store.glance()).owners >= MOST)
          throw new AppError('limit_reached', `At most ${MOST} owners can have a record. Delete one first.`);
        const length = JSON.stringify(limits).length;
        if (length > JSON.stringify(before?.limits ?? {}).length && length + (await store.lengthBeside(name)) > MOST_LENGTH) {
          const message = `The limits of all owners have more than ${MOST_LENGTH} characters of JSON. Use fewer or shorter subjects, for example groups.`;
          throw new AppError('limit_reached', message);
        }
        const owner: Owner = {
          ...{ name, limits, sequence: sequence + 1, revision },
          ...{ created_at: before?.created_at ?? time, updated_at: time },
        };
        if (JSON.stringify(before?.limits) === JSON.stringify(limits) && before !== null)
          return { result: { owner: before, created: false }, changes: [] };
        await store.put(owner);
        return { result: { owner, created: before === null }, changes: [changeOf(before, owner)] };
      };
      return settle(caller, replace);
    },

    /** Throws AppError `not_found`, and `owner_in_use` if the owner has policies: they would no longer have limits. */
    async remove(caller: Caller, name: string, ifMatch: string | undefined): Promise<void> {
      const deleteIn = async (trx: Transaction) => {
        const store = ownerStore(trx);
        const before = await store.find(name);
        if (before === null) throw new AppError('not_found', `The owner ${name} has no record.`);
        requireMatch(ifMatch, ownerEtag(before));
        if ((await policyStore(trx).page(1, null, new Set([name]))).length > 0) {
          throw new AppError(
            'owner_in_use',
            `The owner ${name} has policies, which would no longer have limits. Delete its policies first, or narrow its limits.`,
          );
        }
        await store.delete(name);
        return { result: null, changes: [changeOf(before, null)] };
      };
      // A change that was checked before a removal is checked again, so a loop of removals must not keep others from storing theirs.
      await settle(caller, async (calm) => {
        await calm();
        await administer(caller, ['boundaries:manage'], deleteIn);
      });
    },
  };
}

function requireWithin(policies: readonly StoredPolicy[], outside: Awaited<ReturnType<LimitCheck>>): void {
  const errors: OutsideField[] = [];
  for (const [at, policy] of policies.entries()) {
    for (const { member, message, undecided } of outside[at] ?? []) {
      const called = `policy ${JSON.stringify(policy.name)} (${policy.managed_as}, ${policy.id})`;
      errors.push({ path: 'limits', message: `${member} of ${called} ${message}`, undecided });
    }
  }
  if (errors.length > 0) throw outsideLimits(errors, ({ message }) => message);
}

/** A search takes long, and on SQLite all requests wait for the transaction. */
const notInTransaction: FindNames = async () => {
  throw new Moved();
};

const changeOf = (before: Owner | null, after: Owner | null): Change => ({
  action: `owner.${before === null ? 'create' : after === null ? 'delete' : 'update'}`,
  object_id: (after ?? before)?.name ?? '',
  before: before && ownerJson(before),
  after: after && ownerJson(after),
});
