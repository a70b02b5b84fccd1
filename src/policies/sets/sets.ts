/** Changes of the whole policy set: applies of files, moves, and rollbacks to an earlier revision. Each is one administrative change. */
import type { Authority, Caller } from '../../auth/caller.ts';
import { inSlices } from '../../base/turns/slices.ts';
import { type Change, isInHistory, readPosition } from '../../db/changes.ts';
import type { Connection, Transaction } from '../../db/database.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { changeOf, createPolicyEdit, type Edited, type EditPlan, type PolicyEditParts, stepsOf } from '../edit.ts';
import { earlierSet, ownerHistory, setAt } from '../history.ts';
import { ownerStore } from '../limits/owner-store.ts';
import type { StoredSet } from '../stored-set.ts';
import type { PlanRequest, PolicyChange } from './plan.ts';
import {
  changed,
  type Expected,
  type MoveRequest,
  madeForRequest,
  type PlannedFiles,
  type PlanParts,
  planMove,
  planOn,
  planRollback,
  type RollbackRequest,
  type readFiles,
  type SetPlan,
  type SetState,
  type TargetName,
} from './planning.ts';
import type { CheckSet, SetVerdict } from './set-check.ts';

export interface PolicySetParts extends Omit<PolicyEditParts, 'targetExists' | 'checkPattern'> {
  readonly targets: (db: Connection) => Promise<readonly TargetName[]>;
  /** Takes long for many files, so it runs in a turn of the caller. */
  readonly readFiles: (texts: ReadonlyMap<string, string>, caller: Caller) => ReturnType<typeof readFiles>;
  /** Also rejects if the set cannot be compiled. `caller`: as for `EditWork.plan`. */
  readonly checkSet: (...args: [...Parameters<CheckSet>, caller: Caller | null]) => Promise<SetVerdict>;
}

export interface ApplyRequest extends Omit<PlanRequest, 'files'>, Expected {
  /** Texts by file name. */
  readonly files: ReadonlyMap<string, string>;
}

export interface Planned<P> {
  readonly plan: P;
  /** The names of the targets that policies use. */
  readonly targets: readonly TargetName[];
}

/** May run several times. Rejects if the policies must not be applied. */
export type Alongside = (trx: Transaction, authority: Authority) => Promise<readonly Change[]>;

/**
 * All throw AppError `invalid_request` and `outside_limits` with the positions of errors in files, and `precondition_failed` if policies
 * changed after the expected revision. `apply`, `rollback` and `move` also throw what `Administer` throws. If nothing would change, they make no change.
 */
export type PolicySets = ReturnType<typeof createPolicySets>;

export function createPolicySets(parts: PolicySetParts) {
  const { database } = parts;
  const edit = createPolicyEdit(parts);
  const inTurnOf = (turnOf: Caller | null): Pick<PlanParts, 'run' | 'checkSet' | 'findNames'> => ({
    run: stepsOf(turnOf),
    checkSet: (...asked) => parts.checkSet(...asked, turnOf),
    findNames: (outside) => parts.findNames(outside, turnOf),
  });
  const glance = async (db: Connection) => ({
    revision: (await readPosition(db)).revision,
    targets: (await parts.targets(db)).map(({ id, name }) => ({ id, name })),
    owners: await ownerStore(db).glance(),
  });
  const read = async (db: Connection, owner: string | null): Promise<SetState> => ({
    position: await readPosition(db),
    policies: (await parts.readStoredSet(db)).policies,
    targets: await parts.targets(db),
    limits: await ownerStore(db).limits(),
    history: await ownerHistory(db, owner),
  });

  /** Callers without `managesAll` are many, so they take turns. */
  const earlier = ({ principal, managesAll }: Caller, revision: number, current: StoredSet): Promise<readonly StoredPolicy[]> =>
    managesAll === true ? setAt(database, revision, current) : earlierSet(database, principal.sub, revision, current);

  return {
    /** Returns what `apply` would do. Throws what `apply` would throw. */
    async plan(caller: Caller, request: ApplyRequest): Promise<Planned<PlannedFiles> & Pick<SetState, 'position'>> {
      const files = await parts.readFiles(request.files, caller);
      const state = await database.snapshot((db) => read(db, request.owner));
      const plan = await planOn(state, { ...request, files }, { ...madeForRequest(parts), ...inTurnOf(caller) });
      return { plan, targets: state.targets, position: state.position };
    },

    /** `alongside` runs in the same transaction, even if the policies already match the files. */
    async apply(
      caller: Caller,
      request: ApplyRequest,
      alongside: Alongside = async () => [],
    ): Promise<Edited<Planned<PlannedFiles>>> {
      const files = await parts.readFiles(request.files, caller);
      const made = madeForRequest(parts);
      return edit(caller, {
        glance,
        async read(db: Connection) {
          if (request.tested !== undefined && !(await isInHistory(db, request.tested.position)))
            throw changed('While the tests ran, the database was restored to a different history.');
          return read(db, request.owner);
        },
        async plan(state: SetState, turnOf) {
          const plan = await planOn(state, { ...request, files }, { ...made, ...inTurnOf(turnOf) });
          const planned = carryingOut({ plan, targets: state.targets }, plan.changes, null);
          return {
            ...planned,
            apply: async (store, trx, authority) => [
              ...(await alongside(trx, authority)),
              ...((await planned.apply?.(store, trx, authority)) ?? []),
            ],
          };
        },
      });
    },

    /** Restores the set, or an owner's part of it, from the revision, with ids and creation times. */
    rollback(caller: Caller, request: RollbackRequest): Promise<Edited<Planned<SetPlan>>> {
      const made = madeForRequest(parts);
      const { revision, owner } = request;
      const whose = owner === null ? '' : `, policies of ${owner}`;
      const why = caller.reason ?? `rollback to revision ${revision}${whose}`;
      /** The set at the revision, computed from the set at the position. It takes long, so it is computed once, and not in the transaction. */
      let old: StoredSet | null = null;
      return edit(
        { ...caller, reason: why },
        {
          glance,
          async read(db: Connection) {
            if (old !== null && !(await isInHistory(db, old.position)))
              throw changed('While the rollback was checked, the database was restored to a different history.');
            return read(db, null);
          },
          async plan(state, turnOf) {
            old ??= { position: state.position, policies: await earlier(caller, revision, state) };
            const plan = await planRollback(state, old.policies, request, { ...made, ...inTurnOf(turnOf) });
            return carryingOut({ plan, targets: state.targets }, plan.changes, state.position.revision + 1);
          },
        },
      );
    },

    /** Changes the priorities that move a policy in the order of evaluation. */
    move(caller: Caller, request: MoveRequest): Promise<Edited<Planned<SetPlan>>> {
      const made = madeForRequest(parts);
      return edit(caller, {
        glance,
        read: (db: Connection) => read(db, null),
        async plan(state, turnOf) {
          const plan = await planMove(state, request, { ...made, ...inTurnOf(turnOf) });
          const { changes, candidate } = plan;
          const planned = carryingOut({ plan, targets: state.targets }, changes, state.position.revision + 1);
          return changes.length === 0 ? planned : { ...planned, candidate };
        },
      });
    },
  };
}

/** `outsideAt`: the revision of changes that are not made by files. */
function carryingOut<T>(result: T, changes: readonly PolicyChange[], outsideAt: number | null): EditPlan<T> {
  return {
    result,
    // The check of the set has tried it.
    candidate: null,
    touches: changes,
    apply:
      changes.length === 0
        ? null
        : async (store) => {
            const [records] = await Promise.all([
              inSlices(recordsOf(changes, outsideAt !== null)),
              store.change(changes, outsideAt),
            ]);
            return records;
          },
  };
}

/**
 * Returns the entries of the change feed. Pauses after each one, so that the caller can let other work run. `outside`: the changes are not
 * made by files.
 */
export function* recordsOf(
  changes: readonly Pick<PolicyChange, 'before' | 'after'>[],
  outside: boolean,
): Generator<undefined, Change[]> {
  const records: Change[] = [];
  for (const { before, after } of changes) {
    records.push(changeOf(before === null ? 'create' : after === null ? 'delete' : 'update', before, after, outside));
    yield;
  }
  return records;
}
