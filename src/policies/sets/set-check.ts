/** Checks the policies that a change brings into a set. */
import { inSlices, pause } from '../../base/turns/slices.ts';
import type { PatternCheck } from '../../engine/compile/pattern.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { checkPolicySetInSteps } from '../../engine/compile/set-limits.ts';

export interface SetVerdict {
  /** Why patterns of changed policies are refused, by the id of the policy. */
  readonly refusals: ReadonlyMap<string, string>;
  /** The limits of the set that changed policies exceed, each with the first of these. Empty if there are refusals: the set is then not checked. */
  readonly problems: readonly { readonly message: string; readonly policyId: string }[];
}

/** The policies that a change brings, by id. `wereStored`: they were accepted before, so they may bring any amount of new work at once. */
export interface Brought {
  readonly ids: ReadonlySet<string>;
  readonly wereStored: boolean;
}

export type CheckSet = (candidate: readonly StoredPolicy[], brought: Brought) => Promise<SetVerdict>;

/** The verdict on a change that only deletes, which is not checked: a set that cannot be compiled must be repairable by deletions. */
export const ACCEPTED: SetVerdict = { refusals: new Map(), problems: [] };

export const isAccepted = ({ refusals, problems }: SetVerdict): boolean => refusals.size === 0 && problems.length === 0;

/** The check takes seconds for many patterns. The gateway runs it in a thread (`HeavyWork.checkSet`). */
export function createSetCheck(checkPattern: PatternCheck): CheckSet {
  return async (candidate, { ids: changed, wereStored }) => {
    const refusals = new Map<string, string>();
    for (const { id, resource_pattern: pattern } of candidate) {
      if (pattern === null || !changed.has(id)) continue;
      await pause();
      const refusal = checkPattern(pattern);
      if (refusal !== null) refusals.set(id, refusal);
    }
    if (refusals.size > 0) return { refusals, problems: [] };
    const mostNewWork = wereStored ? Number.POSITIVE_INFINITY : undefined;
    const found = await inSlices(checkPolicySetInSteps(candidate, changed, mostNewWork));
    const problems = found.flatMap(({ message, policyIds }) => {
      // What others have above the limits must not keep anybody from a change.
      const policyId = policyIds.find((id) => changed.has(id));
      return policyId === undefined ? [] : [{ message, policyId }];
    });
    return { refusals, problems };
  };
}
