/** What the audit log holds: one decision per request, what a list showed, and how it ended. */
import type { Principal } from '../auth/principal.ts';
import type { Decision, DecisionReason } from '../decision/decision.ts';
import type { Effect, ResourceType } from '../policies/document.ts';

/** Durable before the decision takes effect (law 5), never changed afterwards. */
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
  /** null when no target has the name that was asked for. */
  readonly target_id: string | null;
  readonly target_name: string;
  /** JSON-RPC method. */
  readonly method: string;
  /** null where the target itself was asked for. */
  readonly resource_type: ResourceType | null;
  readonly resource_name: string | null;
  /** JSON of CapturedArguments; null where none are captured, and once they are erased. */
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

/** Beyond the engine's reasons: no such target (or it is switched off), and a URI that has more than one reading. */
export type AuditReason = DecisionReason | 'no_target' | 'not_canonical';
export const AUDIT_REASONS = ['matched', 'default', 'error', 'no_target', 'not_canonical'] as const satisfies AuditReason[];

/** What a list showed: the names or URIs that remained after filtering, durable before the list is answered. */
export interface ShownRecord {
  readonly decision_id: string;
  readonly resource_type: ResourceType;
  readonly names: readonly string[];
  /** How many items the upstream had that were not shown. */
  readonly hidden: number;
}

/** How a request ended; written after the answer. */
export interface OutcomeRecord {
  readonly decision_id: string;
  readonly outcome: Outcome;
  readonly duration_ms: number;
}

/** `ok`: a result. `error`: the target's own JSON-RPC error. `upstream_error`: no usable answer. `denied`, `cancelled` speak for themselves. */
export type Outcome = 'ok' | 'error' | 'upstream_error' | 'denied' | 'cancelled';

/** Where records go. Rejects with AppError `unavailable` when a record cannot be made durable; the request is then refused. */
/** What was decided on: a request of the principal, or something that a target sent it on its own. */
export type DecisionCause = 'request' | 'delivery';

export interface AuditWriter {
  decision(record: DecisionRecord, cause?: DecisionCause): Promise<void>;
  shown(record: ShownRecord): Promise<void>;
  /** Never rejects and is not awaited: an outcome has no effect to guard. */
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
