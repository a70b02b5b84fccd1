/** Checks the policies that a change brings into a set. */
import { pause } from '../../base/turns/slices.ts';
import type { PatternCheck } from '../../engine/compile/pattern.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { problemsOfChange } from '../../engine/compile/set-limits.ts';
import type { SetProblem } from '../../engine/compile/shares.ts';

export interface SetVerdict {
  /** Why patterns of changed policies are refused, by the id of the policy. */
  readonly refusals: ReadonlyMap<string, string>;
  /** The limits of the set that changed policies exceed, each with the first of these. Empty if there are refusals: the set is then not checked. */
  readonly problems: readonly (Pick<SetProblem, 'message' | 'member'> & { readonly policyId: string })[];
}

/** The policies that a change brings, by id. `wereStored`: they were accepted before, so they may bring any amount of new work at once. */
export interface Brought {
  readonly ids: ReadonlySet<string>;
  readonly wereStored: boolean;
}

/** `stored`: returns the set that the change changes. It is looked at only if the changed one exceeds a limit. */
export type CheckSet = (
  candidate: readonly StoredPolicy[],
  brought: Brought,
  stored: () => Promise<readonly StoredPolicy[]>,
) => Promise<SetVerdict>;

/** The verdict on a change that only deletes, which is not checked: a set that cannot be compiled must be repairable by deletions. */
export const ACCEPTED: SetVerdict = { refusals: new Map(), problems: [] };

export const isAccepted = ({ refusals, problems }: SetVerdict): boolean => refusals.size === 0 && problems.length === 0;

/** The check takes seconds for many patterns. The gateway runs it in a thread (`HeavyWork.checkSet`). */
export function createSetCheck(checkPattern: PatternCheck): CheckSet {
  return async (candidate, { ids: changed, wereStored }, stored) => {
    const refusals = new Map<string, string>();
    for (const { id, resource_pattern: pattern } of candidate) {
      if (pattern === null || !changed.has(id)) continue;
      await pause();
      const refusal = checkPattern(pattern);
      if (refusal !== null) refusals.set(id, refusal);
    }
    if (refusals.size > 0) return { refusals, problems: [] };
    const mostNewWork = wereStored ? Number.POSITIVE_INFINITY : undefined;
    const problems = await problemsOfChange(candidate, changed, stored, mostNewWork);
    return {
      refusals,
      problems: problems.flatMap(({ message, member, policyIds }) => {
        const policyId = policyIds.find((id) => changed.has(id));
        return policyId === undefined ? [] : [{ message, member, policyId }];
      }),
    };
  };
}
