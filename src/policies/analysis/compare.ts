/** What a change of the policy set does: exactly, over all requests that can be made. */

import type { ReadPolicy } from '../compile.ts';
import type { Policy } from '../document.ts';
import { createLibrary } from './names.ts';
import { createIndex, type Index, readInOrder, type View, viewSets } from './requests.ts';
import { BOUNDS, type Bounds, changes, drive, type Found, firstOf, type Progress } from './search.ts';
import { type Answer, type AskedRequest, answer, createAsk } from './witness.ts';

/**
 * - `equal`: every request gets the same effect, though perhaps by another policy. `stricter`: some are denied that were allowed,
 *   none the other way round; `looser` is the contrary; `incomparable`: both.
 * - `unknown`: it could not be told within the bounds.
 */
export type ComparisonVerdict = 'equal' | 'stricter' | 'looser' | 'incomparable' | 'unknown';

export interface Difference extends AskedRequest {
  readonly before: Answer;
  readonly after: Answer;
}

export interface Comparison {
  readonly verdict: ComparisonVerdict;
  /** Allowed before, denied after. null: there is no such request, or none was found and the verdict is `unknown`. */
  readonly stricter: Difference | null;
  /** Denied before, allowed after. */
  readonly looser: Difference | null;
}

export interface CompareOptions {
  readonly onProgress?: (progress: Progress) => void;
  readonly bounds?: Bounds;
}

export function compare(
  before: readonly Policy[],
  after: readonly Policy[],
  { onProgress = () => {}, bounds = BOUNDS }: CompareOptions = {},
): Comparison {
  return drive(compareInSteps(before, after, bounds), onProgress);
}

/** `compare`, pausing so that the caller can let other work run; it says how far it is whenever that has changed. */
export function* compareInSteps(
  before: readonly Policy[],
  after: readonly Policy[],
  bounds: Bounds = BOUNDS,
): Generator<Progress | undefined, Comparison> {
  const sets = [yield* readInOrder(before), yield* readInOrder(after)] as const;
  const [was = [], is = []] = yield* viewSets(sets, createLibrary());
  const ask = createAsk(sets, []);
  const [old, now] = [yield* createIndex(was), yield* createIndex(is)];
  const meanings = sets.map((set) => new Set(set.map(meaning)));
  const kept = new Set([...was, ...is].filter(({ policy }) => meanings.every((set) => set.has(meaning(policy)))));
  const isKept = (view: View): boolean => kept.has(view);

  const total = was.length + is.length;
  let done = 0;
  let undecided = false;
  function* lost(from: Index, to: Index): Generator<Progress | undefined, Found | null> {
    for (const view of from.views) {
      if (view.effect === 'allow') {
        const budget = { left: bounds.steps };
        const outcome = yield* firstOf(changes(view, { from, to, without: null, isKept, budget }));
        if (outcome.kind === 'found') return outcome;
        if (outcome.kind === 'undecided') undecided = true;
      }
      yield { done: ++done, total };
    }
    return null;
  }
  const differenceOf = (outcome: Found | null): Difference | null => {
    if (outcome?.kind !== 'found') return null;
    const { request } = outcome;
    return { ...ask(request), before: answer(old, request), after: answer(now, request) };
  };
  const stricter = differenceOf(yield* lost(old, now));
  done = was.length;
  const looser = differenceOf(yield* lost(now, old));
  return { verdict: verdictOf(stricter !== null, looser !== null, undecided), stricter, looser };
}

function verdictOf(stricter: boolean, looser: boolean, undecided: boolean): ComparisonVerdict {
  if (stricter && looser) return 'incomparable';
  if (undecided) return 'unknown';
  return stricter ? 'stricter' : looser ? 'looser' : 'equal';
}

const meaning = ({ effect, id, pattern, priority, subjects, target, type }: ReadPolicy): string =>
  JSON.stringify([effect, id, pattern, priority, subjects, target, type]);
