/** A row of the audit log as the API shows it. `event.ts` says what is recorded, `decision-store.ts` in which columns. */
import type { AuditEntry } from './decision-store.ts';

export type LogJson = ReturnType<typeof logJson>;

/** The members are in reading order: when, who, what, the decision and its reason, then the data that reproduces it. */
export function logJson(entry: AuditEntry) {
  return {
    id: entry.id,
    created_at: new Date(entry.created_at).toISOString(),
    user_id: entry.user_id,
    user_email: entry.user_email,
    user_role: entry.user_role,
    user_groups: entry.user_groups,
    target_id: entry.target_id,
    target_name: entry.target_name,
    method: entry.method,
    resource_type: entry.resource_type,
    resource_name: entry.resource_name,
    arguments: entry.arguments,
    effect: entry.effect,
    policy_id: entry.policy_id,
    policy_name: entry.policy_name,
    policy_priority: entry.policy_priority,
    reason: entry.reason,
    issuer: entry.issuer,
    revision: entry.revision,
    data_hash: entry.data_hash,
    engine_hash: entry.engine_hash,
    outcome: entry.outcome,
    duration_ms: entry.duration_ms,
    shown: entry.shown,
  };
}
