/** The question that policy answers, and its answer. */
import type { Effect, ResourceType } from '../policies/document.ts';

/** What policies may know of a caller. Nothing else about a request influences a decision. */
export interface PrincipalFacts {
  readonly sub: string;
  readonly role: string;
  readonly groups: readonly string[];
}

export interface NamedObject {
  readonly resource_type: ResourceType;
  /** Tool or prompt name, or resource URI, byte for byte as it will be forwarded. */
  readonly resource_name: string;
}

/**
 * - `matched`: the named policy decided. `default`: none matched, so the answer is deny.
 * - `error`: the question could not be answered (law 6), so the answer is deny.
 */
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

/** An immutable policy set, compiled and loaded. Every method is synchronous, never throws, and denies on any fault. */
export interface Engine {
  /** Revision of the policy set that was compiled. */
  readonly revision: number;
  /** SHA-256 (hex) of the compiled document's canonical JSON. */
  readonly dataHash: string;
  /** SHA-256 (hex) of the WASM module. */
  readonly engineHash: string;
  /** May this caller use this object of this target? */
  decide(principal: PrincipalFacts, targetId: string, object: NamedObject): Decision;
  /** `decide` for each object, in order: what lists are filtered by. */
  decideMany(principal: PrincipalFacts, targetId: string, objects: readonly NamedObject[]): Decision[];
  /**
   * May this caller use this target at all? Policies that fit caller and target are read in order: a deny that covers
   * everything (type `all`, no pattern) refuses, any allow grants, none refuses.
   */
  decideTarget(principal: PrincipalFacts, targetId: string): Decision;
}
