/** Single policies, and the schemas with which other areas name policies. */
import { RESOURCE_TYPES, SUBJECT_TYPES } from '../../engine/compile/policy.ts';
import { apiMembers, changedPolicy, newPolicy, newSubject, type PolicyJson } from '../../policies/schema.ts';
import { schemasOf } from '../openapi/from-joi.ts';
import { get, many, nothing, one, type Paths, REVISION, tagged, wholeOrPaged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

export const subjectType = s.oneOf(SUBJECT_TYPES);
export const policyMembers = schemasOf(apiMembers);

export const policyRefMembers = {
  id: s.described('null: the policy does not exist yet.', s.orNull(s.uuid)),
  name: s.string,
  priority: s.int32,
  file: s.described('The file of the policy; null: it belongs to no file.', s.orNull(s.string)),
};
export const policyRef = s.model('PolicyRef', policyRefMembers);
/** A principal in the result of an analysis. */
export const principalFound = s.model('PrincipalFound', { sub: s.string, role: s.string, groups: s.listOf(s.string) });
/** A subject that a file or a report names. */
export const subjectFound = s.model('SubjectFound', { subject_type: subjectType, subject_value: s.orNull(s.string) });
export const objectShown = { resource_type: s.orNull(s.oneOf(RESOURCE_TYPES)), resource_name: s.orNull(s.string) };
/** The object of a request in the result of an analysis. */
export const objectFound = {
  ...objectShown,
  is_template: s.described(
    'Whether the name is a URI template. A template can be listed and completed, but not read.',
    s.boolean,
  ),
};

const managedAs = s.described(
  '`<owner>/<file name without .yaml>` of the file from which the policy was applied; null: it was created over the API.',
  s.orNull(s.string),
);

const PolicySubject = s.model('PolicySubject', {
  id: s.uuid,
  subject_type: subjectType,
  subject_value: s.orNull(s.string),
});
export const Policy = s.model<PolicyJson>('Policy', {
  id: s.uuid,
  ...policyMembers,
  subjects: s.listOf(PolicySubject),
  managed_as: managedAs,
  ...s.times,
});

export const ALL_POLICIES_PATHS: Paths = {
  '/api/policies': {
    get: get('listPolicies', 'List all policies.', 'admin', many(Policy, REVISION, 'Link'), { query: wholeOrPaged }),
    post: {
      id: 'createPolicy',
      summary: 'Create a policy.',
      access: 'admin',
      takes: newPolicy,
      gives: { 201: one(Policy, REVISION, 'ETag', 'Location') },
    },
  },
};

export const ONE_POLICY_PATHS: Paths = {
  '/api/policies/{id}': {
    get: tagged('getPolicy', 'Get a policy.', one(Policy, REVISION, 'ETag')),
    put: {
      id: 'updatePolicy',
      summary: 'Update a policy. Omitted members keep their values; `subjects` replaces all subjects.',
      access: 'admin',
      takes: changedPolicy,
      gives: { 200: one(Policy, REVISION, 'ETag') },
      conditional: true,
    },
    delete: {
      id: 'deletePolicy',
      summary: 'Delete a policy.',
      access: 'admin',
      gives: { 204: nothing(REVISION) },
      conditional: true,
    },
  },
  '/api/policies/{id}/subjects': {
    post: {
      id: 'addPolicySubject',
      summary: 'Add a subject to a policy. 200: the policy already has it.',
      access: 'admin',
      takes: newSubject,
      gives: { 200: one(PolicySubject, REVISION), 201: one(PolicySubject, REVISION) },
      refuses: [409],
      conditional: true,
    },
  },
  '/api/policies/{id}/subjects/{subjectId}': {
    delete: {
      id: 'removePolicySubject',
      summary: 'Remove a subject from a policy.',
      access: 'admin',
      gives: { 204: nothing(REVISION) },
      conditional: true,
    },
  },
};
