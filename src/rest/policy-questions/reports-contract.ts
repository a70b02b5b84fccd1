/** Reports about the policies: who can use what, and which policies are wrong or useless. */
import Joi from 'joi';
import { EFFECTS, RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import type { AccessRow as Row } from '../../policies/access.ts';
import type { LintReport } from '../../policies/sets/lint-report.ts';
import { objectMembers } from '../../policies/sets/questions-about.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, inLines, many, type Operations, one, paging, parameter, REVISION } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { objectFound, principalFound, subjectType } from '../policies/contract.ts';

const witnessDecision = s.model('WitnessDecision', { effect: s.oneOf(EFFECTS), policy_id: s.orNull(s.uuid) });

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

const lintMembers = {
  kept: Joi.valid('yes', 'no').description(
    '`yes`: an analysis of the current policies and invariants that is at most 10 minutes old will do. It may lack what users and targets have changed since, and `witness` is always null.',
  ),
};
export const lintQuery = Joi.object<{ readonly kept?: 'yes' | 'no' }>(lintMembers).messages({
  'object.unknown': 'unknown query parameter',
});

/** A page of the matrix has at most this many rows and columns. */
export const MATRIX_ROWS = 100;
export const MATRIX_COLUMNS = 50;
/** One answer looks for differences in at most this many rows, and in at most this many cells beyond its first row. */
export const SEARCHED = { rows: 1_000, cells: 10_000 } as const;

export const matrixMembers = {
  target: Joi.string().pattern(TARGET_NAME).required().description('The target.'),
  resource_type: Joi.valid(...RESOURCE_TYPES).description('Only names of this type. Absent: all.'),
  rows: Joi.valid('named', 'users').description(
    '`named` (the default): everyone, and the roles and groups that policies name, each as a caller who has nothing else. `users`: the users.',
  ),
  skip: Joi.string()
    .pattern(/^[0-9]{1,6}$/)
    .description('How many names to leave out, in their order. Absent: 0.'),
  compare: Joi.string()
    .pattern(/^[0-9]{1,15}$/)
    .description('A revision of the policy set, whose decisions are in `before`.'),
  changed: Joi.valid('yes', 'no').description(
    `\`yes\`, together with \`compare\`: only rows and names with a decision that became different, among at most ${SEARCHED.rows} rows and about ${SEARCHED.cells} decisions. \`skip\` counts the names that are left.`,
  ),
};

const cell = s.model('MatrixCell', {
  effect: s.oneOf(EFFECTS),
  policy: s.described('null: no policy matches.', s.orNull(s.model('MatrixPolicy', { id: s.uuid, name: s.string }))),
});
const AccessMatrix = s.model('AccessMatrix', {
  revision: s.integer,
  compared: s.described('The revision of `before`; null: nothing was compared.', s.orNull(s.integer)),
  target: s.targetName,
  target_enabled: s.described('false: the gateway forwards nothing to the target, whatever the policies allow.', s.boolean),
  names: s.described(
    'The columns. The first one of the first page is the use of the target as such.',
    s.listOf(s.model('MatrixName', { resource_type: s.orNull(s.oneOf(RESOURCE_TYPES)), resource_name: s.orNull(s.string) })),
  ),
  names_count: s.described('How many columns there are, on all pages of names.', s.integer),
  searched: s.described(
    'How many rows and names were searched for differences; null without `changed`.',
    s.orNull(s.model('MatrixSearched', { rows: s.integer, names: s.integer })),
  ),
  rows: s.listOf(
    s.model('MatrixRow', {
      subject_type: subjectType,
      subject_value: s.described('A role, a group, or the id of a user; null for `everyone`.', s.orNull(s.string)),
      email: s.orNull(s.string),
      cells: s.described('A decision for each column.', s.listOf(cell)),
      before: s.described('The decisions of the revision `compared`.', s.orNull(s.listOf(cell))),
    }),
  ),
});

const AccessRow = s.model<Row>('AccessRow', {
  subject_type: subjectType,
  subject_value: s.described('A role, a group, or the id of a user; null for `everyone`.', s.orNull(s.string)),
  email: s.orNull(s.string),
  role: s.orNull(s.string),
  groups: s.orNull(s.listOf(s.string)),
  target: s.targetName,
  resource_type: s.described('null: the row is about the use of the target as such.', s.orNull(s.oneOf(RESOURCE_TYPES))),
  resource_name: s.orNull(s.string),
  policy_id: s.uuid,
  policy_name: s.string,
  policy_priority: s.int32,
});
const PolicyLint = s.model<LintReport & { revision: number }>('PolicyLint', {
  revision: s.integer,
  analysed: s.described('The number of enabled policies.', s.integer),
  findings: s.listOf(
    s.model('LintFinding', {
      code: s.string,
      severity: s.oneOf(['error', 'warning', 'info']),
      message: s.string,
      policies: s.described(
        'The policy with the problem, followed by the policies that cause it.',
        s.listOf(
          s.model('LintedPolicy', {
            id: s.uuid,
            name: s.string,
            file: s.orNull(s.string),
            owner: s.described('null: the policy belongs to no file.', s.orNull(s.string)),
          }),
        ),
      ),
      witness: s.described(
        'A request that shows the problem; null if no request can. A target, user or role that no policy names is invented.',
        s.orNull(
          s.model('LintWitness', {
            principal: principalFound,
            target: s.string,
            ...objectFound,
            decision: witnessDecision,
            without: s.described('The decision without the policy.', witnessDecision),
          }),
        ),
      ),
    }),
  ),
});

export const POLICY_REPORT_OPERATIONS: Operations = {
  'GET /api/policies/access': get(
    'listAccess',
    'List who can use what. A page has all rows of `limit` users, so it may be long or empty.',
    { ...many(AccessRow, REVISION, 'Link'), orMediaType: 'text/csv' },
    { query: [...paging('Users per page. Absent: 100.'), ...queryOf(accessMembers)] },
  ),
  'GET /api/policies/matrix': get(
    'getAccessMatrix',
    `Get the decisions about subjects and names of a target, for at most ${MATRIX_ROWS} subjects and ${MATRIX_COLUMNS} names. The names are those that the target has listed to this replica, and those in the newest rows of the audit log.`,
    one(AccessMatrix, REVISION, 'Link'),
    {
      query: [
        parameter(
          'query',
          'limit',
          { type: 'integer', minimum: 1, maximum: MATRIX_ROWS },
          `Subjects per page. Absent: ${MATRIX_ROWS}.`,
        ),
        parameter('query', 'cursor', { type: 'string' }, 'The cursor from the Link header of the previous page.'),
        ...queryOf(matrixMembers),
      ],
      refuses: [404],
    },
  ),
  'GET /api/policies/lint': get(
    'lintPolicies',
    'Find wrong and useless policies. The analysis covers all possible requests.',
    inLines(one(PolicyLint, REVISION)),
    { heavy: true, query: queryOf(lintMembers) },
  ),
};
