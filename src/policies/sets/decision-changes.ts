/** How a change of the policies changes decisions, in the form that people read: policies and targets by name. */
import { inSlices, telling } from '../../base/turns/slices.ts';
import type { Effect, ResourceType, StoredPolicy } from '../../engine/compile/policy.ts';
import type { PrincipalFacts } from '../../engine/decision.ts';
import { type ComparisonVerdict, compareInSteps, type Difference } from '../analysis/compare.ts';
import type { Progress } from '../analysis/search.ts';
import type { Answer, NamedSubject } from '../analysis/witness.ts';
import { type PolicyRef, policyRef } from '../files/test-run.ts';

interface Decided {
  readonly effect: Effect;
  /** null: no policy matches. */
  readonly policy: PolicyRef | null;
}

/** A request whose effect changes. Values that no policy names are invented. */
export interface Flip {
  readonly principal: PrincipalFacts;
  /** The subjects that matter. A principal with these, and with nothing else that a policy names, gets the same answer. */
  readonly subjects: readonly NamedSubject[];
  /** The name of the target, or its id if the target no longer exists. */
  readonly target: string;
  /** If this and the name are null: may the caller use the target at all? */
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  /** true: the name is a URI template, which is listed and completed but cannot be read. */
  readonly is_template: boolean;
  readonly before: Decided;
  readonly after: Decided;
}

export interface DecisionChanges {
  readonly verdict: ComparisonVerdict;
  /**
   * Returns flips that the policy decides, before or after the change: at most one that becomes allowed and one that becomes
   * denied. null: unknown.
   */
  flipsOf(policyId: string): readonly Flip[] | null;
}

/** Works in slices, between which other work runs. `isStored`: whether a policy with this id is already stored. */
export async function decisionChanges(
  before: readonly StoredPolicy[],
  after: readonly StoredPolicy[],
  targets: readonly { readonly id: string; readonly name: string }[],
  isStored: (id: string) => boolean,
  say: (progress: Progress | undefined) => void = () => {},
): Promise<DecisionChanges> {
  if (before.length === after.length && before.every((policy, i) => policy === after[i])) {
    return { verdict: 'equal', flipsOf: () => [] };
  }
  const steps = compareInSteps(before, after, { targets: targets.map(({ id }) => id) });
  const { verdict, flips } = await inSlices(telling(steps, say));
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  const [old, now] = [before, after].map((set) => new Map(set.map((policy) => [policy.id, policy])));
  const decided = ({ effect, policy_id }: Answer, set: ReadonlyMap<string, StoredPolicy> | undefined): Decided => {
    const policy = set?.get(policy_id ?? '');
    return { effect, policy: policy === undefined ? null : policyRef(policy, isStored) };
  };
  const flip = ({ target, before: was, after: is, ...request }: Difference): Flip => ({
    ...request,
    target: names.get(target) ?? target,
    before: decided(was, old),
    after: decided(is, now),
  });
  return {
    verdict,
    flipsOf(policyId) {
      const found = flips.get(policyId);
      if (found === undefined) return [];
      const shown = [found.looser, found.stricter].filter((difference) => difference !== null).map(flip);
      return shown.length === 0 && found.undecided ? null : shown;
    },
  };
}
