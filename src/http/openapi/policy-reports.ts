/** What the policies come to: who can use what, and what of them is wrong or of no use. */
import { EFFECTS, RESOURCE_TYPES } from '../../policies/document.ts';
import { get, inLines, many, one, type Paths, paging, parameter, REVISION } from './operation.ts';
import { objectFound, principalFound, subjectType } from './policies.ts';
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
} from './schema.ts';

const witnessDecision = named('WitnessDecision', object({ effect: oneOf(EFFECTS), policy_id: orNull(uuid) }));

export const POLICY_REPORT_SCHEMAS = {
  AccessRow: object({
    subject_type: subjectType,
    subject_value: described('A role, a group, or the id of a user; null for `everyone`.', orNull(string)),
    email: orNull(string),
    role: orNull(string),
    groups: orNull(listOf(string)),
    target: targetName,
    resource_type: described('null: the row says that the target can be used at all.', orNull(oneOf(RESOURCE_TYPES))),
    resource_name: orNull(string),
    policy_id: uuid,
    policy_name: string,
    policy_priority: int32,
  }),
  PolicyLint: object({
    revision: integer,
    analysed: described('Enabled policies.', integer),
    findings: listOf(
      named(
        'LintFinding',
        object({
          code: string,
          severity: oneOf(['error', 'warning', 'info']),
          message: string,
          policies: described(
            'First the one that it is about, then those that bring it about.',
            listOf(named('LintedPolicy', object({ id: uuid, name: string, file: orNull(string) }))),
          ),
          witness: described(
            'A request that shows it; null where none could. A target, user or role that no policy names is made up.',
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
      'Who can use what. A page has the rows of `limit` users, be they many or none.',
      'admin',
      { ...many('AccessRow', REVISION, 'Link'), orMediaType: 'text/csv' },
      {
        query: [
          ...paging('Users of a page. Absent: 100.'),
          parameter('query', 'format', { type: 'string', enum: ['json', 'csv'] }, 'csv: everything, as a stream.'),
          parameter('query', 'target', targetName, 'One target. Absent: all that are enabled.'),
          parameter('query', 'resource_type', { type: 'string', enum: RESOURCE_TYPES }, 'One object, with `resource_name`.'),
          parameter(
            'query',
            'resource_name',
            { type: 'string' },
            'Absent: the target itself, and every name in the newest rows of the log.',
          ),
          parameter(
            'query',
            'who',
            { type: 'string' },
            '`everyone`, `role:<name>`, `group:<name>` or `user:<id or e-mail>`. Absent: all.',
          ),
        ],
      },
    ),
  },
  '/api/policies/lint': {
    get: get(
      'lintPolicies',
      'What is wrong, or of no use, in the policies: over all requests that can be made.',
      'admin',
      inLines(one('PolicyLint', REVISION)),
      { heavy: true },
    ),
  },
};
