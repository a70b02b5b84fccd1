import { v7 as uuidv7 } from 'uuid';
import type { DecisionRecord } from '../../src/audit/event.ts';

export function decision(over: Partial<DecisionRecord> = {}): DecisionRecord {
  return {
    id: uuidv7(),
    created_at: 1_700_000_000_000,
    issuer: 'portcullis',
    user_id: 'u1',
    user_email: 'Someone@example.com',
    user_role: 'developer',
    user_groups: ['a', 'ü\u{1f600}'],
    target_id: null,
    target_name: 'everything',
    method: 'tools/call',
    resource_type: 'tool',
    resource_name: 'echo',
    effect: 'deny',
    reason: 'default',
    policy_id: null,
    policy_name: null,
    policy_priority: null,
    revision: 3,
    data_hash: 'd'.repeat(64),
    engine_hash: 'e'.repeat(64),
    ...over,
  };
}
