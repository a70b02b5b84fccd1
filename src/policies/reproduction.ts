/** Makes a recorded decision again, with the policies of its revision, and compares both. */
import { AUDIT_REASONS } from '../audit/records/records.ts';
import type { LogJson } from '../audit/search/log-json.ts';
import type { LoadedEngine } from '../engine/engine.ts';
import type { Question } from '../engine/explain.ts';

/** What must be the same. The log calls these members the same. */
export const REPRODUCED = ['effect', 'policy_id', 'reason', 'data_hash', 'engine_hash'] as const;
type Reproduced = Pick<LogJson, (typeof REPRODUCED)[number]>;

export interface Difference {
  readonly member: (typeof REPRODUCED)[number];
  readonly recorded: string | null;
  readonly reproduced: string | null;
}

/**
 * `not_by_policy`: no policy was evaluated. `erased`: the groups of the user are missing. `damaged`: the record is not what the gateway
 * wrote, or the log lacks other data of the decision; `audit verify` reports both. `unproven`: the gateway cannot tell whether the record is
 * what it wrote.
 */
export type NotAsked = 'not_by_policy' | 'erased' | 'damaged' | 'unproven';

export function askedIn({
  reason,
  user_id,
  user_email,
  user_role,
  user_groups,
  target_id,
  ...row
}: LogJson): Question | Exclude<NotAsked, 'unproven'> {
  // The members of a lost fact are null.
  if (user_id === null || row.method === null || !AUDIT_REASONS.includes(reason)) return 'damaged';
  if (reason !== 'matched' && reason !== 'default') return 'not_by_policy';
  if (target_id === null) return 'damaged';
  if (user_email === '') return 'erased';
  const { resource_type, resource_name } = row;
  const object = resource_type === null || resource_name === null ? null : { resource_type, resource_name };
  return { principal: { sub: user_id, role: user_role, groups: user_groups }, targetId: target_id, object };
}

/** `engine`: that of the policies of the revision. */
export function reproduce(engine: LoadedEngine, { principal, targetId, object }: Question): Reproduced {
  const { effect, policy, reason } =
    object === null ? engine.decideTarget(principal, targetId) : engine.decide(principal, targetId, object);
  return { effect, policy_id: policy?.id ?? null, reason, data_hash: engine.compiled.hash, engine_hash: engine.engineHash };
}

export const differencesOf = (recorded: Reproduced, reproduced: Reproduced): Difference[] =>
  REPRODUCED.flatMap((member) =>
    recorded[member] === reproduced[member] ? [] : [{ member, recorded: recorded[member], reproduced: reproduced[member] }],
  );
