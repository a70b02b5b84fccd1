/** Which resource patterns are admitted, and what they cost. */
import { atOnce } from '../slices.ts';
import type { Policy } from './document.ts';
import { lower, type Screen, type Shape, screen } from './lower.ts';
import { cost, type Node, PatternSyntaxError, parse } from './re2.ts';

const MAX_PATTERN_LENGTH = 512;
/** Of one pattern: `cost` of re2.ts, at which RE2 compiles it in WASM within a few milliseconds. */
export const MAX_PATTERN_COST = 4_000;
/** Of the distinct regular expressions that one target, type and subject bring to a decision. */
export const MAX_BUCKET_COST = 40_000;
/** Of those that one target and type bring for all subjects: a caller may be in any number of groups. */
const MAX_TARGET_COST = 200_000;

export interface PatternReading {
  readonly cost: number;
  /** Plain comparisons that are the same as the pattern; null where only a regular expression is. */
  readonly shapes: readonly Shape[] | null;
  /** Of a regular expression: what spares most names the trial. */
  readonly screen: Screen | null;
}

/** Asks the WASM that will run the pattern (`regex.is_valid`). */
export type IsValidPattern = (pattern: string) => boolean;

/** How many patterns are remembered. */
const REMEMBERED = 100_000;

/** Every change of one policy reads the patterns of all others, too. */
const readings = new Map<string, PatternReading | string>();

/** What can be told without the engine. A string says in one sentence why the pattern is refused. */
export function readPattern(pattern: string): PatternReading | string {
  const known = readings.get(pattern);
  if (known !== undefined) return known;
  const reading = readAnew(pattern);
  // What is too long is refused by that alone.
  if (pattern.length > MAX_PATTERN_LENGTH) return reading;
  if (readings.size >= REMEMBERED) readings.clear();
  readings.set(pattern, reading);
  return reading;
}

function readAnew(pattern: string): PatternReading | string {
  if (pattern === '') return 'The pattern is empty; use null for every name.';
  if ([...pattern].length > MAX_PATTERN_LENGTH) return `The pattern is longer than ${MAX_PATTERN_LENGTH} characters.`;
  if (/[\p{Cc}\p{Cs}]/u.test(pattern))
    return 'The pattern contains a control character or half a character; write it as an escape such as \\n.';
  let tree: Node;
  try {
    tree = parse(pattern);
  } catch (error) {
    if (error instanceof PatternSyntaxError) return error.message;
    throw error;
  }
  const price = cost(tree);
  if (price > MAX_PATTERN_COST) {
    return `The pattern costs ${price}, more than ${MAX_PATTERN_COST}: repeat less, or repeat smaller sets of characters.`;
  }
  const shapes = lower(tree);
  return { cost: price, shapes, screen: shapes === null ? screen(tree) : null };
}

/** null: admitted; otherwise one plain sentence that says why not. Patterns already judged are remembered. */
export type PatternCheck = (pattern: string) => string | null;

/** `runs`: is it the engine that will run such a pattern, so that the engine must be asked? */
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
  /** The policies that share the bucket, in id order. */
  readonly policyIds: readonly string[];
}

/** Limits on the set as a whole: each pattern is admitted on its own, but all that a decision may try must be affordable too. */
export function checkPolicySet(policies: readonly Policy[]): SetProblem[] {
  return atOnce(checkPolicySetInSteps(policies));
}

/** `checkPolicySet`, pausing every few policies so that the caller can let other work run. */
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

/** Regular expressions that one decision may have to try, and who brought them. */
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
    const message = `The patterns for ${whom}, ${type}, ${where} cost ${total} together, more than ${limit}.`;
    return [{ message, policyIds: [...policyIds].sort() }];
  });
}
