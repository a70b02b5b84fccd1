/**
 * A policy set as an analysis asks it: who can be asked about, and which policy decides first.
 *
 * A caller is one user id, one role and any set of groups; whatever no policy names is alike. The more a caller has, the more
 * policies fit: so if any caller shows something that one or two policies bring about, then one shows it who has only what
 * these two ask for, and there is no need to look at sets of groups. The same holds for targets: one that no policy names has
 * the fewest policies.
 */
import { compileInSteps, type Rank, type ReadPolicy } from '../compile.ts';
import { type Effect, type Policy, RESOURCE_TYPES, type ResourceType } from '../document.ts';
import { readPattern } from '../pattern.ts';
import type { Names } from './names.ts';

/** About objects of a type, or whether the target may be used at all. */
export type Question = ResourceType | 'use';

/** A subject as text: one key for each that matters. */
export type Key = string;
export const EVERYONE: Key = '["everyone"]';

/** A policy as the rules read it, with what it speaks of. */
export interface View {
  readonly rank: Rank;
  readonly policy: ReadPolicy;
  readonly effect: Effect;
  readonly target: string | null;
  readonly names: Names;
  readonly questions: readonly Question[];
  /** Subjects, without those that no policy of the sets at hand tells from another. `EVERYONE` stands alone. */
  readonly keys: readonly Key[];
}

/**
 * What the engine reads, in reading order: the compiler's own reading, so that there is no other. `refusals`: of patterns that
 * have been looked at, where several sets have them.
 */
export function* readInOrder(
  policies: readonly Policy[],
  refusals = new Map<string, string | null>(),
): Generator<undefined, readonly ReadPolicy[]> {
  const checkPattern = (pattern: string): string | null => {
    const known = refusals.get(pattern);
    if (known !== undefined) return known;
    const reading = readPattern(pattern);
    const refusal = typeof reading === 'string' ? reading : null;
    refusals.set(pattern, refusal);
    return refusal;
  };
  const { document } = yield* compileInSteps(policies, { checkPattern });
  return document.policies;
}

/** Views of sets that are looked at together. */
export function* viewSets(
  sets: readonly (readonly ReadPolicy[])[],
  library: (pattern: string | null) => Names,
): Generator<undefined, View[][]> {
  const keysOf = ({ subjects }: ReadPolicy): Key[] => {
    const keys = subjects.map((subject) => JSON.stringify(subject));
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

/** After so many policies other work may run. */
export const PAUSE = 100;

const kindOf = (key: Key): string => key.slice(2, key.indexOf('"', 2));

/** What one target, type and subject bring to a decision, by rank: policies for every name, for few, and the others. */
export interface Cell {
  readonly every: View[];
  readonly texts: Map<string, View[]>;
  readonly others: View[];
}

export interface Index {
  readonly views: readonly View[];
  /** Those for this target, for every target, or for null any at all. */
  speakingOf(effect: Effect, target: string | null): Iterable<View>;
  /** null: a target that no policy names. */
  cells(target: string | null, question: Question, keys: readonly Key[]): Cell[];
}

export function* createIndex(views: readonly View[]): Generator<undefined, Index> {
  const cells = new Map<string, Cell>();
  const place = (target: string | null, question: Question, key: Key): string => `${question} ${JSON.stringify(target)} ${key}`;
  const byTarget = groupBy(views, ({ effect, target }) => `${effect} ${JSON.stringify(target)}`);
  const byEffect = groupBy(views, ({ effect }) => effect);
  for (const view of views) {
    if (view.rank % PAUSE === 0) yield;
    const { texts, isEvery } = view.names;
    for (const question of view.questions) {
      for (const key of view.keys) {
        const at = place(view.target, question, key);
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
        const found = (target === null ? [null] : [null, target]).map((of) => cells.get(place(of, question, key)));
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

/** Which policies of some cells are looked at: those read before the rank `below`, but for `except`. */
export interface Side {
  readonly cells: readonly Cell[];
  readonly below: Rank;
  readonly except: View | null;
}

/** The first policy that fits the name. */
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

/** Callers who have what both ask for, and nothing else, but for those who have more than another of them. */
export function* callersOf(one: View, two: View): Generator<Key[]> {
  for (const key of one.keys) {
    if (two.keys.includes(EVERYONE) || two.keys.includes(key)) yield [key];
    else for (const other of two.keys) if (canHaveBoth(key, other)) yield [key, other];
  }
}

function canHaveBoth(a: Key, b: Key): boolean {
  const kind = kindOf(a);
  return kind !== kindOf(b) || kind === 'group';
}

/** undefined: no target has both; null: one that no policy names. */
export function commonTarget(a: View, b: View): string | null | undefined {
  if (a.target === null) return b.target;
  return b.target === null || b.target === a.target ? a.target : undefined;
}
