/** The REST contract of questions about policies: explain, simulate and test. */
import { EFFECTS } from '../../engine/compile/policy.ts';
import { MISFITS } from '../../engine/explain.ts';
import type { TestReport, TestResult } from '../../policies/files/test-run.ts';
import { requestBody, simulateBody, testBody } from '../../policies/sets/questions-about.ts';
import { inLines, type Operations, one, REVISION } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { objectShown, policyRef, policyRefMembers } from '../policies/contract.ts';

export const answered = {
  effect: s.oneOf(EFFECTS),
  reason: s.described(
    '`not_canonical`: the URI is ambiguous. It is refused before any policy is evaluated.',
    s.oneOf(['matched', 'default', 'error', 'not_canonical']),
  ),
  policy: s.orNull(policyRef),
};
const principalShown = s.model('PrincipalShown', {
  sub: s.string,
  role: s.string,
  groups: s.listOf(s.string),
  email: s.described('null: the principal is not a stored user.', s.orNull(s.string)),
  enabled: s.described('false: the requests of this user to the target are refused before any policy is evaluated.', s.boolean),
});
const targetShown = s.model('TargetShown', { id: s.uuid, name: s.targetName, enabled: s.boolean });
export const verdict = s.model('Answered', answered);

const PolicyExplanation = s.model('PolicyExplanation', {
  revision: s.integer,
  data_hash: s.sha256,
  engine_hash: s.sha256,
  principal: principalShown,
  target: targetShown,
  ...objectShown,
  ...answered,
  passed_over: s.described(
    'Policies that are evaluated before the deciding one but do not match, in the order of evaluation; at most 1000. `misfit` is the first member that does not match.',
    s.listOf(
      s.model('PassedOver', {
        ...policyRefMembers,
        effect: s.oneOf(EFFECTS),
        misfit: s.oneOf(MISFITS),
        wants: s.described('The value that the member requires; null if it requires none.', s.orNull(s.string)),
      }),
    ),
  ),
  passed_over_count: s.integer,
});
const PolicySimulation = s.model('PolicySimulation', {
  revision: s.integer,
  changed: s.described('How many results change.', s.integer),
  results: s.listOf(
    s.model('SimulatedRequest', {
      principal: principalShown,
      target: targetShown,
      ...objectShown,
      now: verdict,
      would_be: verdict,
      change: s.described(
        '`policy`: the effect is the same, but a different policy decides.',
        s.oneOf(['none', 'grants', 'refuses', 'policy']),
      ),
    }),
  ),
});
const PolicyTestReport = s.model<TestReport & { revision: number }>('PolicyTestReport', {
  revision: s.integer,
  passed: s.integer,
  failed: s.integer,
  results: s.listOf(
    s.model<TestResult>('PolicyTestResult', {
      file: s.string,
      line: s.integer,
      column: s.integer,
      test: s.string,
      principal: s.string,
      request: s.string,
      target: s.targetName,
      passed: s.boolean,
      expected: s.model('ExpectedDecision', { effect: s.oneOf(EFFECTS), policy: s.orNull(s.string) }, ['policy']),
      actual: verdict,
    }),
  ),
  coverage: s.model('PolicyTestCoverage', {
    policies: s.described('The number of enabled policies.', s.integer),
    decided: s.described('The number of enabled policies that decide at least one case.', s.integer),
    percent: { type: 'number' },
    undecided: s.listOf(policyRef),
  }),
});

export const POLICY_QUESTION_OPERATIONS: Operations = {
  'POST /api/policies/explain': {
    id: 'explainDecision',
    access: ['read'],
    summary: 'Explain a decision: the policy that decides, and the policies before it that do not match.',
    takes: requestBody,
    gives: { 200: one(PolicyExplanation, REVISION) },
  },
  'POST /api/policies/simulate': {
    id: 'simulatePolicies',
    access: ['read'],
    summary: 'Decide requests by the current policies, and by the policies that applying files would make. Nothing is stored.',
    takes: simulateBody,
    gives: { 200: inLines(one(PolicySimulation, REVISION)) },
    heavy: true,
    refuses: [404, 409, 412],
  },
  'POST /api/policies/test': {
    id: 'testPolicies',
    access: ['policies:plan'],
    summary: 'Run tests on the current policies, or on the policies that applying files would make. Nothing is stored.',
    takes: testBody,
    gives: { 200: inLines(one(PolicyTestReport, REVISION)) },
    heavy: true,
    refuses: [404, 409, 412],
  },
};
