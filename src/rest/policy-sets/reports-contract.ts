/** Reports about the policies: who can use what, and which policies are wrong or useless. */
import Joi from 'joi';
import { EFFECTS, RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { objectMembers } from '../../policies/sets/questions-about.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, inLines, many, one, type Paths, paging, REVISION } from '../openapi/operation.ts';
import {
  described,
  int32,
  integer,
  listOf,
  named,
  object,
  oneOf,
  orNull,
  type Schema,
  string,
  targetName,
  uuid,
} from '../openapi/schema.ts';
import { objectFound, principalFound, subjectType } from '../policies/contract.ts';

const witnessDecision = named('WitnessDecision', object({ effect: oneOf(EFFECTS), policy_id: orNull(uuid) }));

export const accessMembers = {
  format: Joi.valid('json', 'csv').description('`csv`: all rows, as a stream.'),
  target: Joi.string().pattern(TARGET_NAME).description('Only this target. Absent: all enabled targets.'),
  resource_type: objectMembers.resource_type.description('Only one object, together with `resource_name`.'),
  resource_name: objectMembers.resource_name.description(
    'Absent: the target itself, and every name in the newest rows of the audit log.',
  ),
  who: Joi.string()
    .pattern(/^(everyone|(role|group|user):.+)$/s)
    .max(300)
    .description('`everyone`, `role:<name>`, `group:<name>` or `user:<id or e-mail>`. Absent: all of them.'),
};

export const POLICY_REPORT_SCHEMAS = {
  AccessRow: object({
    subject_type: subjectType,
    subject_value: described('A role, a group, or the id of a user; null for `everyone`.', orNull(string)),
    email: orNull(string),
    role: orNull(string),
    groups: orNull(listOf(string)),
    target: targetName,
    resource_type: described('null: the row is about the use of the target as such.', orNull(oneOf(RESOURCE_TYPES))),
    resource_name: orNull(string),
    policy_id: uuid,
    policy_name: string,
    policy_priority: int32,
  }),
  PolicyLint: object({
    revision: integer,
    analysed: described('The number of enabled policies.', integer),
    findings: listOf(
      named(
        'LintFinding',
        object({
          code: string,
          severity: oneOf(['error', 'warning', 'info']),
          message: string,
          policies: described(
            'The policy with the problem, followed by the policies that cause it.',
            listOf(named('LintedPolicy', object({ id: uuid, name: string, file: orNull(string) }))),
          ),
          witness: described(
            'A request that shows the problem; null if no request can. A target, user or role that no policy names is invented.',
            orNull(
              named(
                'LintWitness',
                object({
                  principal: principalFound,
                  target: string,
                  ...objectFound,
                  decision: witnessDecision,
                  without: described('The decision without the policy.', witnessDecision),
                }),
              ),
            ),
          ),
        }),
      ),
    ),
  }),
} satisfies Record<string, Schema>;

export const POLICY_REPORT_PATHS: Paths = {
  '/api/policies/access': {
    get: get(
      'listAccess',
      'List who can use what. A page has all rows of `limit` users, so it may be long or empty.',
      'admin',
      { ...many('AccessRow', REVISION, 'Link'), orMediaType: 'text/csv' },
      {
        query: [...paging('Users per page. Absent: 100.'), ...queryOf(accessMembers)],
      },
    ),
  },
  '/api/policies/lint': {
    get: get(
      'lintPolicies',
      'Find wrong and useless policies. The analysis covers all possible requests.',
      'admin',
      inLines(one('PolicyLint', REVISION)),
      { heavy: true },
    ),
  },
};
