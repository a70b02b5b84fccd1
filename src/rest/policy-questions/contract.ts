/** How requests are decided, and how they would be decided by other policies. */

import { EFFECTS } from '../../engine/compile/policy.ts';
import { MISFITS } from '../../engine/explain.ts';
import { requestBody, simulateBody, testBody } from '../../policies/sets/questions-about.ts';
import { inLines, one, type Paths, REVISION } from '../openapi/operation.ts';
import {
  boolean,
  described,
  integer,
  listOf,
  named,
  object,
  oneOf,
  orNull,
  type Schema,
  sha256,
  string,
  targetName,
  uuid,
} from '../openapi/schema.ts';
import { objectShown, policyRef, policyRefMembers } from '../policies/contract.ts';

export const answered = {
  effect: oneOf(EFFECTS),
  reason: described(
    '`not_canonical`: the URI is ambiguous. It is refused before any policy is evaluated.',
    oneOf(['matched', 'default', 'error', 'not_canonical']),
  ),
  policy: orNull(policyRef),
};
const principalShown = named(
  'PrincipalShown',
  object({
    sub: string,
    role: string,
    groups: listOf(string),
    email: described('null: the principal is not a stored user.', orNull(string)),
    enabled: described('false: requests of this user are refused before any policy is evaluated.', boolean),
  }),
);
const targetShown = named('TargetShown', object({ id: uuid, name: targetName, enabled: boolean }));
export const verdict = named('Answered', object(answered));

export const POLICY_QUESTION_SCHEMAS = {
  PolicyExplanation: object({
    revision: integer,
    data_hash: sha256,
    engine_hash: sha256,
    principal: principalShown,
    target: targetShown,
    ...objectShown,
    ...answered,
    passed_over: described(
      'Policies that are evaluated before the deciding one but do not match, in the order of evaluation; at most 1000. `misfit` is the first member that does not match.',
      listOf(
        named(
          'PassedOver',
          object({
            ...policyRefMembers,
            effect: oneOf(EFFECTS),
            misfit: oneOf(MISFITS),
            wants: described('The value that the member requires; null if it requires none.', orNull(string)),
          }),
        ),
      ),
    ),
    passed_over_count: integer,
  }),
  PolicySimulation: object({
    revision: integer,
    changed: described('How many results change.', integer),
    results: listOf(
      named(
        'SimulatedRequest',
        object({
          principal: principalShown,
          target: targetShown,
          ...objectShown,
          now: verdict,
          would_be: verdict,
          change: described(
            '`policy`: the effect is the same, but a different policy decides.',
            oneOf(['none', 'grants', 'refuses', 'policy']),
          ),
        }),
      ),
    ),
  }),
  PolicyTestReport: object({
    revision: integer,
    passed: integer,
    failed: integer,
    results: listOf(
      named(
        'PolicyTestResult',
        object({
          file: string,
          line: integer,
          column: integer,
          test: string,
          principal: string,
          request: string,
          target: targetName,
          passed: boolean,
          expected: named('ExpectedDecision', object({ effect: oneOf(EFFECTS), policy: orNull(string) }, ['policy'])),
          actual: verdict,
        }),
      ),
    ),
    coverage: named(
      'PolicyTestCoverage',
      object({
        policies: described('The number of enabled policies.', integer),
        decided: described('The number of enabled policies that decide at least one case.', integer),
        percent: { type: 'number' },
        undecided: listOf(policyRef),
      }),
    ),
  }),
} satisfies Record<string, Schema>;

export const POLICY_QUESTION_PATHS: Paths = {
  '/api/policies/explain': {
    post: {
      id: 'explainDecision',
      summary: 'Explain a decision: the policy that decides, and the policies before it that do not match.',
      access: 'admin',
      takes: requestBody,
      gives: { 200: one('PolicyExplanation', REVISION) },
    },
  },
  '/api/policies/simulate': {
    post: {
      id: 'simulatePolicies',
      summary: 'Decide requests by the current policies, and by the policies that applying files would make. Nothing is stored.',
      access: 'admin',
      takes: simulateBody,
      gives: { 200: inLines(one('PolicySimulation', REVISION)) },
      heavy: true,
      refuses: [404, 412],
    },
  },
  '/api/policies/test': {
    post: {
      id: 'testPolicies',
      summary: 'Run tests on the current policies, or on the policies that applying files would make. Nothing is stored.',
      access: 'admin',
      takes: testBody,
      gives: { 200: inLines(one('PolicyTestReport', REVISION)) },
      heavy: true,
      refuses: [404, 412],
    },
  },
};
