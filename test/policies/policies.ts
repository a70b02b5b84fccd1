import type { StoredPolicy } from '../../src/engine/compile/policy.ts';
import type { Guard } from '../../src/policies/edit.ts';
import type { PolicyJson } from '../../src/policies/schema.ts';
import { createSettle } from '../../src/policies/settle.ts';

export type PolicyAnswer = PolicyJson;

/** The members that creation requires. */
export const policyBody = (over: object = {}): Record<string, unknown> => ({
  name: 'Everyone may echo',
  resource_type: 'tool',
  effect: 'allow',
  priority: 10,
  subjects: [{ subject_type: 'everyone' }],
  ...over,
});

export function policy(id: string, over: Partial<StoredPolicy> = {}): StoredPolicy {
  return {
    id,
    name: id,
    description: null,
    target_id: null,
    resource_type: 'tool',
    resource_pattern: null,
    effect: 'allow',
    priority: 0,
    enabled: true,
    subjects: [],
    managed_as: null,
    drift_since: null,
    created_at: 1,
    updated_at: 2,
    ...over,
  };
}

/** Stands for a gateway without invariants. */
export const NO_INVARIANTS: Guard = {
  settle: createSettle(async () => undefined),
  glance: async () => ({ glance: '', guarded: false }),
  check: async () => ({ glance: '', refusal: null, widening: null }),
  forget: async () => [],
};
