/** The analysis and the comparison without pauses. */
import { atOnce, telling } from '../../../src/base/turns/slices.ts';
import type { Policy } from '../../../src/engine/compile/policy.ts';
import { analyseInSteps, type Known } from '../../../src/policies/analysis/analyse.ts';
import { type CompareOptions, compareInSteps } from '../../../src/policies/analysis/compare.ts';
import { breachesInSteps, type Guarded, type GuardOptions } from '../../../src/policies/analysis/invariants.ts';
import type { Bounds, Progress } from '../../../src/policies/analysis/search.ts';

interface Told {
  readonly onProgress?: (progress: Progress) => void;
}

const drive = <T>(steps: Generator<Progress | undefined, T>, { onProgress = () => {} }: Told): T =>
  atOnce(
    telling(steps, (progress) => {
      if (progress !== undefined) onProgress(progress);
    }),
  );

export const analyse = (policies: readonly Policy[], known: Known = {}, options: Told & { readonly bounds?: Bounds } = {}) =>
  drive(analyseInSteps(policies, known, options.bounds), options);

export const compare = (before: readonly Policy[], after: readonly Policy[], options: Told & CompareOptions = {}) =>
  drive(compareInSteps(before, after, options), options);

export const breaches = (
  before: readonly Policy[],
  after: readonly Policy[],
  invariants: readonly Guarded[],
  options: Told & GuardOptions = {},
) => drive(breachesInSteps(before, after, invariants, options), options);
