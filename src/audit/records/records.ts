/** The records of the audit log: one decision per request, the items of a list, and how the request ended. */
import type { Principal } from '../../auth/principal.ts';
import type { Effect, ResourceType } from '../../engine/compile/policy.ts';
import type { Decision, DecisionReason } from '../../engine/decision.ts';

/** A decision. It is durable before it takes effect (law 5) and never changes afterwards. */
export interface DecisionRecord {
  /** Decision id, UUIDv7. */
  readonly id: string;
  /** Milliseconds since the epoch. */
  readonly created_at: number;
  readonly issuer: string;
  readonly user_id: string;
  readonly user_email: string;
  readonly user_role: string;
  readonly user_groups: readonly string[];
  /** null if no target has the requested name. */
  readonly target_id: string | null;
  readonly target_name: string;
  /** JSON-RPC method. */
  readonly method: string;
  /** null if the request is for the target itself. */
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  /** JSON of CapturedArguments; null if none were captured, or if they were erased. */
  readonly arguments: string | null;
  readonly effect: Effect;
  readonly reason: AuditReason;
  readonly policy_id: string | null;
  readonly policy_name: string | null;
  readonly policy_priority: number | null;
  readonly revision: number;
  readonly data_hash: string;
  readonly engine_hash: string;
}

/** The engine's reasons and two more: the target does not exist or is disabled, and the URI is ambiguous. */
export type AuditReason = DecisionReason | 'no_target' | 'not_canonical';
export const AUDIT_REASONS = ['matched', 'default', 'error', 'no_target', 'not_canonical'] as const satisfies AuditReason[];

/** The items of a list: the names or URIs that remain after filtering. It is durable before the list is answered. */
export interface ShownRecord {
  readonly decision_id: string;
  readonly resource_type: ResourceType;
  readonly names: readonly string[];
  /** How many items of the target were removed from the list. */
  readonly hidden: number;
}

/** How a request ended. It is written after the answer. */
export interface OutcomeRecord {
  readonly decision_id: string;
  readonly outcome: Outcome;
  readonly duration_ms: number;
}

/**
 * `ok`: a result. `error`: the target's own JSON-RPC error. `upstream_error`: the target gave no usable answer. `denied`: the
 * policies denied it. `cancelled`: the client cancelled it.
 */
export type Outcome = 'ok' | 'error' | 'upstream_error' | 'denied' | 'cancelled';

/** What a decision is about: a request of the principal, or a message that a target sent to it unasked. */
export type DecisionCause = 'request' | 'delivery';

/** Writes audit records. Rejects with AppError `unavailable` if a record cannot be made durable; the request is then refused. */
export interface AuditWriter {
  decision(record: DecisionRecord, cause: DecisionCause): Promise<void>;
  shown(record: ShownRecord): Promise<void>;
  /** Never rejects and is not awaited, because nothing depends on an outcome. */
  outcome(record: OutcomeRecord): void;
}

export interface DecisionSubject {
  readonly principal: Principal;
  readonly target: { readonly id: string | null; readonly name: string };
  readonly method: string;
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  readonly arguments: string | null;
}

export function decisionRecord(
  id: string,
  now: number,
  subject: DecisionSubject,
  decision: Omit<Decision, 'reason'> & { readonly reason: AuditReason },
  engine: { readonly revision: number; readonly dataHash: string; readonly engineHash: string },
): DecisionRecord {
  return {
    id,
    created_at: now,
    issuer: subject.principal.issuer,
    user_id: subject.principal.sub,
    user_email: subject.principal.email,
    user_role: subject.principal.role,
    user_groups: subject.principal.groups,
    target_id: subject.target.id,
    target_name: subject.target.name,
    method: subject.method,
    resource_type: subject.resource_type,
    resource_name: subject.resource_name,
    arguments: subject.arguments,
    effect: decision.effect,
    reason: decision.reason,
    policy_id: decision.policy?.id ?? null,
    policy_name: decision.policy?.name ?? null,
    policy_priority: decision.policy?.priority ?? null,
    revision: engine.revision,
    data_hash: engine.dataHash,
    engine_hash: engine.engineHash,
  };
}
