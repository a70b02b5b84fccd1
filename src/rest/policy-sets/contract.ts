/** Changes of the whole policy set: between revisions, by files, and by a rollback. */
import { EFFECTS } from '../../engine/compile/policy.ts';
import type { PolicyContext as Context, ContextPolicy } from '../../policies/review/context.ts';
import {
  applyBody,
  policyFiles as filesCheck,
  moveBody,
  movePlanBody,
  ownerName as ownerCheck,
  planBody,
  revision,
  rollbackBody,
  rollbackPlanBody,
} from '../../policies/sets/bodies.ts';
import type { Flip } from '../../policies/sets/decision-changes.ts';
import { BrokenInvariant } from '../invariants/contract.ts';
import { queryOf, schemaOf } from '../openapi/from-joi.ts';
import { get, inLines, type Operations, one, REVISION } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { driftSince, objectFound, policyMembers, policyRef, principalFound, subjectFound } from '../policies/contract.ts';

export const ownerName = schemaOf(ownerCheck);
export const policyFiles = schemaOf(filesCheck);
/** A policy in the format of a file. */
const fileContent = s.orNull(
  s.model('PolicyFileContent', {
    name: s.string,
    description: s.orNull(s.string),
    target: s.described('The name of the target, or its id if the target no longer exists.', s.orNull(s.string)),
    resource_type: policyMembers.resource_type,
    resource_pattern: s.orNull(s.string),
    effect: policyMembers.effect,
    priority: s.int32,
    enabled: s.boolean,
    subjects: s.listOf(subjectFound),
  }),
);
const policyChange = {
  action: s.described(
    '`adopt`: an update of a policy that was created over the API and now belongs to the file.',
    s.oneOf(['create', 'update', 'adopt', 'delete']),
  ),
  file: s.described('null if no file is involved.', s.orNull(s.string)),
  policy_id: s.described('null if the policy does not exist yet.', s.orNull(s.uuid)),
  name: s.string,
  drift_since: s.described(
    'The first revision that changed or deleted the policy outside of its file since the file was last applied; null: none did.',
    s.orNull(s.integer),
  ),
  members: s.described('The members that differ.', s.listOf(s.string)),
  before: fileContent,
  after: fileContent,
};
const policyChanges = s.listOf(s.model('PolicyChange', policyChange));

/** How a change of the policies affects decisions. */
export const verdict = s.described(
  '`stricter`: some requests are now denied, and none is newly allowed. `looser`: some are now allowed, and none is newly denied. `incomparable`: both happen. `unknown`: the analysis would take too long.',
  s.oneOf(['equal', 'stricter', 'looser', 'incomparable', 'unknown']),
);
const decided = s.model('Decided', {
  effect: s.oneOf(EFFECTS),
  policy: s.described('null: no policy matches.', s.orNull(policyRef)),
});
export const policyChangesWithFlips = s.listOf(
  s.model('PolicyChangeWithFlips', {
    ...policyChange,
    flips: s.described(
      'Examples of requests with a different effect that this policy decides, before or after: at most one that becomes allowed and one that becomes denied. Empty: there is no such request. null: the analysis would take too long.',
      s.orNull(
        s.listOf(
          s.model<Flip>('DecisionChange', {
            principal: principalFound,
            subjects: s.described(
              'The subjects of the principal that matter. Every principal with exactly these subjects, among those that policies name, gets the same decision.',
              s.listOf(subjectFound),
            ),
            target: s.described(
              'The name of the target, or its id if it no longer exists. The name is invented if the change is the same for every target that no policy names.',
              s.string,
            ),
            ...objectFound,
            before: decided,
            after: decided,
          }),
        ),
      ),
    ),
  }),
);

const policyPlan = {
  revision: s.described('The revision on which the plan is based. After an apply: the new revision.', s.integer),
  owner_revision: s.described(
    'The newest revision that changed policies of the owner; with `adopt`, the newest of all. It is the `expected_revision` for this plan.',
    s.integer,
  ),
  targets_hash: s.described(
    'Says which targets the names in the files mean. It is the `expected_targets` for this plan.',
    s.string,
  ),
  changes: policyChanges,
  unchanged: s.described('The number of files without a change.', s.integer),
  left: s.described(
    'Policies whose files are missing. They stay because `prune` is not set.',
    s.listOf(s.model('LeftPolicy', { file: s.string, policy_id: s.uuid, name: s.string, drift_since: driftSince })),
  ),
  unmanaged: s.described(
    'The number of policies that belong to no file. It includes a policy with the same content as a file that has not adopted it.',
    s.integer,
  ),
};

const invariants = s.described('The invariants because of which the change would be refused.', s.listOf(BrokenInvariant));

const warnings = s.described(
  'Roles and groups that changed policies name but no user has, and users that do not exist.',
  s.listOf(
    s.model('PolicyWarning', {
      code: s.oneOf(['unknown_role', 'unknown_group', 'unknown_user']),
      file: s.orNull(s.string),
      policy: s.string,
      message: s.string,
    }),
  ),
);

const twoRevisions = queryOf({
  from: revision.required().description('The earlier revision.'),
  to: revision.description('The later revision. Absent: the current one.'),
});

const PolicyDiff = s.model('PolicyDiff', { from: s.integer, to: s.integer, changes: policyChanges });
const PolicyComparison = s.model('PolicyComparison', {
  from: s.integer,
  to: s.integer,
  verdict,
  changes: policyChangesWithFlips,
});
const PolicyFiles = s.model('PolicyFiles', { owner: ownerName, files: policyFiles });
export const PolicyPlan = s.model('PolicyPlan', policyPlan);
const PolicyPlanWithFlips = s.model('PolicyPlanWithFlips', {
  ...policyPlan,
  verdict,
  invariants,
  warnings,
  changes: policyChangesWithFlips,
});
const plannedChange = {
  revision: s.described('The revision on which the plan is based.', s.integer),
  verdict,
  invariants,
  warnings,
  changes: policyChangesWithFlips,
};
const madeChange = {
  revision: s.described('The new revision, or the current one if nothing changed.', s.integer),
  changes: policyChanges,
};
const RollbackPlan = s.model('RollbackPlan', plannedChange);
const RolledBack = s.model('RolledBack', madeChange);
const MovePlan = s.model('PolicyMovePlan', plannedChange);
const Moved = s.model('PolicyMoved', madeChange);

const PolicyContext = s.model<Context>('PolicyContext', {
  portcullis_context: s.described('The version of this form: 1.', s.integer),
  owner: s.described('The owner whose policies are left out.', s.string),
  revision: s.integer,
  as_of: s.described('The day in UTC on which this was current, such as 2026-01-31.', s.string),
  policies: s.described(
    'The enabled policies of all other owners, and those without an owner, without names of people.',
    s.listOf(
      s.model<ContextPolicy>('ContextPolicy', {
        id: s.uuid,
        owner: s.described('null: the policy belongs to no file.', s.orNull(s.string)),
        target: s.described('The name of the target; null: every target.', s.orNull(s.string)),
        resource_type: policyMembers.resource_type,
        resource_pattern: policyMembers.resource_pattern,
        effect: policyMembers.effect,
        priority: policyMembers.priority,
        subjects: s.described(
          '`everyone`, or an object with `role`, `group` or `user_pseudonym`. Equal pseudonyms stand for the same user.',
          s.listOf({}),
        ),
      }),
    ),
  ),
  sha256: s.described('The SHA-256 of the JSON text of the other members, in this order.', s.sha256),
});

export const POLICY_SET_OPERATIONS: Operations = {
  'GET /api/policies/diff': get('diffRevisions', 'List the changes between two revisions.', one(PolicyDiff, REVISION), {
    query: twoRevisions,
    refuses: [404],
  }),
  'GET /api/policies/compare': get(
    'compareRevisions',
    'Compare the decisions of two revisions over all possible requests.',
    inLines(one(PolicyComparison, REVISION)),
    {
      heavy: true,
      query: twoRevisions,
      refuses: [404],
    },
  ),
  'GET /api/policies/export': get('exportPolicies', 'Export the policies as files.', inLines(one(PolicyFiles, REVISION)), {
    heavy: true,
    query: queryOf({
      owner: ownerCheck.description('The owner of the files. Policies that belong to no file are included. Absent: `default`.'),
    }),
  }),
  'GET /api/policies/context': get(
    'getPolicyContext',
    'Get the policies of other owners without names of people, so that lint and tests of files see conflicts with them.',
    inLines(one(PolicyContext, REVISION)),
    {
      access: ['bundles:read'],
      heavy: true,
      query: queryOf({ owner: ownerCheck.description('The owner whose policies are left out. Absent: `default`.') }),
    },
  ),
  'POST /api/policies/plan': {
    id: 'planPolicies',
    access: ['policies:plan'],
    summary: 'Plan an apply: which policies and decisions these files would change. Files that could not be applied are refused.',
    takes: planBody,
    gives: { 200: inLines(one(PolicyPlanWithFlips, REVISION)) },
    heavy: true,
    refuses: [409, 412],
  },
  'POST /api/policies/apply': {
    id: 'applyPolicies',
    access: ['policies:manage'],
    summary: 'Apply these files in one change if their tests pass.',
    takes: applyBody,
    gives: { 200: one(PolicyPlan, REVISION) },
    heavy: true,
    refuses: [409, 412],
  },
  'POST /api/policies/rollback': {
    id: 'rollBackPolicies',
    access: ['policies:manage'],
    summary: 'Restore the policy set of an earlier revision, as a new revision.',
    takes: rollbackBody,
    gives: { 200: one(RolledBack, REVISION) },
    heavy: true,
    refuses: [404, 409, 412],
  },
  'POST /api/policies/rollback/plan': {
    id: 'planRollback',
    access: ['policies:plan'],
    summary: 'Plan a rollback: which policies and decisions it would change.',
    takes: rollbackPlanBody,
    gives: { 200: inLines(one(RollbackPlan, REVISION)) },
    heavy: true,
    refuses: [404, 409, 412],
  },
  'POST /api/policies/order': {
    id: 'movePolicy',
    access: ['policies:manage'],
    summary: 'Move a policy in the order of evaluation, by changing as few priorities as possible.',
    takes: moveBody,
    gives: { 200: one(Moved, REVISION) },
    heavy: true,
    refuses: [404, 409, 412],
  },
  'POST /api/policies/order/plan': {
    id: 'planMove',
    access: ['policies:plan'],
    summary: 'Plan a move: which priorities and decisions it would change.',
    takes: movePlanBody,
    gives: { 200: inLines(one(MovePlan, REVISION)) },
    heavy: true,
    refuses: [404, 409, 412],
  },
};
