/** The policy set as a whole: as files, and back to an earlier revision. Each apply and each rollback is one administrative change. */
import type { Caller } from '../auth/administer.ts';
import { type Change, readPosition } from '../db/changes.ts';
import type { Connection, Transaction } from '../db/database.ts';
import { inSlices } from '../slices.ts';
import { changeOf, createPolicyEdit, type Edited, type EditPlan, type PolicyEditParts, tryPolicySet } from './edit.ts';
import { policiesAt } from './history.ts';
import type { PlanRequest, PolicyChange, PolicyPlan } from './plan.ts';
import {
  type Expected,
  madeForRequest,
  planOn,
  planRollback,
  type RollbackPlan,
  type RollbackRequest,
  type readFiles,
  type SetState,
  type TargetName,
} from './planning.ts';
import { policyStore } from './store.ts';

export interface PolicySetParts extends Omit<PolicyEditParts, 'targetExists'> {
  readonly targets: (db: Connection) => Promise<readonly TargetName[]>;
  /** Takes long for many files. `by`: whose turn that is. */
  readonly readFiles: (texts: ReadonlyMap<string, string>, by: string) => ReturnType<typeof readFiles>;
}

export interface ApplyRequest extends Omit<PlanRequest, 'files'>, Expected {
  /** Texts by file name. */
  readonly files: ReadonlyMap<string, string>;
}

export interface Planned<P> {
  readonly plan: P;
  /** What the targets are called that policies name. */
  readonly targets: readonly TargetName[];
}

/** May run several times. Rejects where the policies must not be applied. */
export type Alongside = (trx: Transaction) => Promise<readonly Change[]>;

/**
 * All throw AppError: `invalid_request` with the places of mistakes in files, `precondition_failed` where the set is not at the
 * expected revision, and `apply` and `rollback` what `Administer` throws. What changes nothing is no change.
 */
export interface PolicySets {
  /** What `apply` would do. What it would refuse is refused. */
  plan(request: ApplyRequest, by: string): Promise<Planned<PolicyPlan> & Pick<SetState, 'position'>>;
  /** `alongside`: made in the same transaction, also where the policies say so already. */
  apply(caller: Caller, request: ApplyRequest, alongside?: Alongside): Promise<Edited<Planned<PolicyPlan>>>;
  /** Makes the set, or what an owner has of it, what it was at the revision: ids and creation times as they were. */
  rollback(caller: Caller, request: RollbackRequest): Promise<Edited<Planned<RollbackPlan>>>;
}

export function createPolicySets(parts: PolicySetParts): PolicySets {
  const { database } = parts;
  const edit = createPolicyEdit(parts);
  const glance = async (db: Connection) => ({
    revision: (await readPosition(db)).revision,
    targets: (await parts.targets(db)).map(({ id, name }) => ({ id, name })),
  });
  const read = async (db: Connection): Promise<SetState> => ({
    position: await readPosition(db),
    policies: await policyStore(db).all(),
    targets: await parts.targets(db),
  });

  return {
    async plan(request, by) {
      const files = await parts.readFiles(request.files, by);
      const state = await database.snapshot(read);
      const plan = await planOn(state, { ...request, files }, madeForRequest(parts));
      if (plan.changes.some(({ after }) => after !== null)) await tryPolicySet(parts, plan.wouldBe, by);
      return { plan, targets: state.targets, position: state.position };
    },

    async apply(caller, request, alongside = async () => []) {
      const files = await parts.readFiles(request.files, caller.principal.sub);
      const made = madeForRequest(parts);
      return edit(caller, {
        ...{ glance, read },
        async plan(state: SetState) {
          const plan = await planOn(state, { ...request, files }, made);
          const planned = carryingOut({ plan, targets: state.targets }, plan);
          return {
            ...planned,
            apply: async (store, trx) => [...(await alongside(trx)), ...((await planned.apply?.(store, trx)) ?? [])],
          };
        },
      });
    },

    rollback(caller, request) {
      const made = madeForRequest(parts);
      const { revision, owner } = request;
      const whose = owner === null ? '' : `, policies of ${owner}`;
      const why = caller.reason ?? `rollback to revision ${revision}${whose}`;
      return edit(
        { ...caller, reason: why },
        {
          glance,
          read: async (db: Connection) => ({ state: await read(db), old: await policiesAt(db, revision) }),
          async plan({ state, old }) {
            const plan = await planRollback(state, old, request, made);
            return carryingOut({ plan, targets: state.targets }, plan);
          },
        },
      );
    },
  };
}

function carryingOut<T>(
  result: T,
  { changes, wouldBe }: { readonly changes: readonly PolicyChange[]; readonly wouldBe: EditPlan<T>['wouldBe'] },
): EditPlan<T> {
  return {
    result,
    // A set that cannot be built must be possible to repair by taking away.
    wouldBe: changes.some(({ after }) => after !== null) ? wouldBe : null,
    apply:
      changes.length === 0
        ? null
        : async (store) => {
            await store.change(changes);
            return inSlices(recordsOf(changes));
          },
  };
}

/** What the change feed says of them, one by one so that the caller can let other work run. */
export function* recordsOf(changes: readonly Pick<PolicyChange, 'before' | 'after'>[]): Generator<undefined, Change[]> {
  const records: Change[] = [];
  for (const { before, after } of changes) {
    records.push(changeOf(before === null ? 'create' : after === null ? 'delete' : 'update', before, after));
    yield;
  }
  return records;
}
