/** Single policies, and the schemas with which other areas name policies. */
import { EFFECTS, RESOURCE_TYPES, SUBJECT_TYPES } from '../../engine/compile/policy.ts';
import { POLICY_LIMITS } from '../../policies/schema.ts';
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
  readOnly,
  ref,
  type Schema,
  strict,
  string,
  text,
  times,
  uuid,
} from '../openapi/schema.ts';

export const subjectType = oneOf(SUBJECT_TYPES);
const subjectValue = described(
  'A role, a group, or the id of a user; null or absent exactly for `everyone`.',
  orNull(text(POLICY_LIMITS.subjectValue)),
);
const subjectInput = strict({ subject_type: subjectType, subject_value: subjectValue }, ['subject_type']);
const subjectAsRead = named(
  'PolicySubjectUpdate',
  strict({ id: uuid, subject_type: subjectType, subject_value: subjectValue }, ['subject_type']),
);

export const policyMembers = {
  name: text(POLICY_LIMITS.name),
  description: orNull({ type: 'string', maxLength: POLICY_LIMITS.description }),
  target_id: described('The target of the policy; null: every target.', orNull(uuid)),
  resource_type: oneOf(['all', ...RESOURCE_TYPES]),
  resource_pattern: described(
    'An RE2 pattern. It may match anywhere in the name, unless `^` and `$` anchor it. null: every name.',
    orNull(text(POLICY_LIMITS.pattern)),
  ),
  effect: oneOf(EFFECTS),
  priority: described('Policies with a higher priority are evaluated first. The first policy that matches decides.', int32),
  enabled: boolean,
};

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
const newPolicySubject: Schema = ref('NewPolicySubject');

export const POLICY_SCHEMAS = {
  PolicySubject: object({ id: uuid, subject_type: subjectType, subject_value: orNull(string) }),
  NewPolicySubject: subjectInput,
  Policy: object({
    id: uuid,
    ...policyMembers,
    subjects: listOf(policySubject),
    managed_as: managedAs,
    ...times,
  }),
  NewPolicy: strict({ ...policyMembers, subjects: { ...listOf(newPolicySubject), maxItems: POLICY_LIMITS.subjects } }, [
    'name',
    'resource_type',
    'effect',
    'priority',
    'subjects',
  ]),
  PolicyUpdate: strict(
    {
      ...policyMembers,
      subjects: { ...listOf(subjectAsRead), maxItems: POLICY_LIMITS.subjects },
      ...readOnly({ id: uuid, managed_as: managedAs, ...times }),
    },
    [],
  ),
} satisfies Record<string, Schema>;

export const ALL_POLICIES_PATHS: Paths = {
  '/api/policies': {
    get: get('listPolicies', 'List all policies.', 'admin', many('Policy', REVISION, 'Link'), { query: wholeOrPaged }),
    post: {
      id: 'createPolicy',
      summary: 'Create a policy.',
      access: 'admin',
      takes: 'NewPolicy',
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
      takes: 'PolicyUpdate',
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
      takes: 'NewPolicySubject',
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
