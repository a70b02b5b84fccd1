/**
 * Estimates how long decisions take before they are made, so that long ones can be cut into steps and take turns. The time of a test grows with
 * the length of the name, and nothing ends an evaluation.
 */

import { MAX_WORK } from './compile/automaton.ts';
import { fullestOf } from './compile/collisions.ts';
import type { Bucket, BySubject, CompiledDocument, IndexNode, NameTest } from './compile/compile.ts';
import { knownWork, readPattern, workOfInSteps } from './compile/pattern.ts';
import { RESOURCE_TYPES, type ResourceType, SUBJECT_TYPES } from './compile/policy.ts';
import { atLeast, NOTHING, plus, regexWeight, textWeight, type Weight } from './compile/weight.ts';
import type { Decision, Engine, NamedObject, PrincipalFacts } from './decision.ts';

/** Milliseconds that deciding the objects takes at most. It does not look at the names, only at their lengths. */
export type Estimate = Engine['estimate'];

/** Decisions that take less together need no better estimate, and are made in one step. Milliseconds. */
export const SHORT_MS = 1;

/** Nanoseconds: a decision without any test or table; a look-up of the beginning or end of the name. */
const DECISION: Weight = { name: 2_000, byte: 12 };
const EDGE: Weight = { name: 800, byte: 1 };
/** A look-up in a table of texts, for each subject of the caller that has one. */
const LOOK_UP: Weight = { name: 60, byte: 1.7 };
/** The name is compared with a text in the same slot of a table (collisions.ts), byte by byte until they differ. */
const COMPARISON: Weight = { name: 5, byte: 1.3 };

/** The weights of the buckets of one type in a node. */
type Weights = Readonly<Record<keyof BySubject<unknown>, ReadonlyMap<string, Weight>>>;
type NodeWeights = Readonly<Record<ResourceType, Weights>>;

/**
 * How much unknown work of patterns (automaton.ts) an estimate finds out, which takes some half a second: all requests wait for a changed set. A
 * further pattern counts as one with the most work, until a later set is estimated.
 */
const MOST_NEW_WORK = 24_000_000;

/** What is left of it. */
interface NewWork {
  left: number;
}

/** Pauses every few tests, so that the caller can let other work run. */
export function* estimateInSteps({ index }: CompiledDocument): Generator<undefined, Estimate> {
  const unknown: NewWork = { left: MOST_NEW_WORK };
  const every = yield* weighNode(index.every, unknown);
  const targets = new Map<string, NodeWeights>();
  for (const [target, node] of Object.entries(index.targets)) targets.set(target, yield* weighNode(node, unknown));

  /** For a caller whom every policy is about, at the target with the most tests. */
  const bounds = {} as Record<ResourceType, Weight>;
  for (const type of RESOURCE_TYPES) {
    let most = NOTHING;
    for (const node of targets.values()) most = atLeast(most, total(node[type]));
    bounds[type] = plus(plus(DECISION, total(every[type])), most);
  }
  return (principal, target, objects) => {
    const quick = milliseconds(objects, (type) => bounds[type]);
    if (quick <= SHORT_MS) return quick;
    const own = targets.get(target);
    const weights = new Map<ResourceType, Weight>();
    return milliseconds(objects, (type) => {
      const known = weights.get(type);
      if (known !== undefined) return known;
      let weight = forCaller(DECISION, every[type], principal);
      if (own !== undefined) weight = forCaller(weight, own[type], principal);
      weights.set(type, weight);
      return weight;
    });
  };
}

function milliseconds(objects: readonly NamedObject[], weightOf: (type: ResourceType) => Weight): number {
  let ns = 0;
  for (const { resource_type, resource_name } of objects) {
    const { name, byte } = weightOf(resource_type);
    ns += name + byte * resource_name.length;
  }
  return ns / 1e6;
}

function forCaller(sum: Weight, weights: Weights, { sub, role, groups }: PrincipalFacts): Weight {
  let all = sum;
  const add = (weight: Weight | undefined): void => {
    if (weight !== undefined) all = plus(all, weight);
  };
  add(weights.everyone.get(''));
  add(weights.role.get(role));
  for (const group of groups) add(weights.group.get(group));
  add(weights.user.get(sub));
  return all;
}

const total = (weights: Weights): Weight =>
  SUBJECT_TYPES.reduce((sum, kind) => [...weights[kind].values()].reduce(plus, sum), NOTHING);

function* weighNode(node: IndexNode, unknown: NewWork): Generator<undefined, NodeWeights> {
  const weighed = {} as Record<ResourceType, Weights>;
  let buckets = 0;
  for (const type of RESOURCE_TYPES) {
    const weights = { everyone: new Map(), role: new Map(), group: new Map(), user: new Map() } satisfies Weights;
    for (const kind of SUBJECT_TYPES) {
      const table = node[type][kind];
      for (const value of Object.keys(table)) {
        if (++buckets % BUCKETS_AT_ONCE === 0) yield;
        const weight = yield* weigh(table[value] ?? {}, unknown);
        if (weight !== NOTHING) weights[kind].set(value, weight);
      }
    }
    weighed[type] = weights;
  }
  return weighed;
}

function* weigh({ exact = {}, tests = [], edges = [] }: Bucket, unknown: NewWork): Generator<undefined, Weight> {
  let sum = yield* weightOfTable(exact);
  if (tests.length > 0) sum = plus(sum, yield* weightOfAll(tests, unknown));
  for (const [, , table] of edges) {
    // A name has one beginning of each length, so it gets the tests of one entry.
    let most = NOTHING;
    for (const list of Object.values(table)) most = atLeast(most, yield* weightOfAll(list, unknown));
    sum = plus(plus(sum, EDGE), plus(yield* weightOfTable(table), most));
  }
  return sum;
}

function* weightOfTable(table: Readonly<Record<string, unknown>>): Generator<undefined, Weight> {
  const texts = Object.keys(table);
  if (texts.length === 0) return NOTHING;
  const fullest = yield* fullestOf(new Set(texts));
  const known = tableWeights.get(fullest);
  if (known !== undefined) return known;
  const weight = { name: LOOK_UP.name + COMPARISON.name * fullest, byte: LOOK_UP.byte + COMPARISON.byte * fullest };
  tableWeights.set(fullest, weight);
  return weight;
}

/** By the number of texts in the fullest slot: there can be a hundred thousand tables. */
const tableWeights = new Map<number, Weight>();

/** How many tests are weighed in one step, and how many subjects are looked at. */
const TESTS_AT_ONCE = 50;
const BUCKETS_AT_ONCE = 100;

function* weightOfAll(tests: readonly NameTest[], unknown: NewWork): Generator<undefined, Weight> {
  let sum = NOTHING;
  for (const [at, test] of tests.entries()) {
    if (at % TESTS_AT_ONCE === 0) yield;
    sum = plus(sum, yield* weightOf(test, unknown));
  }
  return sum;
}

function* weightOf(test: NameTest, unknown: NewWork): Generator<undefined, Weight> {
  if (test[1] !== 'regex') return textWeight(test[2]);
  const reading = readPattern(test[3]);
  if (typeof reading === 'string') return regexWeight(test[2], 0, 0);
  const isKnown = knownWork(reading) !== undefined;
  if (!isKnown && unknown.left <= 0) return regexWeight(test[2], reading.cost, MAX_WORK);
  const work = yield* workOfInSteps(test[3], reading);
  if (!isKnown) unknown.left -= work ?? MAX_WORK;
  return regexWeight(test[2], reading.cost, work);
}

/** The same as `decideMany`, in steps that take about a millisecond by the estimate, or as long as the decision on one name. */
export function* decideInSteps(
  engine: Engine,
  principal: PrincipalFacts,
  target: string,
  objects: readonly NamedObject[],
): Generator<undefined, Decision[]> {
  if (objects.length <= 1 || engine.estimate(principal, target, objects) <= SHORT_MS)
    return engine.decideMany(principal, target, objects);
  const half = Math.ceil(objects.length / 2);
  const first = yield* decideInSteps(engine, principal, target, objects.slice(0, half));
  yield;
  const second = yield* decideInSteps(engine, principal, target, objects.slice(half));
  return first.concat(second);
}

/** Tells for each object whether the caller may use it: at once, or in steps if the decisions take long. */
export type Decide = (objects: readonly NamedObject[]) => boolean[] | Generator<undefined, boolean[]>;

/** The answer of `decide`. Pauses only if the decisions take long. */
export function* decided(decide: Decide, objects: readonly NamedObject[]): Generator<undefined, boolean[]> {
  const answer = decide(objects);
  return Array.isArray(answer) ? answer : yield* answer;
}
