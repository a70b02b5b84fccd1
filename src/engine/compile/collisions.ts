/**
 * A limit of keys that fall together in the engine. OPA keeps the members of an object in a hash table with slots, and compares a new key with
 * all keys in its slot. The hash has no seed (`opa_string_hash` in OPA's wasm/src/value.c). So a manager could choose thousands of names for one
 * slot, and all requests would wait while the engine loads them.
 */

import { edgeOf } from './lower.ts';
import { MOST_ENTRIES } from './owner-limits.ts';
import { formIn, type PatternReading, readPattern } from './pattern.ts';
import { type Policy, typesOf } from './policy.ts';
import { type Amount, type LimitByPlace, type Measure, type OwnedPolicy, problemsByPlace, type SetProblem } from './shares.ts';

/** How many comparisons loading the tables of one place may take, beside those that chance may bring: a millisecond or two. */
const MAX_COLLISIONS = 10_000;
/** Ordinary keys take fewer comparisons than this for each key. Mostly it is less than one, and more if a number stands twice in each key. */
const BY_CHANCE = 4;
/** So few keys never take more than MAX_COLLISIONS. */
const FEW_KEYS = 140;
/** Larger sets are refused in any case, and would take long. An entry (owner-limits.ts) has at most three keys. */
const MOST_KEYS = 3 * MOST_ENTRIES;
const KEYS_AT_ONCE = 500;
const POLICIES_AT_ONCE = 100;
const PLACES_AT_ONCE = 100;

const LIMIT: LimitByPlace = {
  lowest: MAX_COLLISIONS,
  at(place) {
    const [target, type, kind, value] = JSON.parse(place) as (string | null | undefined)[];
    const where = `${type}, ${target === null ? 'every target' : `target ${target}`}`;
    const what =
      value === undefined
        ? `subjects of type ${kind}`
        : `texts for ${value === null ? 'everyone' : `${kind} ${JSON.stringify(value)}`}`;
    return {
      ...{ name: `collisions ${place}`, member: value === undefined ? 'subjects' : 'resource_pattern' },
      ...{ ofOwner: MAX_COLLISIONS, ofAll: MAX_COLLISIONS },
      say: (whose, amount, over) =>
        `The ${what} ${whose === '' ? '' : `${whose} `}(${where}) have hashes so alike that loading them takes ${amount} comparisons beyond chance, ${over}. Use different ones.`,
    };
  },
};

/** The tables of a place: the subjects of a target and type, or the texts for one of them, by length of the edge. */
interface Place {
  readonly name: readonly unknown[];
  readonly policyIds: Set<string>;
  readonly tables: Map<string, Set<string>>;
}

/** The keys of a target and type. */
interface Node {
  /** Upper bounds. Most have few keys, and need no look at their subjects. */
  subjects: number;
  texts: number;
  places: Map<string, Place>;
}

/** `changed`: only places that these policies share are of interest; null: all. */
export function* collisionProblems(
  all: readonly OwnedPolicy[],
  changed: ReadonlySet<string> | null,
): Generator<undefined, SetProblem[]> {
  const nodes = new Map<string, Node>();
  for (const policy of all) {
    if (changed !== null && !changed.has(policy.id)) continue;
    for (const type of tableTypesOf(policy)) nodes.set(nodeOf(policy, type), { subjects: 0, texts: 0, places: new Map() });
  }
  const policies: OwnedPolicy[] = [];
  let most = 0;
  for (const [i, policy] of all.entries()) {
    if (i % POLICIES_AT_ONCE === 0) yield;
    if (!policy.enabled || !nodes.has(nodeOf(policy, 'use'))) continue;
    policies.push(policy);
    for (const type of tableTypesOf(policy)) {
      const node = nodes.get(nodeOf(policy, type));
      if (node === undefined) continue;
      node.subjects += policy.subjects.length;
      node.texts += textsOf(policy).length;
      most += policy.subjects.length * (type === 'use' ? 1 : 1 + textsOf(policy).length);
    }
  }
  if (most > MOST_KEYS) return [];
  /** Returns the comparisons of each place, beside those of chance. */
  const measure: Measure = function* measured(some) {
    let added = 0;
    const add = ({ places }: Node, at: string, name: () => Place['name'], id: string, keys: readonly Key[]): void => {
      const place = places.get(at) ?? { name: name(), policyIds: new Set(), tables: new Map() };
      places.set(at, place);
      place.policyIds.add(id);
      for (const { table: length, key } of keys) {
        const table = place.tables.get(length) ?? new Set();
        place.tables.set(length, table.add(key));
      }
      added += keys.length;
    };
    for (const node of nodes.values()) node.places = new Map();
    for (const policy of some) {
      const { id, target_id } = policy;
      const texts = textsOf(policy);
      for (const type of tableTypesOf(policy)) {
        const node = nodes.get(nodeOf(policy, type));
        if (node === undefined) continue;
        const hasTexts = node.texts > FEW_KEYS && texts.length > 0 && type !== 'use';
        if (node.subjects <= FEW_KEYS && !hasTexts) continue;
        for (const { subject_type: kind, subject_value: value } of policy.subjects) {
          if (node.subjects > FEW_KEYS) add(node, kind, () => [target_id, type, kind], id, [{ table: '', key: value ?? '' }]);
          if (hasTexts) add(node, `${kind} ${value}`, () => [target_id, type, kind, value], id, texts);
          if (added < KEYS_AT_ONCE) continue;
          added = 0;
          yield;
        }
      }
    }
    const amounts = new Map<string, Amount>();
    for (const { places } of nodes.values()) {
      for (const { name, policyIds, tables } of places.values()) {
        if (++added % PLACES_AT_ONCE === 0) yield;
        let amount = 0;
        for (const keys of tables.values()) amount += Math.max(0, (yield* comparisonsOf(keys)) - BY_CHANCE * keys.size);
        amounts.set(JSON.stringify(name), { amount, policyIds });
      }
    }
    return amounts;
  };
  // What an owner adds by chance only must not be refused because of what a different owner has chosen.
  return (yield* problemsByPlace(policies, measure, LIMIT)).filter(({ amount }) => amount > 0);
}

interface Key {
  readonly table: string;
  readonly key: string;
}

const nodeOf = ({ target_id }: Policy, type: string): string => `${type} ${target_id}`;

const tableTypesOf = (policy: Policy): readonly string[] => ['use', ...typesOf(policy)];

/** By reading, because readings are cached. */
const known = new WeakMap<PatternReading, readonly Key[]>();

/** The keys that `placesOf` in compile.ts makes of the pattern. */
function textsOf({ resource_pattern: pattern }: Policy): readonly Key[] {
  const reading = pattern === null ? '' : readPattern(pattern);
  if (typeof reading === 'string') return [];
  const texts = known.get(reading) ?? textsIn(reading);
  known.set(reading, texts);
  return texts;
}

function textsIn(reading: PatternReading): readonly Key[] {
  const { shapes, screen } = formIn(reading);
  const edge = (text: string, side: 'start' | 'end'): Key => {
    const { length, key } = edgeOf(text, side);
    return { table: `${length}`, key };
  };
  if (shapes === null) return (screen.guard?.texts ?? []).map((text) => edge(text, screen.guard?.side ?? 'start'));
  return shapes.flatMap(({ kind, text }) => {
    if (kind === 'exact') return [{ table: '', key: text }];
    return kind === 'contains' || text === '' ? [] : [edge(text, kind === 'prefix' ? 'start' : 'end')];
  });
}

const LEAST_SLOTS = 8;
const LOAD = 0.7;

/** In slots with more keys than chance brings, the keys of a slot may have been chosen for long comparisons. */
const BY_CHANCE_IN_SLOT = 15;
/** A comparison of keys takes longer if they begin alike: this many characters are free, and then each of these numbers takes as long as a comparison. */
const ALIKE = { free: 64, each: 4 };
/** With how many of the last keys of its slot a key is compared here: more kinds of beginnings leave few keys that begin alike. */
const LOOKED_AT = 8;

/** How often keys are compared while they are put into one table of OPA. Comparisons of long keys that begin alike count more. */
export function* comparisonsOf(keys: ReadonlySet<string>): Generator<undefined, number> {
  return (yield* placed(keys)).comparisons;
}

/** How many keys are in the fullest slot of a table of OPA: a look-up compares a key with all of them. */
export function* fullestOf(keys: ReadonlySet<string>): Generator<undefined, number> {
  return (yield* placed(keys)).fullest;
}

function* placed(keys: ReadonlySet<string>): Generator<undefined, { readonly comparisons: number; readonly fullest: number }> {
  let slots = LEAST_SLOTS;
  while (keys.size > slots * LOAD) slots *= 2;
  const filled = new Map<number, string[]>();
  let comparisons = 0;
  let fullest = keys.size === 0 ? 0 : 1;
  let hashed = 0;
  for (const key of keys) {
    if (++hashed % KEYS_AT_ONCE === 0) yield;
    const slot = hashOf(key) % slots;
    const before = filled.get(slot);
    if (before === undefined) {
      filled.set(slot, [key]);
      continue;
    }
    comparisons += before.length * (before.length < BY_CHANCE_IN_SLOT ? 1 : lengthOfComparison(key, before.slice(-LOOKED_AT)));
    fullest = Math.max(fullest, before.push(key));
  }
  return { comparisons, fullest };
}

/** In comparisons of short keys. */
function lengthOfComparison(key: string, others: readonly string[]): number {
  const alike = Math.max(...others.map((other) => charactersAlike(key, other)));
  return 1 + Math.floor(Math.max(0, alike - ALIKE.free) / ALIKE.each);
}

function charactersAlike(a: string, b: string): number {
  let at = 0;
  while (at < a.length && a.charCodeAt(at) === b.charCodeAt(at)) at++;
  return at;
}

/** The hash of OPA: FNV-1 with 32 bits, of UTF-8. */
export function hashOf(key: string): number {
  let hash = 0x811c9dc5;
  for (const byte of Buffer.from(key)) hash = Math.imul(hash, 0x01000193) ^ byte;
  return hash >>> 0;
}
