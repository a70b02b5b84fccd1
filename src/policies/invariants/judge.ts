/** Finds the invariants that a change would break, in the form that people read. */
import { AppError } from '../../base/errors.ts';
import { inSlices, telling } from '../../base/turns/slices.ts';
import type { ResourceType, StoredPolicy } from '../../engine/compile/policy.ts';
import type { Engine, PrincipalFacts } from '../../engine/decision.ts';
import { type Breach, breachesInSteps } from '../analysis/invariants.ts';
import type { Progress } from '../analysis/search.ts';
import type { NamedSubject } from '../analysis/witness.ts';
import { type PolicyRef, policyRef } from '../files/test-run.ts';
import { decideOne } from '../questions.ts';
import { guardedAt, type Invariant } from './invariant.ts';

/** An allowed request that the invariant forbids. Values that no policy names are invented. */
export interface BreachWitness {
  readonly principal: PrincipalFacts;
  /** The subjects that matter. A principal with these, and with nothing else that a policy names, gets the same answer. */
  readonly subjects: readonly NamedSubject[];
  /** The name of the target, or its id if the target no longer exists. */
  readonly target: string;
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  /** true: the name is a URI template, which is listed and completed but cannot be read. */
  readonly is_template: boolean;
  /** The policy that allows the request. */
  readonly policy: PolicyRef;
}

export interface BrokenInvariant extends Pick<Invariant, 'id' | 'name' | 'reason'> {
  /** null: it is unknown whether the invariant would be broken, because the analysis would exceed its limits. */
  readonly witness: BreachWitness | null;
}

export interface Judged {
  /** The policies before the change; empty to find every request that breaks an invariant. */
  readonly before: readonly StoredPolicy[];
  readonly after: readonly StoredPolicy[];
  readonly invariants: readonly Invariant[];
  readonly targets: readonly { readonly id: string; readonly name: string }[];
  readonly now: number;
  readonly isStored: (id: string) => boolean;
}

/** Returns the invariants that the change breaks or may break. `build` makes the engine that confirms each witness. */
export async function judge(
  { before, after, invariants, targets, now, isStored }: Judged,
  build: (policies: readonly StoredPolicy[]) => Promise<Engine>,
  say: (progress: Progress | undefined) => void = () => {},
): Promise<BrokenInvariant[]> {
  const enabled = invariants.filter((invariant) => invariant.enabled);
  if (enabled.length === 0) return [];
  const guarded = enabled.map((invariant) => guardedAt(invariant, now));
  const steps = breachesInSteps(before, after, guarded, { targets: targets.map(({ id }) => id) });
  const verdicts = await inSlices(telling(steps, say));
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  const policies = new Map(after.map((policy) => [policy.id, policy]));
  let engine: Promise<Engine> | null = null;
  const confirmed = async ({ policy_id, subjects, ...request }: Breach): Promise<BreachWitness | null> => {
    engine ??= build(after);
    const { principal, target, resource_type, resource_name } = request;
    const object = resource_type === null || resource_name === null ? null : { resource_type, resource_name };
    const { effect, policy: decided } = decideOne(await engine, { principal, targetId: target, object });
    const policy = policies.get(policy_id);
    if (effect !== 'allow' || decided?.id !== policy_id || policy === undefined) return null;
    return { ...request, subjects, target: names.get(target) ?? target, policy: policyRef(policy, isStored) };
  };
  const broken: BrokenInvariant[] = [];
  for (const [i, { id, name, reason }] of enabled.entries()) {
    const verdict = verdicts[i] ?? { kind: 'undecided' };
    if (verdict.kind === 'kept') continue;
    broken.push({ id, name, reason, witness: verdict.kind === 'broken' ? await confirmed(verdict.breach) : null });
  }
  return broken;
}

/** Returns AppError `invariant_broken` or `invariant_undecided`; null: there is no broken invariant. `what`: what is changed. */
export function refusalOf(broken: readonly BrokenInvariant[], what: 'policies' | 'invariant'): AppError | null {
  const first = broken.find(({ witness }) => witness !== null) ?? broken[0];
  if (first === undefined) return null;
  const more = broken.length > 1 ? ` The same is true of other invariants (${broken.length - 1}).` : '';
  const options = { more: { invariant: first } };
  if (first.witness === null) {
    const detail = `The change was not stored, because the gateway could not find out within its limits whether the policies would break the invariant ${brokenText(first)} Use simpler patterns, or change fewer policies at once.`;
    return new AppError('invariant_undecided', detail, options);
  }
  const detail =
    what === 'policies'
      ? `The change was not stored, because it would break the invariant ${brokenText(first)}${more} Change the policies, or ask the owner of the invariant for an exception.`
      : `The invariant was not stored, because the policies break it: ${brokenText(first)}${more} Change the policies first, or add exceptions.`;
  return new AppError('invariant_broken', detail, options);
}

/** Returns the name, the reason and the witness. */
export function brokenText({ name, reason, witness }: BrokenInvariant): string {
  const stated = `${JSON.stringify(name)} (${reason}).`;
  if (witness === null) return stated;
  const { subjects, target, resource_type, resource_name, is_template, policy } = witness;
  const who = subjects.map(({ subject_type, subject_value }) => `${subject_type} ${JSON.stringify(subject_value)}`).join(' and ');
  const what = `${resource_type}${is_template ? ' template' : ''} ${JSON.stringify(resource_name)}`;
  return `${stated} For example, the policy ${JSON.stringify(policy.name)} would allow ${who === '' ? 'everyone' : who} to use ${what} at ${target}.`;
}
