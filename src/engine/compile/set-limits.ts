/** Limits of a whole policy set: each pattern is accepted alone, but one decision may try many, and all take memory in the engine. */
import { atOnce, inSlices, type RunSteps } from '../../base/turns/slices.ts';
import { MAX_WORK } from './automaton.ts';
import { collisionProblems } from './collisions.ts';
import { edgeOf } from './lower.ts';
import { addWork, byteProblems, entryProblems, type OwnWork, PLACED_AT_ONCE, workProblems } from './owner-limits.ts';
import { formIn, knownWork, type PatternReading, readPattern, tooManyStates, workOf, workOfInSteps } from './pattern.ts';
import { type Policy, type PolicySubject, typesOf } from './policy.ts';
import {
  type Amount,
  addedProblems,
  type LimitByPlace,
  type Measure,
  type OwnedPolicy,
  problemsByPlace,
  type SetProblem,
} from './shares.ts';
import { mostTextsInSteps } from './texts.ts';
import { regexSearches, searches } from './weight.ts';

/** The maximum cost of the distinct regular expressions of one target, type and subject in a decision. */
export const MAX_BUCKET_COST = 40_000;
/** The maximum cost for one target and type, with all subjects together: a caller may be in any number of groups. */
const MAX_TARGET_COST = 200_000;

/**
 * The maximum number of searches of one name (`searches` in weight.ts) that the patterns of one target and type need in a decision. A caller also
 * gets the policies for every target, and both can have twice as many (shares.ts): 6,400. A search of the longest URI takes 7 us, so these take
 * 45 ms. Nothing can interrupt them.
 */
export const MAX_SEARCHES = 1_600;

/**
 * How many whole names one target, type and subject may have. A text at an edge counts as two of them, and a long text as one for each NAME_BYTES of
 * its JSON. The engine loads them in one step: 20,000 take some 40 ms. As with searches, there can be twice as many together.
 */
const MAX_BUCKET_NAMES = 12_000;
const NAME_BYTES = 80;

/** The work of the patterns that one change may bring (automaton.ts), as far as it is not known. To find it out takes a second or so. */
const MAX_NEW_WORK = 8_000_000;
const TOO_MUCH_WORK =
  'The new patterns have too many states to check them at once. Add fewer policies at a time, or use * or + instead of repetitions with numbers.';

/** Code points that a name has at most (src/protocol/uri.ts and operation.ts). */
const LONGEST_URI = 2_048;
const LONGEST_NAME = 256;

/**
 * Checks the limits of the whole set. Each pattern is accepted alone, but the cost of all patterns that one decision may try
 * must be limited, too.
 */
export function checkPolicySet(policies: readonly OwnedPolicy[]): SetProblem[] {
  return atOnce(checkPolicySetInSteps(policies, null, Number.POSITIVE_INFINITY));
}

/**
 * Returns the limits that changed policies exceed, unless the change adds nothing to what the stored set has above them. `stored` returns that
 * set, if it is needed. `mostNewWork`: how much new work the change may bring.
 */
export async function problemsOfChange(
  candidate: readonly OwnedPolicy[],
  changed: ReadonlySet<string>,
  stored: () => Promise<readonly OwnedPolicy[]>,
  mostNewWork?: number,
  run: RunSteps = inSlices,
): Promise<SetProblem[]> {
  const found = await run(checkPolicySetInSteps(candidate, changed, mostNewWork));
  const problems = found.filter(({ policyIds }) => policyIds.some((id) => changed.has(id)));
  if (problems.length === 0) return [];
  return addedProblems(problems, await run(checkPolicySetInSteps(await stored(), new Set())));
}

/**
 * Like `checkPolicySet`, but pauses every few policies so that the caller can let other work run, and refuses new patterns of which the work
 * takes too long to find out. `changed`: the ids of the policies that a change brings; null: all. The work of other policies may be unknown, too:
 * after a start, or because a different replica has stored them. It is found out, however long that takes, but not for policies without subjects,
 * of which the engine runs no pattern.
 */
export function* checkPolicySetInSteps(
  policies: readonly OwnedPolicy[],
  changed: ReadonlySet<string> | null = null,
  mostNewWork = MAX_NEW_WORK,
): Generator<undefined, SetProblem[]> {
  const isIdle = ({ id, subjects }: OwnedPolicy): boolean => subjects.length === 0 && changed !== null && !changed.has(id);
  const problems = [
    ...(yield* byteProblems(policies)),
    ...(yield* entryProblems(policies)),
    ...(yield* nameProblems(policies)),
    ...(yield* collisionProblems(policies, changed === null || changed.size === 0 ? null : changed)),
  ];
  const sound: OwnedPolicy[] = [];
  const endless = new Map<string, string[]>();
  const unread = new Set<string>();
  const works = new Map<string | null, OwnWork>();
  let newWork = 0;
  for (const [i, policy] of policies.entries()) {
    if (i % 20 === 19) yield;
    if (!policy.enabled || policy.resource_pattern === null || isIdle(policy)) continue;
    const reading = readPattern(policy.resource_pattern);
    if (typeof reading === 'string' || reading.kind !== 'regex') continue;
    const isNew = (changed === null || changed.has(policy.id)) && knownWork(reading) === undefined;
    if (isNew && newWork > mostNewWork) {
      unread.add(policy.id);
      continue;
    }
    const work = yield* workOfInSteps(policy.resource_pattern, reading);
    if (isNew) newWork += work ?? MAX_WORK;
    if (work === null) {
      const ids = endless.get(policy.resource_pattern) ?? [];
      endless.set(policy.resource_pattern, ids);
      ids.push(policy.id);
      continue;
    }
    addWork(works, policy, policy.resource_pattern, work);
    sound.push(policy);
  }
  for (const [pattern, ids] of endless)
    problems.push(ofPatterns(`states ${pattern}`, tooManyStates(`The pattern ${pattern}`), ids, ids.length));
  if (unread.size > 0) problems.push(ofPatterns('new work', TOO_MUCH_WORK, unread, Number.POSITIVE_INFINITY));
  problems.push(...(yield* problemsByPlace(sound, costs, COST)), ...workProblems(works));
  return problems.concat(yield* searchProblems(policies.filter((policy) => !unread.has(policy.id) && !isIdle(policy))));
}

const ofPatterns = (limit: string, message: string, ids: Iterable<string>, amount: number): SetProblem => ({
  ...{ limit, message, amount, total: amount, member: 'resource_pattern' },
  policyIds: [...ids].sort(),
});

/** A limit of what patterns have at a place: a target and type, with one subject (`ofOne`), or with all. */
function limitOfPatterns(
  what: string,
  { ofOne, ofAll }: { readonly ofOne: number; readonly ofAll: number },
  say: (amount: number, over: string) => string,
): LimitByPlace {
  return {
    lowest: Math.min(ofOne, ofAll),
    at(place) {
      const [target, type, kind, value] = JSON.parse(place) as (string | null | undefined)[];
      const whom = kind === undefined ? 'all subjects' : value === null ? 'everyone' : `${kind} ${JSON.stringify(value)}`;
      const where = `${whom}, ${type}, ${target === null ? 'every target' : `target ${target}`}`;
      const most = kind === undefined ? ofAll : ofOne;
      return {
        ...{ name: `${what} ${place}`, member: 'resource_pattern', ofOwner: most, ofAll: most },
        say: (whose, amount, over) => `The patterns ${whose === '' ? '' : `${whose} `}for ${where} ${say(amount, over)}`,
      };
    },
  };
}

const COST = limitOfPatterns(
  'cost',
  { ofOne: MAX_BUCKET_COST, ofAll: MAX_TARGET_COST },
  (amount, over) => `cost ${amount} together, ${over}. Use simpler patterns.`,
);
const NAMES = limitOfPatterns(
  'names',
  { ofOne: MAX_BUCKET_NAMES, ofAll: MAX_BUCKET_NAMES },
  (amount, over) =>
    `have ${amount} names, ${over}. A prefix or suffix counts as two, and so does a long text. Use shorter alternatives.`,
);
const SEARCHES = limitOfPatterns(
  'searches',
  { ofOne: MAX_SEARCHES, ofAll: MAX_SEARCHES },
  (amount, over) =>
    `search one name ${amount} times, ${over}. Begin them with ^ and fixed text, such as ^https://git\\.example\\.com/team/.`,
);

/** What the regular expressions cost together that one decision may have to try. */
function* costs(policies: readonly Policy[]): Generator<undefined, Map<string, Amount>> {
  const places = new Map<string, Tried>();
  let placed = 0;
  for (const policy of policies) {
    const reading = readPattern(policy.resource_pattern ?? '');
    if (typeof reading === 'string') continue;
    for (const { subject_type, subject_value } of policy.subjects) {
      for (const type of typesOf(policy)) {
        if (++placed % PLACED_AT_ONCE === 0) yield;
        addTried(places, JSON.stringify([policy.target_id, type, subject_type, subject_value]), policy, reading.cost);
        addTried(places, JSON.stringify([policy.target_id, type]), policy, reading.cost, searcherOf(subject_type, subject_value));
      }
    }
  }
  const amounts = new Map<string, Amount>();
  for (const [place, { patterns, policyIds }] of places) {
    if (++placed % PLACED_AT_ONCE === 0) yield;
    let amount = 0;
    for (const price of patterns.values()) amount += price;
    amounts.set(place, { amount, policyIds });
  }
  return amounts;
}

function* nameProblems(policies: readonly OwnedPolicy[]): Generator<undefined, SetProblem[]> {
  /** An upper bound by type and target. Few sets come near the limit, and the others need no look at their subjects. */
  const bounds = new Map<string, number>();
  const many: OwnedPolicy[] = [];
  for (const [i, policy] of policies.entries()) {
    if (i % 20 === 19) yield;
    const names = namesOf(policy);
    if (names === 0) continue;
    many.push(policy);
    for (const type of typesOf(policy)) {
      const key = `${type} ${policy.target_id}`;
      bounds.set(key, (bounds.get(key) ?? 0) + names);
    }
  }
  const measure: Measure = function* measured(some) {
    const buckets = new Map<string, { amount: number; readonly policyIds: string[] }>();
    let placed = 0;
    for (const policy of some) {
      const { id, target_id, subjects } = policy;
      const names = namesOf(policy);
      for (const type of typesOf(policy)) {
        if ((bounds.get(`${type} ${target_id}`) ?? 0) <= MAX_BUCKET_NAMES) continue;
        for (const { subject_type, subject_value } of subjects) {
          if (++placed % PLACED_AT_ONCE === 0) yield;
          const key = JSON.stringify([target_id, type, subject_type, subject_value]);
          const bucket = buckets.get(key) ?? { amount: 0, policyIds: [] };
          buckets.set(key, bucket);
          bucket.amount += names;
          bucket.policyIds.push(id);
        }
      }
    }
    return buckets;
  };
  return yield* problemsByPlace(many, measure, NAMES);
}

const namesOf = ({ enabled, resource_pattern }: Policy): number =>
  enabled && resource_pattern !== null ? namesIn(resource_pattern) : 0;

/** How many names the pattern counts for. */
function namesIn(pattern: string): number {
  const reading = readPattern(pattern);
  if (typeof reading === 'string') return 0;
  const { shapes, screen } = formIn(reading);
  const namesOfBytes = (bytes: number): number => Math.ceil(bytes / NAME_BYTES);
  if (shapes === null) {
    const each = jsonBytesOf(screen.needs) + jsonBytesOf(pattern);
    return (screen.guard?.texts ?? []).reduce((sum, text) => sum + 2 * namesOfBytes(jsonBytesOf(text) + each), 0);
  }
  return shapes.reduce((sum, { kind, text }) => {
    const each = kind === 'exact' ? 1 : kind === 'contains' || text === '' ? 0 : 2;
    return sum + each * namesOfBytes(jsonBytesOf(text));
  }, 0);
}

const jsonBytesOf = (text: string): number => Buffer.byteLength(JSON.stringify(text));

/** A caller can be in all groups, and the patterns of each are tried again. */
const searcherOf = (kind: PolicySubject['subject_type'], value: string | null): string | null =>
  kind === 'group' ? value : null;

function* searchProblems(policies: readonly OwnedPolicy[]): Generator<undefined, SetProblem[]> {
  const sought: OwnedPolicy[] = [];
  /** An upper bound by type and target. Few sets come near the limit, and the others need no look at their subjects. */
  const bounds = new Map<string, number>();
  const boundKey = ({ target_id }: Policy, type: string): string => `${type} ${target_id}`;
  for (const [i, policy] of policies.entries()) {
    if (i % 20 === 19) yield;
    const { resource_pattern: pattern } = policy;
    if (!policy.enabled || pattern === null) continue;
    const reading = readPattern(pattern);
    const most = typeof reading === 'string' ? 0 : mostSearches(pattern, reading);
    if (typeof reading === 'string' || most === 0) continue;
    sought.push(policy);
    for (const type of typesOf(policy)) {
      const key = boundKey(policy, type);
      bounds.set(key, (bounds.get(key) ?? 0) + most * policy.subjects.length);
    }
  }
  const measure: Measure = function* measured(some) {
    const buckets = new Map<string, Searched>();
    let placed = 0;
    for (const policy of some) {
      const types = typesOf(policy).filter((type) => (bounds.get(boundKey(policy, type)) ?? 0) > MAX_SEARCHES);
      const pattern = policy.resource_pattern ?? '';
      const reading = readPattern(pattern);
      if (types.length === 0 || typeof reading === 'string') continue;
      const searches = listSearches(pattern, reading);
      for (const { subject_type, subject_value } of policy.subjects) {
        for (const type of types) {
          if (++placed % PLACED_AT_ONCE === 0) yield;
          addSearched(buckets, JSON.stringify([policy.target_id, type, subject_type, subject_value]), policy, searches);
        }
      }
    }
    // First as if a name could contain all texts. Most sets are below the limits even so.
    const totals: Total[] = [];
    for (const [bucket, { counts, policyIds }] of buckets) {
      yield;
      const [target, type, kind] = JSON.parse(bucket) as [string | null, Policy['resource_type'], PolicySubject['subject_type']];
      const amount = mostOf(counts, counts.ofTexts.size);
      totals.push({ whole: JSON.stringify([target, type]), type, kind, counts, amount, policyIds });
    }
    const wholes = wholesOf(totals);
    for (const total of totals) {
      const { counts, type, whole } = total;
      if ((wholes.get(whole)?.amount ?? 0) <= MAX_SEARCHES && some === sought) continue;
      const length = type === 'resource' ? LONGEST_URI : LONGEST_NAME;
      total.amount = mostOf(counts, yield* mostTextsInSteps([...counts.ofTexts.keys()], length));
    }
    return wholesOf(totals);
  };
  return yield* problemsByPlace(sought, measure, SEARCHES);
}

/** The searches for each target and type. A caller has one role and is one user, but can be in all groups, and each searches the name again. */
function wholesOf(totals: readonly Total[]): Map<string, Amount> {
  const wholes = new Map<string, { readonly most: Record<Total['kind'], number>; readonly policyIds: Set<string> }>();
  for (const { whole: place, kind, amount, policyIds } of totals) {
    const whole = wholes.get(place) ?? { most: { everyone: 0, role: 0, group: 0, user: 0 }, policyIds: new Set() };
    wholes.set(place, whole);
    whole.most[kind] = kind === 'group' ? whole.most.group + amount : Math.max(whole.most[kind], amount);
    for (const id of policyIds) whole.policyIds.add(id);
  }
  const sum = ({ everyone, role, group, user }: Record<Total['kind'], number>): number => everyone + role + group + user;
  return new Map([...wholes].map(([place, { most, policyIds }]) => [place, { amount: sum(most), policyIds }]));
}

/** Searches of a name that has the characters of `key` at an edge (`edgeOf`); of every name if there is no edge. */
interface Search {
  readonly edge: { readonly length: number; readonly key: string } | null;
  readonly count: number;
  /** More searches, for a regular expression or a single line at no edge: only names that contain the text need them. */
  readonly read?: { readonly text: string; readonly count: number };
}

/** By reading. Readings are cached, so this is computed once for each pattern. */
const searchesNeeded = new WeakMap<PatternReading, number>();

/** The most searches that one name needs for the pattern. */
function mostSearches(pattern: string, reading: PatternReading): number {
  const known = searchesNeeded.get(reading);
  if (known !== undefined) return known;
  const counts = newCounts();
  for (const search of listSearches(pattern, reading)) count(counts, search);
  const most = mostOf(counts, counts.ofTexts.size);
  searchesNeeded.set(reading, most);
  return most;
}

/** A name is searched for the text of each test. A regular expression also reads it. */
function listSearches(pattern: string, reading: PatternReading): Search[] {
  const { shapes, screen } = formIn(reading);
  if (shapes === null) {
    const { guard, needs } = screen;
    const work = workOf(pattern, reading);
    // The pattern is refused in any case.
    if (work === null) return [];
    const read = { text: needs, count: regexSearches(reading.cost, work) };
    if (guard === null) return [{ edge: null, count: searches(needs), read }];
    return guard.texts.map((text) => ({ edge: edgeOf(text, guard.side), count: searches(needs) + read.count }));
  }
  return shapes.flatMap(({ kind, text, oneLine }) => {
    if (kind === 'exact' || (text === '' && !oneLine)) return [];
    const edge = kind === 'contains' || text === '' ? null : edgeOf(text, kind === 'prefix' ? 'start' : 'end');
    if (!oneLine) return [{ edge, count: searches(text) }];
    // A name with the text is also searched for a line break.
    return edge === null ? [{ edge, count: searches(text), read: { text, count: 1 } }] : [{ edge, count: searches(text) + 1 }];
  });
}

/** The searches that names may need. */
interface Counts {
  ofEveryName: number;
  /** By text: only names with this text need them. */
  readonly ofTexts: Map<string, number>;
  /** By length and characters of the edge. */
  readonly atEdges: Map<number, Map<string, number>>;
}

const newCounts = (): Counts => ({ ofEveryName: 0, ofTexts: new Map(), atEdges: new Map() });

function count(counts: Counts, { edge, count, read }: Search): void {
  if (read !== undefined) counts.ofTexts.set(read.text, (counts.ofTexts.get(read.text) ?? 0) + read.count);
  if (edge === null) {
    counts.ofEveryName += count;
    return;
  }
  const table = counts.atEdges.get(edge.length) ?? new Map<string, number>();
  counts.atEdges.set(edge.length, table);
  table.set(edge.key, (table.get(edge.key) ?? 0) + count);
}

/** The most that one name needs that has room for so many texts. It has one beginning and one end of each length. */
function mostOf({ ofEveryName, ofTexts, atEdges }: Counts, texts: number): number {
  const dearest = [...ofTexts.values()].sort((a, b) => b - a).slice(0, texts);
  let total = dearest.reduce((sum, count) => sum + count, ofEveryName);
  for (const table of atEdges.values()) {
    let most = 0;
    for (const count of table.values()) most = Math.max(most, count);
    total += most;
  }
  return total;
}

/** The searches that one decision may need, and the policies that bring them. */
interface Searched {
  readonly patterns: Set<string>;
  readonly policyIds: Set<string>;
  readonly counts: Counts;
}

function addSearched(all: Map<string, Searched>, key: string, policy: Policy, searches: readonly Search[]): void {
  const found = all.get(key) ?? { patterns: new Set(), policyIds: new Set(), counts: newCounts() };
  all.set(key, found);
  found.policyIds.add(policy.id);
  const pattern = policy.resource_pattern ?? '';
  if (found.patterns.has(pattern)) return;
  found.patterns.add(pattern);
  for (const search of searches) count(found.counts, search);
}

/** The searches for one subject. `amount`: the most that one name needs. `whole`: the place of its target and type. */
interface Total extends Amount {
  amount: number;
  readonly whole: string;
  readonly type: Policy['resource_type'];
  readonly kind: PolicySubject['subject_type'];
  readonly counts: Counts;
}

/** Regular expressions that one decision may have to try, and the policies that bring them. */
interface Tried {
  readonly patterns: Map<string, number>;
  readonly policyIds: Set<string>;
}

/** The same pattern counts once for each `searcher`. */
function addTried(all: Map<string, Tried>, key: string, policy: Policy, price: number, searcher: string | null = null): void {
  const tried = all.get(key) ?? { patterns: new Map(), policyIds: new Set() };
  tried.patterns.set(JSON.stringify([searcher, policy.resource_pattern]), price);
  tried.policyIds.add(policy.id);
  all.set(key, tried);
}
