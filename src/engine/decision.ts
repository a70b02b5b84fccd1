/** The question that policies answer, and its answer. */
import type { Effect, ResourceType } from './compile/policy.ts';

/** What policies may know about a caller. Nothing else in a request influences a decision. */
export interface PrincipalFacts {
  readonly sub: string;
  readonly role: string;
  readonly groups: readonly string[];
}

export interface NamedObject {
  readonly resource_type: ResourceType;
  /** The name of the tool or prompt, or the URI of the resource, byte for byte as the gateway forwards it. */
  readonly resource_name: string;
}

/** `matched`: the named policy decided. `default`: none matched, so deny. `error`: the evaluation failed (law 6), so deny. */
export type DecisionReason = 'matched' | 'default' | 'error';

export interface DecidingPolicy {
  readonly id: string;
  readonly name: string;
  readonly priority: number;
}

export interface Decision {
  readonly effect: Effect;
  readonly reason: DecisionReason;
  /** Set exactly when `reason` is `matched`. */
  readonly policy: DecidingPolicy | null;
}

/** A compiled and loaded policy set, which never changes. Every method is synchronous, never throws, and denies on any fault. */
export interface Engine {
  /** The revision of the policy set that was compiled. */
  readonly revision: number;
  /** SHA-256 (hex) of the compiled document's canonical JSON. */
  readonly dataHash: string;
  /** SHA-256 (hex) of the WASM module. */
  readonly engineHash: string;
  /** Decides whether this caller may use this object of this target. */
  decide(principal: PrincipalFacts, targetId: string, object: NamedObject): Decision;
  /** Returns what `decide` returns for each object, in order. Lists are filtered with it. */
  decideMany(principal: PrincipalFacts, targetId: string, objects: readonly NamedObject[]): Decision[];
  /** Returns how many milliseconds deciding the objects takes at most, by an estimate that is the same on every machine. */
  estimate(principal: PrincipalFacts, targetId: string, objects: readonly NamedObject[]): number;
  /**
   * Decides whether this caller may use this target at all. It evaluates the policies that match the caller and the target, in
   * order. A deny of everything (type `all`, no pattern) denies access, and any allow grants access. If no policy matches, access
   * is denied.
   */
  decideTarget(principal: PrincipalFacts, targetId: string): Decision;
}
