/**
 * Policies on their way to the thread, each with the gateway's reading of its pattern. A thread that has just started would need up to a
 * second to read the patterns of a large set.
 */
import { keepReading, knownReading, type PatternReading } from '../../engine/compile/pattern.ts';
import type { Policy } from '../../engine/compile/policy.ts';

/** `reading` undefined: the gateway has not read the pattern. */
export interface Given<P extends Policy> {
  readonly policy: P;
  readonly reading: PatternReading | string | undefined;
}

export function* withReadings<P extends Policy>(policies: Iterable<P>): Generator<Given<P>> {
  for (const policy of policies) {
    const { resource_pattern: pattern } = policy;
    yield { policy, reading: pattern === null ? undefined : knownReading(pattern) };
  }
}

export function takePolicies<P extends Policy>(given: readonly Given<P>[]): P[] {
  return given.map(({ policy, reading }) => {
    if (policy.resource_pattern !== null && reading !== undefined) keepReading(policy.resource_pattern, reading);
    return policy;
  });
}
