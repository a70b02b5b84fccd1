/**
 * Policies on their way to the thread, each with the gateway's reading of its pattern, and how much work RE2 has with it. A thread that has just
 * started would need up to a second to read the patterns of a large set, and would take all of them for new.
 */
import { keepReading, keepWork, knownReading, knownWork, type PatternReading } from '../../engine/compile/pattern.ts';
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
  return given.map(({ policy, reading, work }) => {
    if (policy.resource_pattern !== null && reading !== undefined) keepReading(policy.resource_pattern, reading);
    if (typeof reading === 'object' && work !== undefined) keepWork(reading, work);
    return policy;
  });
}
