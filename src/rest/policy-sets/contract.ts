/** Changes of the whole policy set: between revisions, by files, and by a rollback. */
import { EFFECTS } from '../../engine/compile/policy.ts';
import {
  applyBody,
  policyFiles as filesCheck,
  ownerName as ownerCheck,
  planBody,
  revision,
  rollbackBody,
  rollbackPlanBody,
} from '../../policies/sets/bodies.ts';
import { queryOf, schemaOf } from '../openapi/from-joi.ts';
import { get, inLines, one, type Paths, REVISION } from '../openapi/operation.ts';
import {
  boolean,
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
  uuid,
} from '../openapi/schema.ts';
import { objectFound, policyMembers, policyRef, principalFound, subjectFound } from '../policies/contract.ts';

export const ownerName: Schema = schemaOf(ownerCheck);
export const policyFiles = schemaOf(filesCheck);
/** A policy in the format of a file. */
const fileContent = orNull(
  named(
    'PolicyFileContent',
    object({
      name: string,
      description: orNull(string),
      target: described('The name of the target, or its id if the target no longer exists.', orNull(string)),
      resource_type: policyMembers.resource_type,
      resource_pattern: orNull(string),
      effect: policyMembers.effect,
      priority: int32,
      enabled: boolean,
      subjects: listOf(subjectFound),
    }),
  ),
);
const policyChange = {
  action: described(
    '`adopt`: an update of a policy that was created over the API and now belongs to the file.',
    oneOf(['create', 'update', 'adopt', 'delete']),
  ),
  file: described('null if no file is involved.', orNull(string)),
  policy_id: described('null if the policy does not exist yet.', orNull(uuid)),
  name: string,
  members: described('The members that differ.', listOf(string)),
  before: fileContent,
  after: fileContent,
};
const policyChanges = listOf(named('PolicyChange', object(policyChange)));

/** How a change of the policies affects decisions. */
const verdict = described(
  '`stricter`: some requests are now denied, and none is newly allowed. `looser`: some are now allowed, and none is newly denied. `incomparable`: both happen. `unknown`: the analysis would take too long.',
  oneOf(['equal', 'stricter', 'looser', 'incomparable', 'unknown']),
);
const decided = named(
  'Decided',
  object({ effect: oneOf(EFFECTS), policy: described('null: no policy matches.', orNull(policyRef)) }),
);
const policyChangesWithFlips = listOf(
  named(
    'PolicyChangeWithFlips',
    object({
      ...policyChange,
      flips: described(
        'Examples of requests with a different effect that this policy decides, before or after: at most one that becomes allowed and one that becomes denied. Empty: there is no such request. null: the analysis would take too long.',
        orNull(
          listOf(
            named(
              'DecisionChange',
              object({
                principal: principalFound,
                subjects: described(
                  'The subjects of the principal that matter. Every principal with exactly these subjects, among those that policies name, gets the same decision.',
                  listOf(subjectFound),
                ),
                target: described(
                  'The name of the target, or its id if it no longer exists. The name is invented if the change is the same for every target that no policy names.',
                  string,
                ),
                ...objectFound,
                before: decided,
                after: decided,
              }),
            ),
          ),
        ),
      ),
    }),
  ),
);

const policyPlan = {
  revision: described('The revision on which the plan is based. After an apply: the new revision.', integer),
  changes: policyChanges,
  unchanged: described('The number of files without a change.', integer),
  left: described(
    'Policies whose files are missing. They stay because `prune` is not set.',
    listOf(named('LeftPolicy', object({ file: string, policy_id: uuid, name: string }))),
  ),
  unmanaged: described(
    'The number of policies that belong to no file. It includes a policy with the same content as a file that has not adopted it.',
    integer,
  ),
};

const warnings = described(
  'Roles and groups that changed policies name but no user has, and users that do not exist.',
  listOf(
    named(
      'PolicyWarning',
      object({
        code: oneOf(['unknown_role', 'unknown_group', 'unknown_user']),
        file: orNull(string),
        policy: string,
        message: string,
      }),
    ),
  ),
);

const twoRevisions = queryOf({
  from: revision.required().description('The earlier revision.'),
  to: revision.description('The later revision. Absent: the current one.'),
});

export const POLICY_SET_SCHEMAS = {
  PolicyDiff: object({ from: integer, to: integer, changes: policyChanges }),
  PolicyComparison: object({ from: integer, to: integer, verdict, changes: policyChangesWithFlips }),
  PolicyFiles: object({ owner: ownerName, files: policyFiles }),
  PolicyPlan: object(policyPlan),
  PolicyPlanWithFlips: object({ ...policyPlan, verdict, warnings, changes: policyChangesWithFlips }),
  RollbackPlan: object({
    revision: described('The revision on which the plan is based.', integer),
    verdict,
    warnings,
    changes: policyChangesWithFlips,
  }),
  RolledBack: object({
    revision: described('The new revision, or the current one if nothing changed.', integer),
    changes: policyChanges,
  }),
} satisfies Record<string, Schema>;

export const POLICY_SET_PATHS: Paths = {
  '/api/policies/diff': {
    get: get('diffRevisions', 'List the changes between two revisions.', 'admin', one('PolicyDiff', REVISION), {
      query: twoRevisions,
      refuses: [404],
    }),
  },
  '/api/policies/compare': {
    get: get(
      'compareRevisions',
      'Compare the decisions of two revisions over all possible requests.',
      'admin',
      inLines(one('PolicyComparison', REVISION)),
      {
        heavy: true,
        query: twoRevisions,
        refuses: [404],
      },
    ),
  },
  '/api/policies/export': {
    get: get('exportPolicies', 'Export the policies as files.', 'admin', inLines(one('PolicyFiles', REVISION)), {
      heavy: true,
      query: queryOf({
        owner: ownerCheck.description('The owner of the files. Policies that belong to no file are included. Absent: `default`.'),
      }),
    }),
  },
  '/api/policies/plan': {
    post: {
      id: 'planPolicies',
      summary:
        'Plan an apply: which policies and decisions these files would change. Files that could not be applied are refused.',
      access: 'admin',
      takes: planBody,
      gives: { 200: inLines(one('PolicyPlanWithFlips', REVISION)) },
      heavy: true,
      refuses: [412],
    },
  },
  '/api/policies/apply': {
    post: {
      id: 'applyPolicies',
      summary: 'Apply these files in one change if their tests pass.',
      access: 'admin',
      takes: applyBody,
      gives: { 200: one('PolicyPlan', REVISION) },
      heavy: true,
      refuses: [409, 412],
    },
  },
  '/api/policies/rollback': {
    post: {
      id: 'rollBackPolicies',
      summary: 'Restore the policy set of an earlier revision, as a new revision.',
      access: 'admin',
      takes: rollbackBody,
      gives: { 200: one('RolledBack', REVISION) },
      heavy: true,
      refuses: [404, 412],
    },
  },
  '/api/policies/rollback/plan': {
    post: {
      id: 'planRollback',
      summary: 'Plan a rollback: which policies and decisions it would change.',
      access: 'admin',
      takes: rollbackPlanBody,
      gives: { 200: inLines(one('RollbackPlan', REVISION)) },
      heavy: true,
      refuses: [404, 412],
    },
  },
};
