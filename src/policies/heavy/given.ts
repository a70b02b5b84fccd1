/**
 * Policies on their way to the thread, each with the gateway's reading of its pattern, and how much work RE2 has with it. A thread that has just
 * started would need up to a second to read the patterns of a large set, and would take all of them for new. On the way back, the gateway gets
 * what the thread has found out about the other patterns.
 */
import { keepReading, keepSet, keepWork, knownReading, knownWork, type PatternReading } from '../../engine/compile/pattern.ts';
import type { Policy } from '../../engine/compile/policy.ts';

/** `reading` undefined: the gateway has not read the pattern. */
export interface Given<P extends Policy> {
  readonly policy: P;
  readonly reading: PatternReading | string | undefined;
  /** undefined: the gateway has not computed it. */
  readonly work: number | null | undefined;
}

export function* withReadings<P extends Policy>(policies: Iterable<P>): Generator<Given<P>> {
  for (const policy of policies) {
    const { resource_pattern: pattern } = policy;
    const reading = pattern === null ? undefined : knownReading(pattern);
    yield { policy, reading, work: knownWork(reading) };
  }
}

export function takePolicies<P extends Policy>(given: readonly Given<P>[]): P[] {
  const set = new Map<string, PatternReading | string>();
  for (const { policy, reading, work } of given) {
    const { resource_pattern: pattern } = policy;
    if (pattern === null || reading === undefined) continue;
    // A reading that is known here stays, because more is kept with it.
    const known = knownReading(pattern) ?? reading;
    if (typeof known === 'object' && work !== undefined) keepWork(known, work);
    set.set(pattern, known);
  }
  keepSet(set);
  return given.map(({ policy }) => policy);
}

/** What the thread has found out about a pattern. */
export interface FoundPattern {
  readonly pattern: string;
  readonly reading: PatternReading | string;
  readonly work: Given<Policy>['work'];
}

/** Returns what the gateway did not know when it gave the policies. It needs this when it loads them, and would compute it again. */
export function* foundFor(given: readonly Given<Policy>[]): Generator<FoundPattern> {
  const told = new Set<string>();
  for (const { policy, ...before } of given) {
    const { resource_pattern: pattern } = policy;
    if (pattern === null || told.has(pattern)) continue;
    told.add(pattern);
    const reading = knownReading(pattern);
    const work = knownWork(reading);
    if (reading !== undefined && (before.reading === undefined || before.work !== work)) yield { pattern, reading, work };
  }
}

export function takeFound(found: readonly FoundPattern[]): void {
  for (const { pattern, reading, work } of found) {
    const known = knownReading(pattern) ?? reading;
    if (known === reading) keepReading(pattern, reading);
    if (typeof known === 'object' && work !== undefined) keepWork(known, work);
  }
}
