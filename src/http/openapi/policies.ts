/** Policies, one by one, and what is said of policies elsewhere. */
import { EFFECTS, RESOURCE_TYPES, SUBJECT_TYPES } from '../../policies/document.ts';
import { POLICY_LIMITS } from '../../policies/schema.ts';
import { get, many, nothing, one, type Paths, REVISION, tagged, wholeOrPaged } from './operation.ts';
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
} from './schema.ts';

export const subjectType = oneOf(SUBJECT_TYPES);
const subjectValue = described(
  'A role, a group, or the id of a user; null or left out exactly for `everyone`.',
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
  target_id: described('null: every target.', orNull(uuid)),
  resource_type: oneOf(['all', ...RESOURCE_TYPES]),
  resource_pattern: described(
    'RE2, found anywhere in the name unless `^` and `$` say otherwise. null: every name.',
    orNull(text(POLICY_LIMITS.pattern)),
  ),
  effect: oneOf(EFFECTS),
  priority: described('The higher is read first; the first policy that fits decides.', int32),
  enabled: boolean,
};

export const policyRefMembers = {
  id: described('null: it is not made yet.', orNull(uuid)),
  name: string,
  priority: int32,
  file: described('null: it is of no file.', orNull(string)),
};
export const policyRef = named('PolicyRef', object(policyRefMembers));
/** A principal that a report has worked out. */
export const principalFound = named('PrincipalFound', object({ sub: string, role: string, groups: listOf(string) }));
/** A subject that a file or a report names. */
export const subjectFound = named('SubjectFound', object({ subject_type: subjectType, subject_value: orNull(string) }));
export const objectShown = { resource_type: orNull(oneOf(RESOURCE_TYPES)), resource_name: orNull(string) };
/** Of a request that was worked out. */
export const objectFound = {
  ...objectShown,
  is_template: described('The name is a URI template: it is listed and completed, and cannot be read.', boolean),
};

const managedAs = described(
  '`<owner>/<file name without .yaml>` of the file that it is applied from; null: it was made over the API.',
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
    get: get('listPolicies', 'All policies.', 'admin', many('Policy', REVISION, 'Link'), { query: wholeOrPaged }),
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
    get: tagged('getPolicy', 'One policy.', one('Policy', REVISION, 'ETag')),
    put: {
      id: 'updatePolicy',
      summary: 'Update a policy; what is omitted stays, `subjects` replaces the set.',
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
      summary: 'Add a subject. 200: it was there already.',
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
      summary: 'Remove a subject.',
      access: 'admin',
      gives: { 204: nothing(REVISION) },
      conditional: true,
    },
  },
};
