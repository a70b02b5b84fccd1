/** Single policies, the revisions of the policy set, and the input of the engine. Also the schemas with which other areas name policies. */
import type { RevisionRow } from '../../db/changes.ts';
import { RESOURCE_TYPES, SUBJECT_TYPES } from '../../engine/compile/policy.ts';
import type { PolicyRef } from '../../policies/files/test-run.ts';
import {
  apiMembers,
  changedPolicy,
  newPolicy,
  newSubject,
  type OrderedPolicyJson,
  orderMembers,
  type PolicyJson,
} from '../../policies/schema.ts';
import { queryOf, schemasOf } from '../openapi/from-joi.ts';
import {
  get,
  many,
  nothing,
  type Operations,
  one,
  paged,
  parameter,
  REVISION,
  tagged,
  wholeOrPaged,
} from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

export const subjectType = s.oneOf(SUBJECT_TYPES);
export const policyMembers = schemasOf(apiMembers);

export const policyRefMembers = {
  id: s.described('null: the policy does not exist yet.', s.orNull(s.uuid)),
  name: s.string,
  priority: s.int32,
  file: s.described('The file of the policy; null: it belongs to no file.', s.orNull(s.string)),
};
export const policyRef = s.model<PolicyRef>('PolicyRef', policyRefMembers);
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

/** The mark of a policy that was changed outside of its file. */
export const driftSince = s.described(
  'The first revision that changed the policy outside of its file since the file was last applied; null: none did.',
  s.orNull(s.integer),
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
  drift_since: driftSince,
  ...s.times,
});

const Revision = s.model<RevisionRow>('Revision', {
  revision: s.integer,
  created_at: s.time,
  actor: s.actor,
  request_id: s.string,
  reason: s.orNull(s.string),
  created: s.described('The number of created policies.', s.integer),
  updated: s.integer,
  deleted: s.integer,
  override: s.described('Whether a policy that belongs to a file was changed outside of its file.', s.boolean),
  policy: s.described(
    'The changed policy, if the revision changed only one.',
    s.orNull(s.model('ChangedPolicy', { id: s.uuid, name: s.string })),
  ),
});
const RevisionSet = s.model('RevisionSet', {
  revision: s.integer,
  made: s.described('How the revision was made; null for revision 0.', s.orNull(Revision)),
  policies: s.listOf(Policy),
});

const atRevision = parameter(
  'query',
  'revision',
  { type: 'integer', minimum: 0 },
  'A revision of the history. Absent: the current one.',
);

const overriding = [
  parameter(
    'query',
    'override',
    { type: 'boolean' },
    'Changes a policy that belongs to a file, which is refused otherwise. Plans show the change as drift until the file is applied.',
  ),
];

const PolicyRego = s.model('PolicyRego', {
  revision: s.integer,
  data: { type: 'object' },
  data_hash: s.sha256,
  engine_hash: s.sha256,
  rego: s.model('RegoFiles', { 'gateway.rego': { type: 'string' }, 'reference.rego': { type: 'string' } }),
});

const OrderedPolicy = s.model<OrderedPolicyJson>('OrderedPolicy', {
  position: s.described('The position among all policies, from 1. Policies that are not enabled count, too.', s.integer),
  policy: Policy,
});

export const POLICY_OPERATIONS: Operations = {
  'GET /api/policies': get('listPolicies', 'List all policies that the caller may read.', many(Policy, REVISION, 'Link'), {
    access: ['policies:plan'],
    query: wholeOrPaged,
  }),
  'GET /api/policies/order': get(
    'listPoliciesInOrder',
    'List the policies that the caller may read, in the order of evaluation.',
    many(OrderedPolicy, REVISION, 'Link'),
    { access: ['policies:plan'], query: [...paged, ...queryOf(orderMembers)] },
  ),
  'POST /api/policies': {
    id: 'createPolicy',
    access: ['policies:manage'],
    summary: 'Create a policy.',
    takes: newPolicy,
    gives: { 201: one(Policy, REVISION, 'ETag', 'Location') },
    refuses: [409],
  },
  'GET /api/policies/{id}': tagged('getPolicy', 'Get a policy.', one(Policy, REVISION, 'ETag'), { access: ['policies:plan'] }),
  'PUT /api/policies/{id}': {
    id: 'updatePolicy',
    access: ['policies:manage'],
    summary: 'Update a policy. Omitted members keep their values; `subjects` replaces all subjects.',
    takes: changedPolicy,
    gives: { 200: one(Policy, REVISION, 'ETag') },
    refuses: [409],
    conditional: true,
    query: overriding,
  },
  'DELETE /api/policies/{id}': {
    id: 'deletePolicy',
    access: ['policies:manage'],
    summary: 'Delete a policy.',
    gives: { 204: nothing(REVISION) },
    conditional: true,
    query: overriding,
    refuses: [409],
  },
  'POST /api/policies/{id}/subjects': {
    id: 'addPolicySubject',
    access: ['policies:manage'],
    summary: 'Add a subject to a policy. 200: the policy already has it.',
    takes: newSubject,
    gives: { 200: one(PolicySubject, REVISION), 201: one(PolicySubject, REVISION) },
    refuses: [409],
    conditional: true,
    query: overriding,
  },
  'DELETE /api/policies/{id}/subjects/{subjectId}': {
    id: 'removePolicySubject',
    access: ['policies:manage'],
    summary: 'Remove a subject from a policy.',
    gives: { 204: nothing(REVISION) },
    conditional: true,
    query: overriding,
    refuses: [409],
  },
  'GET /api/policies/history': get(
    'listRevisions',
    'List the revisions of the policy set, newest first.',
    many(Revision, REVISION, 'Link'),
    { query: paged },
  ),
  'GET /api/policies/history/{revision}': get(
    'getRevision',
    'Get the policy set at a revision. Revision 0 is the empty set before the first change.',
    one(RevisionSet, REVISION),
  ),
  'GET /api/policies/bundle': get(
    'getBundle',
    'Get the policies as an OPA bundle: both Rego files, the compiled document, and a manifest with the revision.',
    { schema: { type: 'string', format: 'binary' }, headers: [REVISION, 'ETag'], mediaType: 'application/gzip' },
    {
      access: ['bundles:read'],
      query: [
        atRevision,
        parameter('query', 'signed', { type: 'boolean' }, 'Whether the bundle has a signature, made with the signing key.'),
      ],
      refuses: [404],
    },
  ),
  'GET /api/policies/rego': get(
    'getRego',
    'Get the Rego files, and the compiled document that they evaluate.',
    one(PolicyRego, REVISION),
    {
      access: ['bundles:read'],
      query: [atRevision],
      refuses: [404],
    },
  ),
};
