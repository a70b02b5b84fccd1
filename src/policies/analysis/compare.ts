/** Compares two policy sets. The comparison is exact over all possible requests. */
import type { ReadPolicy } from '../../engine/compile/compile.ts';
import type { Effect, Policy } from '../../engine/compile/policy.ts';
import { createLibrary } from './names.ts';
import { createIndex, PAUSE, readInOrder, type View, viewSets } from './requests.ts';
import { BOUNDS, type Bounds, changes, firstOf, type Progress, type Request, UNDECIDED } from './search.ts';
import { type Answer, type AskedRequest, answer, createAsk, type NamedSubject, subjectsOf } from './witness.ts';

/**
 * - `equal`: every request gets the same effect, though perhaps from a different policy.
 * - `stricter`: some requests that were allowed are denied, and none that were denied are allowed.
 * - `looser`: some requests that were denied are allowed, and none that were allowed are denied.
 * - `incomparable`: both happen.
 * - `unknown`: the comparison reached its limits.
 */
export type ComparisonVerdict = 'equal' | 'stricter' | 'looser' | 'incomparable' | 'unknown';

type Way = 'stricter' | 'looser';

export interface Difference extends AskedRequest {
  /** The subjects that matter. A caller with these, and with nothing else that a policy names, gets the same answer. */
  readonly subjects: readonly NamedSubject[];
  readonly before: Answer;
  readonly after: Answer;
}

/** Requests whose effect flips and that a given policy decides before or after. */
export interface Flips {
  /** Allowed before, denied after. null: no such request exists, unless `undecided` is true. */
  readonly stricter: Difference | null;
  /** Denied before, allowed after. */
  readonly looser: Difference | null;
  /** More flips may exist: the search reached its limits. */
  readonly undecided: boolean;
}

export interface Comparison {
  readonly verdict: ComparisonVerdict;
  /** Allowed before, denied after. null: no such request exists, or none was found and the verdict is `unknown`. */
  readonly stricter: Difference | null;
  /** Denied before, allowed after. */
  readonly looser: Difference | null;
  /** The flips by policy id, for each policy that differs between the two sets. Only these policies can cause flips. */
  readonly flips: ReadonlyMap<string, Flips>;
}

export interface CompareBounds extends Bounds {
  /** The maximum number of steps of all questions together. */
  readonly allSteps: number;
  /** The number of examples. After that, the search continues only as far as the verdict needs it. */
  readonly differences: number;
}

export const COMPARE_BOUNDS: CompareBounds = { ...BOUNDS, allSteps: 2_000_000, differences: 1_000 };

export interface CompareOptions {
  readonly bounds?: Partial<CompareBounds>;
  /** Ids of existing targets. Examples use one of them if possible. */
  readonly targets?: readonly string[];
}

/** Compares two sets. It pauses so that the caller can let other work run, and yields the progress whenever that has changed. */
export function* compareInSteps(
  before: readonly Policy[],
  after: readonly Policy[],
  { bounds: given = {}, targets = [] }: CompareOptions = {},
): Generator<Progress | undefined, Comparison> {
  const bounds = { ...COMPARE_BOUNDS, ...given };
  const known = new Map<Policy, ReadPolicy | null>();
  const sets = [yield* readInOrder(before, known), yield* readInOrder(after, known)] as const;
  const [was = [], is = []] = yield* viewSets(sets, createLibrary());
  const ask = createAsk(sets, targets);
  const [old, now] = [yield* createIndex(was), yield* createIndex(is)];
  const kept = yield* keptOf(was, is);
  const isKept = (view: View): boolean => kept.has(view);

  const differenceOf = (request: Request): Difference => {
    const shown = targets.slice(0, TARGETS_TRIED).map((target) => ({ ...request, target }));
    const answers = (asked: Request) => ({ before: answer(old, asked), after: answer(now, asked) });
    const found = answers(request);
    const isAlike = (asked: Request): boolean => JSON.stringify(answers(asked)) === JSON.stringify(found);
    const best = request.target === null ? (shown.find(isAlike) ?? request) : request;
    return { ...ask(best), subjects: subjectsOf(best.keys), ...found };
  };

  // Search only the changed policies: if kept policies decide a request in both sets, its effect stays the same.
  const changed = [
    ...was.map((view) => ({ view, from: old, to: now, way: WAYS[view.effect].before })),
    ...is.map((view) => ({ view, from: now, to: old, way: WAYS[view.effect].after })),
  ]
    .filter(({ view }) => !isKept(view))
    // Finish one policy after the other, so that as many as possible are complete when the steps run out.
    .sort(({ view: a }, { view: b }) => (a.policy.id < b.policy.id ? -1 : a.policy.id > b.policy.id ? 1 : 0));
  const flips = new Map(changed.map(({ view }) => [view.policy.id, { stricter: null, looser: null, undecided: false } as Flips]));
  const first: Record<Way, Difference | null> = { stricter: null, looser: null };
  const open: Record<Way, boolean> = { stricter: false, looser: false };
  let stepsLeft = bounds.allSteps;
  let differences = 0;
  function note(id: string | null, news: Partial<Flips>): void {
    const known = flips.get(id ?? '');
    if (known !== undefined) flips.set(id ?? '', { ...known, ...news });
  }
  for (const [done, { view, from, to, way }] of changed.entries()) {
    const { id } = view.policy;
    if (flips.get(id)?.[way] === null) {
      const isEnough = first[way] !== null && differences >= bounds.differences;
      const budget = { left: isEnough ? 0 : Math.min(bounds.steps, stepsLeft) };
      const steps = budget.left;
      const outcome = steps <= 0 ? UNDECIDED : yield* firstOf(changes(view, { from, to, without: null, isKept, budget }));
      stepsLeft -= steps - budget.left;
      if (outcome.kind === 'undecided') {
        open[way] = true;
        note(id, { undecided: true });
      } else if (outcome.kind === 'found') {
        const difference = differenceOf(outcome.request);
        first[way] ??= difference;
        differences++;
        // The flip also belongs to the policy that decides on the other side.
        note(difference.before.policy_id, { [way]: difference });
        note(difference.after.policy_id, { [way]: difference });
      }
    }
    yield { done: done + 1, total: changed.length };
  }
  const told = (way: Way): boolean | null => first[way] !== null || (open[way] ? null : false);
  return { verdict: verdictOf(told('stricter'), told('looser')), ...first, flips };
}

const WAYS = {
  allow: { before: 'stricter', after: 'looser' },
  deny: { before: 'looser', after: 'stricter' },
} as const satisfies Record<Effect, { readonly before: Way; readonly after: Way }>;

/** The number of existing targets that are tried for an example. Each costs two decisions. */
export const TARGETS_TRIED = 20;

/** null: unknown. */
function verdictOf(stricter: boolean | null, looser: boolean | null): ComparisonVerdict {
  if (stricter === true && looser === true) return 'incomparable';
  if (stricter === null || looser === null) return 'unknown';
  return stricter ? 'stricter' : looser ? 'looser' : 'equal';
}

/** Returns the policies that are the same in both sets: for the view of each set, the view of the other one. */
export function* keptOf(was: readonly View[], is: readonly View[]): Generator<undefined, Map<View, View>> {
  const shared = new Map(is.map((view) => [view.policy, view]));
  const byMeaning = new Map<string, View>();
  const kept = new Map<View, View>();
  for (const view of was) {
    if (view.rank % PAUSE === 0) yield;
    const same = shared.get(view.policy);
    if (same === undefined) byMeaning.set(meaning(view), view);
    else kept.set(same, view).set(view, same);
  }
  for (const view of is) {
    if (view.rank % PAUSE === 0) yield;
    const same = kept.has(view) ? undefined : byMeaning.get(meaning(view));
    if (same !== undefined) kept.set(same, view).set(view, same);
  }
  return kept;
}

const meaning = ({ policy: { effect, id, pattern, priority, subjects, target, type } }: View): string =>
  JSON.stringify([effect, id, pattern, priority, subjects, target, type]);
