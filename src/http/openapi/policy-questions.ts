/** How requests are decided, and would be. */
import { MISFITS } from '../../decision/explain.ts';
import { EFFECTS, RESOURCE_TYPES } from '../../policies/document.ts';
import { USER_LIMITS } from '../../users/document.ts';
import { inLines, one, type Paths, REVISION } from './operation.ts';
import { objectShown, policyRef, policyRefMembers } from './policies.ts';
import { policyFiles, sourceMembers } from './policy-sets.ts';
import {
  boolean,
  described,
  integer,
  listOf,
  named,
  object,
  oneOf,
  orNull,
  ref,
  type Schema,
  sha256,
  strict,
  string,
  targetName,
  text,
  uuid,
} from './schema.ts';
import { groups, role } from './users.ts';

const askedPrincipal: Schema = {
  oneOf: [
    named('PrincipalByUser', strict({ user: described('Id or e-mail of a user.', text(USER_LIMITS.name)) }, ['user'])),
    named(
      'PrincipalByRole',
      strict({ role, sub: described('Left out: nobody in particular.', text(USER_LIMITS.name)), groups }, ['role']),
    ),
  ],
};
const askedMembers = {
  principal: askedPrincipal,
  target: targetName,
  resource_type: described('Left out, with `resource_name`: may the target be used at all?', oneOf(RESOURCE_TYPES)),
  resource_name: { type: 'string', minLength: 1, maxLength: 2048 },
};
const askedRequest = strict(askedMembers, ['principal', 'target']);
export const answered = {
  effect: oneOf(EFFECTS),
  reason: described(
    'not_canonical: the URI has more than one reading, and is refused before any policy is asked.',
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
    email: described('null: it is no stored user.', orNull(string)),
    enabled: described('false: requests of this user are refused before any policy is asked.', boolean),
  }),
);
const targetShown = named('TargetShown', object({ id: uuid, name: targetName, enabled: boolean }));
const question: Schema = ref('PolicyQuestion');
export const verdict = named('Answered', object(answered));

export const POLICY_QUESTION_SCHEMAS = {
  PolicyQuestion: askedRequest,
  PolicyExplanation: object({
    revision: integer,
    data_hash: sha256,
    engine_hash: sha256,
    principal: principalShown,
    target: targetShown,
    ...objectShown,
    ...answered,
    passed_over: described(
      'Policies that are read before the one that decides, in this order, and the first member of each that does not fit; at most 1000.',
      listOf(
        named(
          'PassedOver',
          object({
            ...policyRefMembers,
            effect: oneOf(EFFECTS),
            misfit: oneOf(MISFITS),
            wants: described('What would have to be so; null where the member says nothing.', orNull(string)),
          }),
        ),
      ),
    ),
    passed_over_count: integer,
  }),
  PolicyFilesToSimulate: strict({ ...sourceMembers, requests: { ...listOf(question), minItems: 1, maxItems: 1000 } }, [
    'requests',
  ]),
  PolicySimulation: object({
    revision: integer,
    changed: described('How many of the results change.', integer),
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
            'policy: the effect stays, and another policy decides.',
            oneOf(['none', 'grants', 'refuses', 'policy']),
          ),
        }),
      ),
    ),
  }),
  PolicyTests: strict(
    {
      tests: described('Texts of YAML files of tests, by name.', { ...policyFiles, minProperties: 1 }),
      ...sourceMembers,
      files: described(
        'Policies to test as `apply` would make them; without them and without a draft: those there are.',
        policyFiles,
      ),
    },
    ['tests'],
  ),
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
        policies: described('Enabled ones.', integer),
        decided: described('Those that decided at least one case.', integer),
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
      summary: 'Why a request is decided as it is: the policy that decides, and each that was passed over.',
      access: 'admin',
      takes: 'PolicyQuestion',
      gives: { 200: one('PolicyExplanation', REVISION) },
    },
  },
  '/api/policies/simulate': {
    post: {
      id: 'simulatePolicies',
      summary: 'How requests are decided now, and how they would be if files were applied. Nothing is stored.',
      access: 'admin',
      takes: 'PolicyFilesToSimulate',
      gives: { 200: inLines(one('PolicySimulation', REVISION)) },
      heavy: true,
      refuses: [404, 412],
    },
  },
  '/api/policies/test': {
    post: {
      id: 'testPolicies',
      summary: 'Run tests on the policies, or on those that files would make. Nothing is stored.',
      access: 'admin',
      takes: 'PolicyTests',
      gives: { 200: inLines(one('PolicyTestReport', REVISION)) },
      heavy: true,
      refuses: [404, 412],
    },
  },
};
