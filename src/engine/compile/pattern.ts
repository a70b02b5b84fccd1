/** Decides which resource patterns are accepted, and computes their costs. */
import { atOnce } from '../../base/turns/slices.ts';
import { lower, type Screen, type Shape, screen } from './lower.ts';
import type { Policy } from './policy.ts';
import { cost, type Node, PatternSyntaxError, parse } from './re2.ts';

/** In code points. */
export const MAX_PATTERN_LENGTH = 512;
/** The maximum `cost` (re2.ts) of one pattern. RE2 compiles such a pattern in WASM within a few milliseconds. */
export const MAX_PATTERN_COST = 4_000;
/** The maximum cost of the distinct regular expressions of one target, type and subject in a decision. */
export const MAX_BUCKET_COST = 40_000;
/** The maximum cost for one target and type, with all subjects together: a caller may be in any number of groups. */
const MAX_TARGET_COST = 200_000;

/** Either plain comparisons that are equivalent to the pattern, or a quick test that excludes most names before the regular expression. */
export type PatternForm =
  | { readonly shapes: readonly Shape[]; readonly screen: null }
  | { readonly shapes: null; readonly screen: Screen };

export type PatternReading = PatternForm & { readonly cost: number };

/** Asks the WASM that will run the pattern (`regex.is_valid`). */
export type IsValidPattern = (pattern: string) => boolean;

/** The number of cached patterns. */
const REMEMBERED = 100_000;

/** The cache saves work: every change of one policy also reads the patterns of all others. */
const readings = new Map<string, PatternReading | string>();

/** Reads the pattern without the engine. A string is one sentence that says why the pattern is refused. */
export function readPattern(pattern: string): PatternReading | string {
  const known = knownReading(pattern);
  if (known !== undefined) return known;
  const reading = readUncached(pattern);
  keepReading(pattern, reading);
  return reading;
}

/** Returns the reading if the pattern has been read in this thread. */
export const knownReading = (pattern: string): PatternReading | string | undefined => readings.get(pattern);

/** `reading`: what `readPattern` returned for the pattern in this thread or in another. */
export function keepReading(pattern: string, reading: PatternReading | string): void {
  // Do not cache patterns that are too long.
  if (pattern.length > MAX_PATTERN_LENGTH) return;
  if (readings.size >= REMEMBERED) readings.clear();
  readings.set(pattern, reading);
}

function readUncached(pattern: string): PatternReading | string {
  if (pattern === '') return 'The pattern is empty. Use null for every name.';
  if ([...pattern].length > MAX_PATTERN_LENGTH) return `The pattern is longer than ${MAX_PATTERN_LENGTH} characters.`;
  if (/[\p{Cc}\p{Cs}]/u.test(pattern))
    return 'The pattern contains a control character or half a surrogate pair. Write it as an escape such as \\n.';
  let tree: Node;
  try {
    tree = parse(pattern);
  } catch (error) {
    if (error instanceof PatternSyntaxError) return error.message;
    throw error;
  }
  const price = cost(tree);
  if (price > MAX_PATTERN_COST) {
    return `The pattern costs ${price}, more than the limit of ${MAX_PATTERN_COST}. Use fewer repetitions, or smaller sets of characters in them.`;
  }
  return { cost: price, ...formOf(tree) };
}

export function formOf(tree: Node): PatternForm {
  const shapes = lower(tree);
  return shapes === null ? { shapes, screen: screen(tree) } : { shapes, screen: null };
}

/** Returns null if the pattern is accepted, otherwise one sentence that says why not. Verdicts are cached. */
export type PatternCheck = (pattern: string) => string | null;

/** `runs`: whether the engine will run such a pattern, so that it must check it. */
export function createPatternCheck(
  isValid: IsValidPattern,
  runs: (reading: PatternReading) => boolean = () => true,
): PatternCheck {
  const judged = new Map<string, string | null>();
  return (pattern) => {
    let problem = judged.get(pattern);
    if (problem === undefined) {
      const reading = readPattern(pattern);
      if (typeof reading === 'string') problem = reading;
      else problem = !runs(reading) || isValid(pattern) ? null : 'RE2 does not accept the pattern.';
      if (judged.size >= REMEMBERED) judged.clear();
      judged.set(pattern, problem);
    }
    return problem;
  };
}

export interface SetProblem {
  readonly message: string;
  /** The policies that share the bucket, in the order of ids. */
  readonly policyIds: readonly string[];
}

/**
 * Checks the limits of the whole set. Each pattern is accepted alone, but the cost of all patterns that one decision may try
 * must be limited, too.
 */
export function checkPolicySet(policies: readonly Policy[]): SetProblem[] {
  return atOnce(checkPolicySetInSteps(policies));
}

/** Like `checkPolicySet`, but pauses every few policies so that the caller can let other work run. */
export function* checkPolicySetInSteps(policies: readonly Policy[]): Generator<undefined, SetProblem[]> {
  const buckets = new Map<string, Tried>();
  const wholes = new Map<string, Tried>();
  for (const [i, policy] of policies.entries()) {
    if (i % 20 === 19) yield;
    if (!policy.enabled || policy.resource_pattern === null) continue;
    const reading = readPattern(policy.resource_pattern);
    if (typeof reading === 'string' || reading.shapes !== null) continue;
    for (const { subject_type, subject_value } of policy.subjects) {
      for (const type of policy.resource_type === 'all' ? ['tool', 'resource', 'prompt'] : [policy.resource_type]) {
        addTried(buckets, [policy.target_id, type, subject_type, subject_value], policy, reading.cost);
        addTried(wholes, [policy.target_id, type], policy, reading.cost);
      }
    }
  }
  return [...overLimit(buckets, MAX_BUCKET_COST), ...overLimit(wholes, MAX_TARGET_COST)];
}

/** Regular expressions that one decision may have to try, and the policies that bring them. */
interface Tried {
  readonly patterns: Map<string, number>;
  readonly policyIds: Set<string>;
}

function addTried(all: Map<string, Tried>, parts: readonly (string | null)[], policy: Policy, price: number): void {
  const key = JSON.stringify(parts);
  const tried = all.get(key) ?? { patterns: new Map(), policyIds: new Set() };
  tried.patterns.set(policy.resource_pattern ?? '', price);
  tried.policyIds.add(policy.id);
  all.set(key, tried);
}

function overLimit(all: ReadonlyMap<string, Tried>, limit: number): SetProblem[] {
  return [...all].flatMap(([key, { patterns, policyIds }]) => {
    const total = [...patterns.values()].reduce((sum, price) => sum + price, 0);
    if (total <= limit) return [];
    const [target, type, kind, value] = JSON.parse(key) as (string | null | undefined)[];
    const whom = kind === undefined ? 'all subjects' : value === null ? 'everyone' : `${kind} ${JSON.stringify(value)}`;
    const where = target === null ? 'every target' : `target ${target}`;
    const message = `The patterns for ${whom}, ${type}, ${where} cost ${total} together, more than the limit of ${limit}. Use simpler patterns.`;
    return [{ message, policyIds: [...policyIds].sort() }];
  });
}
