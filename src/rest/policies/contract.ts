/** Single policies, and the schemas with which other areas name policies. */
import { RESOURCE_TYPES, SUBJECT_TYPES } from '../../engine/compile/policy.ts';
import { apiMembers, changedPolicy, newPolicy, newSubject } from '../../policies/schema.ts';
import { schemasOf } from '../openapi/from-joi.ts';
import { get, many, nothing, one, type Paths, REVISION, tagged, wholeOrPaged } from '../openapi/operation.ts';
import {
  boolean,
  described,
  int32,
  listOf,
  named,
  object,
  oneOf,
  orNull,
  ref,
  type Schema,
  string,
  times,
  uuid,
} from '../openapi/schema.ts';

export const subjectType = oneOf(SUBJECT_TYPES);
export const policyMembers = schemasOf(apiMembers);

export const policyRefMembers = {
  id: described('null: the policy does not exist yet.', orNull(uuid)),
  name: string,
  priority: int32,
  file: described('The file of the policy; null: it belongs to no file.', orNull(string)),
};
export const policyRef = named('PolicyRef', object(policyRefMembers));
/** A principal in the result of an analysis. */
export const principalFound = named('PrincipalFound', object({ sub: string, role: string, groups: listOf(string) }));
/** A subject that a file or a report names. */
export const subjectFound = named('SubjectFound', object({ subject_type: subjectType, subject_value: orNull(string) }));
export const objectShown = { resource_type: orNull(oneOf(RESOURCE_TYPES)), resource_name: orNull(string) };
/** The object of a request in the result of an analysis. */
export const objectFound = {
  ...objectShown,
  is_template: described('Whether the name is a URI template. A template can be listed and completed, but not read.', boolean),
};

const managedAs = described(
  '`<owner>/<file name without .yaml>` of the file from which the policy was applied; null: it was created over the API.',
  orNull(string),
);

const policySubject: Schema = ref('PolicySubject');

export const POLICY_SCHEMAS = {
  PolicySubject: object({ id: uuid, subject_type: subjectType, subject_value: orNull(string) }),
  Policy: object({
    id: uuid,
    ...policyMembers,
    subjects: listOf(policySubject),
    managed_as: managedAs,
    ...times,
  }),
} satisfies Record<string, Schema>;

export const ALL_POLICIES_PATHS: Paths = {
  '/api/policies': {
    get: get('listPolicies', 'List all policies.', 'admin', many('Policy', REVISION, 'Link'), { query: wholeOrPaged }),
    post: {
      id: 'createPolicy',
      summary: 'Create a policy.',
      access: 'admin',
      takes: newPolicy,
      gives: { 201: one('Policy', REVISION, 'ETag', 'Location') },
    },
  },
};

export const ONE_POLICY_PATHS: Paths = {
  '/api/policies/{id}': {
    get: tagged('getPolicy', 'Get a policy.', one('Policy', REVISION, 'ETag')),
    put: {
      id: 'updatePolicy',
      summary: 'Update a policy. Omitted members keep their values; `subjects` replaces all subjects.',
      access: 'admin',
      takes: changedPolicy,
      gives: { 200: one('Policy', REVISION, 'ETag') },
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
      gives: { 200: one('PolicySubject', REVISION), 201: one('PolicySubject', REVISION) },
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
