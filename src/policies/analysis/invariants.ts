/** Requests that a change adds and that break an invariant. The search is exact over all possible requests, like a comparison. */
import type { ReadPolicy } from '../../engine/compile/compile.ts';
import type { Policy, PolicyResourceType, SubjectType } from '../../engine/compile/policy.ts';
import type { Budget } from './automaton.ts';
import { keptOf, TARGETS_TRIED } from './compare.ts';
import { createLibrary } from './names.ts';
import { createIndex, type Index, type Key, readInOrder, type View, viewSets } from './requests.ts';
import { BOUNDS, type Finds, findCommon, firstOf, type Progress, type Reading, type Request, UNDECIDED } from './search.ts';
import { type AskedRequest, answer, createAsk, type NamedSubject, subjectsOf } from './witness.ts';

export interface InvariantSubject {
  readonly subject_type: SubjectType;
  readonly subject_value: string | null;
}

/** The requests that must not be allowed. */
export interface Never {
  readonly subjects: readonly InvariantSubject[];
  /** Callers and targets that the invariant does not cover. */
  readonly except: { readonly subjects: readonly InvariantSubject[]; readonly targets: readonly string[] };
  /** Ids; null: every target, also those that do not exist yet. */
  readonly targets: readonly string[] | null;
  readonly resource_type: PolicyResourceType;
  readonly resource_pattern: string | null;
}

export interface Guarded {
  readonly never: Never;
  /** The ids of policies that may allow such requests. */
  readonly excepted: ReadonlySet<string>;
}

/** A request that breaks an invariant. */
export interface Breach extends AskedRequest {
  /** The subjects that matter. A caller with these, and with nothing else that a policy names, gets the same answer. */
  readonly subjects: readonly NamedSubject[];
  /** The policy that allows the request. */
  readonly policy_id: string;
}

/** `kept`: the change adds no request that breaks the invariant. */
export type Verdict = { readonly kind: 'kept' | 'undecided' } | { readonly kind: 'broken'; readonly breach: Breach };

export interface GuardOptions {
  /** The maximum number of steps of one question about one policy, and of all questions together. */
  readonly bounds?: { readonly steps: number; readonly allSteps: number };
  /** Ids of existing targets. Examples use one of them if possible. */
  readonly targets?: readonly string[];
}

const GUARD_BOUNDS = { ...BOUNDS, allSteps: 5_000_000 };

/** Returns a verdict for each invariant. It pauses so that the caller can let other work run, and yields the progress. */
export function* breachesInSteps(
  before: readonly Policy[],
  after: readonly Policy[],
  invariants: readonly Guarded[],
  { bounds = GUARD_BOUNDS, targets = [] }: GuardOptions,
): Generator<Progress | undefined, Verdict[]> {
  const known = new Map<Policy, ReadPolicy | null>();
  const sets = [
    yield* readInOrder(before, known),
    yield* readInOrder(after, known),
    yield* readInOrder(invariants.flatMap(coveredBy)),
    yield* readInOrder(invariants.flatMap(leftOutBy)),
  ];
  const [was = [], is = [], covered = [], leftOut = []] = yield* viewSets(sets, createLibrary());
  const [old, now] = [yield* createIndex(was), yield* createIndex(is)];
  const kept = yield* keptOf(was, is);
  const ask = createAsk(sets, targets);
  const isOf = (number: number) => (view: View) => view.policy.id.startsWith(`${number} `);
  const left = { left: bounds.allSteps };
  const verdicts: Verdict[] = [];
  for (const [i, { never, excepted }] of invariants.entries()) {
    const exemptKeys = new Set<Key>(leftOut.filter(isOf(i)).flatMap(({ keys }) => keys));
    const exemptTargets = new Set<string | null>(never.except.targets);
    const isCovered: Search['isCovered'] = ({ keys, target }) =>
      !exemptTargets.has(target) && !keys.some((key) => exemptKeys.has(key));
    const grants: Search['grants'] = ({ effect, policy }) => effect === 'allow' && !excepted.has(policy.id);
    const breaks = (index: Index, request: Request): boolean => {
      const { effect, policy_id } = answer(index, request);
      return effect === 'allow' && !excepted.has(policy_id ?? '');
    };
    const isAdded = (request: Request): boolean => breaks(now, request) && !breaks(old, request);
    const search = { old, now, kept, grants, isCovered, isAdded, steps: bounds.steps, left };
    const found = yield* firstOf(added(covered.filter(isOf(i)), search));
    if (found.kind === 'found') {
      const { request } = found;
      const shown = targets.slice(0, TARGETS_TRIED).map((target) => ({ ...request, target }));
      const best = request.target === null ? (shown.find((each) => isCovered(each) && isAdded(each)) ?? request) : request;
      const policy_id = answer(now, best).policy_id ?? '';
      verdicts.push({ kind: 'broken', breach: { ...ask(best), subjects: subjectsOf(best.keys), policy_id } });
    } else verdicts.push({ kind: found.kind === 'none' ? 'kept' : 'undecided' });
    yield { done: i + 1, total: invariants.length };
  }
  return verdicts;
}

/**
 * The requests that an invariant covers, as policies. They are denies, because the rules read a deny that they do not understand as
 * widely as possible.
 */
const coveredBy = ({ never }: Guarded, number: number): Policy[] =>
  [...new Set(never.targets ?? [null])].map((target, i) => ({
    ...pseudoPolicy(`${number} ${i}`, never.subjects),
    ...{ effect: 'deny', target_id: target, resource_type: never.resource_type, resource_pattern: never.resource_pattern },
  }));

/** The exempt callers, and the exempt targets without callers. */
const leftOutBy = ({ never: { except } }: Guarded, number: number): Policy[] => [
  pseudoPolicy(`${number} s`, except.subjects),
  ...[...new Set(except.targets)].map((target, i) => ({ ...pseudoPolicy(`${number} ${i}`, []), target_id: target })),
];

const pseudoPolicy = (id: string, subjects: readonly InvariantSubject[]): Policy => ({
  ...{ id, name: id, description: null, enabled: true, priority: 0, created_at: 0, updated_at: 0 },
  ...{ effect: 'allow', target_id: null, resource_type: 'all', resource_pattern: null },
  subjects: subjects.map((subject) => ({ ...subject, id })),
});

interface Search {
  readonly old: Index;
  readonly now: Index;
  readonly kept: ReadonlyMap<View, View>;
  /** Whether the policy breaks the invariant if it decides a covered request. */
  readonly grants: (view: View) => boolean;
  readonly isCovered: (kind: Omit<Request, 'name'>) => boolean;
  readonly isAdded: (request: Request) => boolean;
  readonly steps: number;
  /** The steps that are left for all questions. */
  readonly left: Budget;
}

/**
 * Searches for requests that break the invariant now and did not before. If kept policies decide a request in both sets, nothing
 * changes. So a changed policy allows it now, or a changed policy decided it before.
 */
function* added(covered: readonly View[], { old, now, kept, grants, isCovered, isAdded, steps, left }: Search): Finds {
  const below = (index: Index, { rank }: Pick<View, 'rank'>): Reading => ({ index, below: rank, except: null });
  function* withBudget(finds: (budget: Budget) => Finds): Finds {
    const budget = { left: Math.min(steps, left.left) };
    const given = budget.left;
    if (given <= 0) yield UNDECIDED;
    else yield* finds(budget);
    left.left -= given - budget.left;
  }
  const changedNow = now.views.filter((view) => grants(view) && !kept.has(view));
  const changedBefore = old.views.filter((view) => !grants(view) && !kept.has(view));
  for (const region of covered) {
    const questions = region.questions.filter((question) => question !== 'use');
    for (const view of changedNow) {
      yield* withBudget(function* (budget) {
        const decided = below(now, view);
        const first = yield* firstOf(findCommon([region, view], questions, [decided], budget, isCovered));
        if (first.kind === 'none') return;
        if (first.kind === 'found' && isAdded(first.request)) yield first;
        yield* findCommon([region, view], questions, [decided, below(old, EVERY_RANK)], budget, isCovered);
        for (const other of old.views) {
          if (grants(other) || (kept.get(other)?.rank ?? Number.POSITIVE_INFINITY) < view.rank) continue;
          yield* findCommon([region, view, other], questions, [decided, below(old, other)], budget, isCovered);
        }
      });
    }
    for (const other of changedBefore) {
      yield* withBudget(function* (budget) {
        const first = yield* firstOf(findCommon([region, other], questions, [below(old, other)], budget, isCovered));
        if (first.kind === 'none') return;
        if (first.kind === 'found' && isAdded(first.request)) yield first;
        for (const view of now.views) {
          const then = kept.get(view);
          if (then === undefined || !grants(view) || then.rank < other.rank) continue;
          yield* findCommon([region, view, other], questions, [below(now, view), below(old, other)], budget, isCovered);
        }
      });
    }
  }
}

const EVERY_RANK = { rank: Number.POSITIVE_INFINITY };
