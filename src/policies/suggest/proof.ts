/** Checks a suggestion before anybody sees it: the analysis must show that it changes what it says, and nothing else. */
import { AppError } from '../../base/errors.ts';
import { inSlices, telling } from '../../base/turns/slices.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { Engine } from '../../engine/decision.ts';
import { type ComparisonVerdict, compareInSteps } from '../analysis/compare.ts';
import type { Progress } from '../analysis/search.ts';
import type { DecisionChanges, Flip } from '../sets/decision-changes.ts';
import type { TargetName } from '../sets/planning.ts';
import { isExact } from './exact-pattern.ts';
import type { Need } from './needs.ts';
import { HIGHEST, type Proposed } from './proposal.ts';

/** Why a suggestion is withheld. It should never happen, so it says what to report. */
export const withheld = (why: string): AppError =>
  new AppError(
    'internal',
    `The suggestion is withheld, because a check of it failed: ${why}. Report this as a fault of the gateway.`,
  );

const undecided = (): AppError =>
  new AppError(
    'too_large',
    'The suggestion is withheld, because it cannot be proved within the limits of the comparison. Ask for less at once, or use simpler patterns in policies.',
  );

type Say = (progress: Progress | undefined) => void;

/** What both kinds of suggestion are held to. `created`: the policies that came from the proposed ones, in their order. */
export interface Claim {
  readonly before: readonly StoredPolicy[];
  readonly after: readonly StoredPolicy[];
  readonly proposed: readonly Proposed[];
  readonly created: readonly (StoredPolicy | undefined)[];
}

/** Throws AppError unless each policy is what was proposed, and its pattern matches its names alone. */
function requireFaithful({ proposed, created }: Claim): void {
  for (const [i, { names, ...wanted }] of proposed.entries()) {
    const policy = created[i];
    const [subject, ...others] = policy?.subjects ?? [];
    const isSame =
      policy?.effect === 'allow' &&
      policy.target_id === wanted.target_id &&
      policy.resource_type === wanted.resource_type &&
      policy.resource_pattern === wanted.resource_pattern &&
      policy.priority === wanted.priority &&
      others.length === 0 &&
      subject?.subject_type === wanted.subject_type &&
      subject.subject_value === wanted.subject_value;
    if (!isSame) throw withheld('a file does not say what was proposed');
    const texts = names.length === 0 ? [''] : names;
    if (!isExact({ pattern: wanted.resource_pattern, names: texts })) throw withheld('a pattern matches other names');
  }
}

const verdictOf = async (before: readonly StoredPolicy[], after: readonly StoredPolicy[], say: Say): Promise<ComparisonVerdict> =>
  (await inSlices(telling(compareInSteps(before, after, { bounds: { differences: 1 } }), say))).verdict;

function requireVerdict(verdict: ComparisonVerdict, allowed: readonly ComparisonVerdict[], what: string): void {
  if (allowed.includes(verdict)) return;
  throw verdict === 'unknown' ? undecided() : withheld(`${what} is ${verdict}`);
}

/**
 * Throws AppError unless `after` allows everything that `before` allows, and further only what the proposed policies name, for their
 * subjects. `engine`: that of `after`.
 */
export async function proveGrants(
  claim: Claim,
  { verdict, flipsOf }: DecisionChanges,
  targets: readonly TargetName[],
  needs: readonly Need[],
  engine: Engine,
  say: Say,
): Promise<void> {
  requireFaithful(claim);
  requireVerdict(verdict, ['looser'], 'the comparison with the current policies');
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  for (const [i, proposed] of claim.proposed.entries()) {
    for (const flip of flipsOf(claim.created[i]?.id ?? '') ?? []) {
      if (!isAnnounced(flip, proposed, names)) throw withheld('an example is not among what was announced');
    }
  }
  // With the highest priority, these policies allow everything that is announced, whatever denies it now.
  const announced = claim.created.flatMap((policy) => (policy === undefined ? [] : [{ ...policy, priority: HIGHEST }]));
  const most = [...claim.before, ...announced];
  requireVerdict(await verdictOf(most, claim.after, say), ['equal', 'stricter'], 'the comparison with what was announced');
  requireMet(claim.proposed, needs, engine);
}

function isAnnounced({ subjects, after, ...asked }: Flip, proposed: Proposed, names: ReadonlyMap<string, string>): boolean {
  return (
    after.effect === 'allow' &&
    asked.target === names.get(proposed.target_id) &&
    subjects.some((one) => one.subject_type === proposed.subject_type && one.subject_value === proposed.subject_value) &&
    (asked.resource_type === null ||
      (asked.resource_type === proposed.resource_type && proposed.names.includes(asked.resource_name ?? '')))
  );
}

function requireMet(proposed: readonly Proposed[], needs: readonly Need[], engine: Engine): void {
  for (const at of proposed.flatMap((each) => each.needs)) {
    const need = needs[at];
    if (need === undefined) continue;
    const { principal, target_id, resource_type, resource_name } = need;
    const { effect } =
      resource_type === null || resource_name === null
        ? engine.decideTarget(principal, target_id)
        : engine.decide(principal, target_id, { resource_type, resource_name });
    if (effect !== 'allow') throw withheld('a request is still denied');
  }
}

/** Throws AppError unless `after` allows nothing that `before` denies, and decides every request without the role as `before` does. */
export async function proveLeast(
  claim: Claim,
  { verdict }: Pick<DecisionChanges, 'verdict'>,
  role: string,
  needs: readonly Need[],
  engine: Engine,
  say: Say,
): Promise<void> {
  requireFaithful(claim);
  requireVerdict(verdict, ['equal', 'stricter'], 'the comparison with the current policies');
  const [before, after] = [claim.before, claim.after].map((set) => set.map((policy) => strippedOf(policy, role)));
  requireVerdict(await verdictOf(before ?? [], after ?? [], say), ['equal'], 'the comparison for callers with other roles');
  requireMet(claim.proposed, needs, engine);
}

const strippedOf = (policy: StoredPolicy, role: string): StoredPolicy => ({
  ...policy,
  subjects: policy.subjects.filter(({ subject_type, subject_value }) => subject_type !== 'role' || subject_value !== role),
});
