/**
 * A policy set in the form that the analysis needs: which callers to ask about, and which policy decides first.
 *
 * A caller has one user id, one role and any set of groups. All values that no policy names behave alike. The more a caller has,
 * the more policies match. Therefore, if any caller demonstrates an effect of one or two policies, so does a caller who has only
 * what these two require. The analysis need not look at sets of groups.
 * The same holds for targets: the fewest policies match a target that no policy names.
 */
import { type Rank, type ReadPolicy, readInSteps, readStrictly } from '../../engine/compile/compile.ts';
import { readPattern } from '../../engine/compile/pattern.ts';
import { type Effect, type Policy, RESOURCE_TYPES, type ResourceType } from '../../engine/compile/policy.ts';
import type { Names } from './names.ts';

/** A question about objects of a type, or about the use of the target. */
export type Question = ResourceType | 'use';

/** A subject as text. Subjects that behave alike share a key. */
export type Key = string;
export const EVERYONE: Key = '["everyone"]';

/** A policy as the rules read it, with its target, names, questions and subjects. */
export interface View {
  readonly rank: Rank;
  readonly policy: ReadPolicy;
  readonly effect: Effect;
  readonly target: string | null;
  readonly names: Names;
  readonly questions: readonly Question[];
  /**
   * The subjects. If all policies of the sets treat several subjects alike, the view contains only one of them. `EVERYONE` stands
   * alone.
   */
  readonly keys: readonly Key[];
}

/**
 * Returns the policies that the engine reads, in the order of evaluation. It reads them as the compiler does, so that only one reading
 * exists. `known`: the policies that are read already, because sets share most of them.
 */
export function readInOrder(
  policies: readonly Policy[],
  known = new Map<Policy, ReadPolicy | null>(),
): Generator<undefined, readonly ReadPolicy[]> {
  return readInSteps(policies, (policy) => {
    const reading = known.get(policy) ?? readStrictly(policy, refusalOf);
    known.set(policy, reading);
    return reading;
  });
}

function refusalOf(pattern: string): string | null {
  const reading = readPattern(pattern);
  return typeof reading === 'string' ? reading : null;
}

/** Returns views of sets that are analysed together. */
export function* viewSets(
  sets: readonly (readonly ReadPolicy[])[],
  library: (pattern: string | null) => Names,
): Generator<undefined, View[][]> {
  const known = new Map<ReadPolicy, readonly Key[]>();
  const keysOf = (policy: ReadPolicy): readonly Key[] => {
    const keys = known.get(policy) ?? policy.subjects.map((subject) => JSON.stringify(subject));
    known.set(policy, keys);
    return keys.includes(EVERYONE) ? [EVERYONE] : keys;
  };
  const fits = new Map<Key, string>();
  for (const [number, set] of sets.entries()) {
    for (const [rank, policy] of set.entries()) {
      if (rank % PAUSE === 0) yield;
      for (const key of keysOf(policy)) fits.set(key, `${fits.get(key) ?? ''}${number}.${rank},`);
    }
  }
  const first = new Map<string, Key>();
  const standing = new Map<Key, Key>();
  for (const [key, policies] of fits) {
    const alike = `${kindOf(key)} ${policies}`;
    const known = first.get(alike) ?? key;
    first.set(alike, known);
    standing.set(key, known);
    yield;
  }
  const viewed: View[][] = [];
  for (const set of sets) {
    const views: View[] = [];
    for (const [rank, policy] of set.entries()) {
      if (rank % PAUSE === 0) yield;
      const { effect, pattern, target, type } = policy;
      const speaksOfTarget = effect === 'allow' || (type === 'all' && pattern === null);
      views.push({
        rank,
        policy,
        effect,
        target,
        names: library(pattern),
        questions: [...(type === 'all' ? RESOURCE_TYPES : [type]), ...(speaksOfTarget ? (['use'] as const) : [])],
        keys: [...new Set(keysOf(policy).map((key) => standing.get(key) ?? key))],
      });
    }
    viewed.push(views);
  }
  return viewed;
}

/** The number of policies after which other work may run. */
export const PAUSE = 100;

const kindOf = (key: Key): string => key.slice(2, key.indexOf('"', 2));

/** The policies for one target, type and subject, by rank: those that match every name, those that match a few, and the rest. */
export interface Cell {
  readonly every: View[];
  readonly texts: Map<string, View[]>;
  readonly others: View[];
}

export interface Index {
  readonly views: readonly View[];
  /** The policies for this target and for every target; with null, the policies for any target. */
  speakingOf(effect: Effect, target: string | null): Iterable<View>;
  /** null: a target that no policy names. */
  cells(target: string | null, question: Question, keys: readonly Key[]): Cell[];
}

export function* createIndex(views: readonly View[]): Generator<undefined, Index> {
  const cells = new Map<string, Cell>();
  const cellKey = (target: string | null, question: Question, key: Key): string => `${question} ${JSON.stringify(target)} ${key}`;
  const byTarget = groupBy(views, ({ effect, target }) => `${effect} ${JSON.stringify(target)}`);
  const byEffect = groupBy(views, ({ effect }) => effect);
  for (const view of views) {
    if (view.rank % PAUSE === 0) yield;
    const { texts, isEvery } = view.names;
    for (const question of view.questions) {
      for (const key of view.keys) {
        const at = cellKey(view.target, question, key);
        const cell = cells.get(at) ?? { every: [], texts: new Map<string, View[]>(), others: [] };
        cells.set(at, cell);
        if (isEvery || question === 'use') cell.every.push(view);
        else if (texts === null) cell.others.push(view);
        else {
          for (const text of new Set(texts)) {
            const same = cell.texts.get(text);
            if (same === undefined) cell.texts.set(text, [view]);
            else same.push(view);
          }
        }
      }
    }
  }
  return {
    views,
    *speakingOf(effect, target) {
      if (target === null) return yield* byEffect.get(effect) ?? [];
      yield* byTarget.get(`${effect} ${JSON.stringify(target)}`) ?? [];
      yield* byTarget.get(`${effect} null`) ?? [];
    },
    cells: (target, question, keys) =>
      [EVERYONE, ...keys.filter((key) => key !== EVERYONE)].flatMap((key) => {
        const found = (target === null ? [null] : [null, target]).map((of) => cells.get(cellKey(of, question, key)));
        return found.filter((cell) => cell !== undefined);
      }),
  };
}

export function groupBy<T>(items: Iterable<T>, keyOf: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const key = keyOf(item);
    const group = groups.get(key);
    if (group === undefined) groups.set(key, [item]);
    else group.push(item);
  }
  return groups;
}

/** The policies of some cells that are evaluated before the rank `below`, except the policy `except`. */
export interface Side {
  readonly cells: readonly Cell[];
  readonly below: Rank;
  readonly except: View | null;
}

/** Returns the first policy that matches the name. */
export function firstFit({ cells, below, except }: Side, name: string): View | null {
  let best: View | null = null;
  let limit = below;
  for (const { every, texts, others } of cells) {
    for (const [views, fits] of [
      [every, () => true],
      [texts.get(name) ?? [], () => true],
      [others, ({ names }: View) => names.has(name)],
    ] as const) {
      for (const view of views) {
        if (view.rank >= limit) break;
        if (view === except || !fits(view)) continue;
        best = view;
        limit = view.rank;
        break;
      }
    }
  }
  return best;
}

/** Yields callers who have what all these policies require and, in addition to `keys`, nothing else. */
export function* callersOf([view, ...others]: readonly View[], keys: readonly Key[] = []): Generator<Key[]> {
  if (view === undefined) yield [...keys];
  else if (view.keys.some((key) => key === EVERYONE || keys.includes(key))) yield* callersOf(others, keys);
  else {
    for (const key of view.keys) {
      if (keys.every((other) => canHaveBoth(key, other))) yield* callersOf(others, [...keys, key]);
    }
  }
}

function canHaveBoth(a: Key, b: Key): boolean {
  const kind = kindOf(a);
  return kind !== kindOf(b) || kind === 'group';
}

/** undefined: no target matches all these policies; null: a target that no policy names. */
export function commonTarget(views: readonly View[]): string | null | undefined {
  const [target = null, ...others] = new Set(views.flatMap((view) => view.target ?? []));
  return others.length === 0 ? target : undefined;
}
