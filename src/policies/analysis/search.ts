/** The one question behind all findings and comparisons: does a name exist that some policies match and others do not? */
import type { Rank } from '../../engine/compile/compile.ts';
import { isTemplateText } from '../../protocol/uri.ts';
import { type Budget, spend, TooLarge, textsAutomaton } from './automaton.ts';
import { areApart, canBeAsked, type Names } from './names.ts';
import { callersOf, commonTarget, firstFit, type Index, type Key, type Question, type Side, type View } from './requests.ts';
import { findAskable } from './uris.ts';

export interface Bounds {
  /** The maximum number of steps of one question about one policy. After that, the answer is `undecided`. */
  readonly steps: number;
}

export const BOUNDS: Bounds = { steps: 50_000 };

export interface Progress {
  readonly done: number;
  readonly total: number;
}

/**
 * A request. The caller has these subjects and no others; a null target is one that no policy names; a null name means the use of
 * the target.
 */
export interface Request {
  readonly keys: readonly Key[];
  readonly target: string | null;
  readonly question: Question;
  readonly name: string | null;
}

export type Found =
  | { readonly kind: 'found'; readonly request: Request }
  /** The policies in `by` leave no such request. */
  | { readonly kind: 'none'; readonly by: readonly View[] }
  | { readonly kind: 'undecided' };

export const UNDECIDED: Found = { kind: 'undecided' };

/** Results one after the other, with pauses in between. */
export type Finds = Generator<Found | undefined, void>;

/**
 * Returns the first result that is found. If none is found, it returns `undecided` if any result is undecided, and otherwise
 * `none` with the policies of all results.
 */
export function* firstOf(finds: Finds): Generator<undefined, Found> {
  let undecided = false;
  const by = new Set<View>();
  for (const each of finds) {
    if (each?.kind === 'found') return each;
    if (each?.kind === 'undecided') undecided = true;
    else if (each !== undefined) for (const view of each.by) by.add(view);
    yield;
  }
  return undecided ? UNDECIDED : { kind: 'none', by: [...by].sort((a, b) => a.rank - b.rank) };
}

/** Searches for a request of this kind that every policy in `include` matches, and no policy of `sides`. */
export function* find(
  { keys, target, question }: Omit<Request, 'name'>,
  include: readonly View[],
  sides: readonly Side[],
  budget: Budget,
): Generator<undefined, Found> {
  try {
    spend(budget, 1);
    const every = sides.flatMap(({ cells, below, except }) =>
      cells.flatMap((cell) => cell.every.find((view) => view !== except) ?? []).filter(({ rank }) => rank < below),
    );
    if (every.length > 0) return { kind: 'none', by: [every.reduce((first, view) => (view.rank < first.rank ? view : first))] };
    const names = include.map((view) => view.names);
    const name = question === 'use' ? null : yield* findName(question, names, sides, budget);
    if (Array.isArray(name)) return { kind: 'none', by: name };
    return { kind: 'found', request: { keys, target, question, name } };
  } catch (error) {
    if (error instanceof TooLarge) return UNDECIDED;
    throw error;
  }
}

/** Returns the name, or the policies that leave no name. Throws `TooLarge`. */
function* findName(
  type: Exclude<Question, 'use'>,
  include: readonly Names[],
  sides: readonly Side[],
  budget: Budget,
): Generator<undefined, string | View[]> {
  const blockerOf = (name: string): View | null => {
    spend(budget, 1);
    for (const side of sides) {
      const view = firstFit(side, name);
      if (view !== null) return view;
    }
    return null;
  };
  const by = new Set<View>();
  const fitsAll = (name: string): boolean => include.every((names) => names.has(name));

  const few = include.find(({ texts }) => texts !== null)?.texts;
  if (few) {
    // Prefer a URI to a template.
    for (const text of few.toSorted((a, b) => Number(isTemplateText(a)) - Number(isTemplateText(b)))) {
      if (!canBeAsked(type, text) || !fitsAll(text)) continue;
      const view = blockerOf(text);
      if (view === null) return text;
      by.add(view);
    }
    return [...by];
  }
  if (include.some((one, i) => include.slice(i + 1).some((other) => areApart(one, other)))) return [];

  // Exclude only policies that turn out to block a result: of many policies, few do.
  const included = include.filter(({ isEvery }) => !isEvery).map((names) => names.automaton());
  const excluded = new Map<Names | null, ReturnType<Names['automaton']>>();
  for (;;) {
    const name = yield* findAskable(type, included, [...excluded.values()], budget);
    if (name === null) return [...by];
    const view = blockerOf(name);
    if (view === null) return name;
    if (view.names.texts === null) {
      excluded.set(view.names, view.names.automaton());
      by.add(view);
    } else {
      const all = textsIn(sides, fitsAll, budget);
      excluded.set(null, textsAutomaton(all.keys()));
      for (const each of all.values()) by.add(each);
    }
  }
}

/** Returns the single texts that policies of the sides match, with one policy for each. */
function textsIn(sides: readonly Side[], fits: (text: string) => boolean, budget: Budget): Map<string, View> {
  const found = new Map<string, View>();
  for (const { cells, below, except } of sides) {
    for (const { texts } of cells) {
      spend(budget, texts.size);
      for (const [text, views] of texts) {
        const view = views.find((candidate) => candidate !== except);
        if (view !== undefined && view.rank < below && fits(text)) found.set(text, view);
      }
    }
  }
  return found;
}

/** The sides of one set, for any caller and target. */
export interface Reading {
  readonly index: Index;
  readonly below: Rank;
  readonly except: View | null;
}

const sideOf = ({ index, below, except }: Reading, { target, question, keys }: Omit<Request, 'name'>): Side => ({
  cells: index.cells(target, question, keys),
  below,
  except,
});

/**
 * Searches for requests that all these policies match, and no policy of the readings. `isWanted`: whether a caller and a target may be
 * part of a result.
 */
export function* findCommon(
  views: readonly View[],
  questions: readonly Question[],
  readings: readonly Reading[],
  budget: Budget,
  isWanted: (kind: Omit<Request, 'name'>) => boolean = () => true,
): Finds {
  const target = commonTarget(views);
  const common = questions.filter((question) => views.every((view) => view.questions.includes(question)));
  if (target === undefined || common.length === 0) return;
  if (!common.includes('use') && pairsOf(views).some(([one, two]) => areApart(one.names, two.names))) return;
  const many = views.length > 1 && views.some(({ keys }) => keys.length > 1);
  for (const question of common) {
    if (many && (yield* find({ keys: [], target, question }, views, [], budget)).kind === 'none') continue;
    for (const keys of callersOf(views)) {
      const kind = { keys, target, question };
      if (!isWanted(kind)) continue;
      const sides = readings.map((reading) => sideOf(reading, kind));
      yield yield* find(kind, views, sides, budget);
      // Nothing more can be found, and there may be millions of callers.
      if (budget.left < 0) return;
    }
  }
}

const pairsOf = <T>(items: readonly T[]): [T, T][] =>
  items.flatMap((one, i) => items.slice(i + 1).map((two): [T, T] => [one, two]));

export interface ChangeParts {
  readonly from: Index;
  readonly to: Index;
  /** The policy that is missing in `to`, although the index contains it. */
  readonly without: View | null;
  /** Whether the policy is in both sets. If two policies are, neither can decide a request that the other one decided before. */
  readonly isKept: (view: View) => boolean;
  readonly budget: Budget;
}

/** Searches for requests that the policy decides in `from` and that get the opposite effect in `to`. */
export function* changes(view: View, { from, to, without, isKept, budget }: ChangeParts): Finds {
  const decided: Reading = { index: from, below: view.rank, except: null };
  const alone: Reading = { index: to, below: Number.POSITIVE_INFINITY, except: without };
  // A kept policy still matches what it decided, so such a request never falls to the default.
  if (view.effect === 'allow' && !isKept(view)) yield* findCommon([view], view.questions, [decided, alone], budget);
  for (const other of to.speakingOf(view.effect === 'allow' ? 'deny' : 'allow', view.target)) {
    if (other === without || (isKept(view) && isKept(other))) continue;
    if (from === to && other.rank < view.rank) continue;
    const first: Reading = { index: to, below: other.rank, except: without };
    yield* findCommon([view, other], view.questions, [decided, first], budget);
  }
}
