/** Invariants: what no change of the policies may break. */
import Joi from 'joi';
import { model } from '../../base/validate.ts';
import { changedInvariant, newInvariant, restMembers } from '../../policies/invariants/invariant.ts';
import { policyFiles, reason } from '../../policies/sets/bodies.ts';
import { schemaOf, schemasOf } from '../openapi/from-joi.ts';
import { get, inLines, many, nothing, type Operations, one, REVISION, tagged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { objectFound, policyRef, principalFound, subjectFound } from '../policies/contract.ts';

const { name, reason: why, enabled } = schemasOf(restMembers);
const subjects = s.listOf(subjectFound);
const never = s.model('InvariantNeverFound', {
  subjects: s.described('The invariant covers callers that match one of these subjects.', subjects),
  except: s.model('InvariantExceptFound', { subjects, targets: s.listOf(s.string) }),
  targets: s.described('null: every target, also those that are created later.', s.orNull(s.listOf(s.string))),
  resource_type: schemaOf(restMembers.never.extract('resource_type')),
  resource_pattern: s.orNull(s.string),
});
const exceptions = s.listOf(s.model('InvariantExceptionFound', { policy: s.string, reason: s.string, expires_at: s.time }));
const Invariant = s.model('Invariant', {
  ...{ id: s.uuid, name, reason: why, never, exceptions, enabled },
  ...s.times,
});

export const BrokenInvariant = s.model('BrokenInvariant', {
  ...{ id: s.uuid, name, reason: why },
  witness: s.described(
    'A request that would be allowed although the invariant forbids it. null: it is unknown whether there is one, because the analysis would take too long.',
    s.orNull(
      s.model('InvariantWitness', {
        principal: principalFound,
        subjects: s.described('The subjects of the principal that matter.', subjects),
        target: s.described(
          'The name of the target. It is invented if the invariant would be broken at every new target.',
          s.string,
        ),
        ...objectFound,
        policy: s.described('The policy that would allow the request.', policyRef),
      }),
    ),
  ),
});

const invariantFile = s.orNull(s.model('InvariantFileContent', { name, reason: why, never, exceptions, enabled }));
const planMembers = {
  changes: s.listOf(
    s.model('InvariantChange', {
      action: s.oneOf(['create', 'update', 'delete']),
      file: s.described('null: the file is missing.', s.orNull(s.string)),
      invariant_id: s.described('null if the invariant does not exist yet.', s.orNull(s.uuid)),
      name,
      members: s.described('The members that differ.', s.listOf(s.string)),
      before: s.described('Targets by name, and policies by owner and file.', invariantFile),
      after: invariantFile,
    }),
  ),
  unchanged: s.described('The number of files without a change.', s.integer),
  left: s.described('The names of invariants without a file. They stay because `prune` is not set.', s.listOf(s.string)),
};
const fileMembers = {
  files: policyFiles.required().description('Texts of YAML files, by file name. Each describes one invariant.'),
  prune: Joi.boolean().description('Whether invariants without a file are deleted.'),
};
export interface InvariantFilesBody {
  readonly files: Record<string, string>;
  readonly prune?: boolean;
}
export const planBody = model<InvariantFilesBody>('InvariantFilesToPlan', fileMembers).required();
export const applyBody = model<InvariantFilesBody & { reason?: string }>('InvariantFilesToApply', {
  ...fileMembers,
  reason,
}).required();

/** Refused callers must be able to see why, so those who may plan may read invariants. */
const READERS = { access: ['policies:plan', 'boundaries:manage'] } as const;

export const INVARIANT_OPERATIONS: Operations = {
  'GET /api/invariants': get('listInvariants', 'List the invariants, sorted by name.', many(Invariant), READERS),
  'POST /api/invariants': {
    id: 'createInvariant',
    access: ['boundaries:manage'],
    summary: 'Create an invariant. It is refused if the policies break it already.',
    takes: newInvariant,
    gives: { 201: one(Invariant, 'ETag', 'Location') },
    refuses: [409],
    heavy: true,
  },
  'GET /api/invariants/export': get(
    'exportInvariants',
    'Export the invariants as files.',
    inLines(one(s.model('InvariantFiles', { files: schemaOf(policyFiles) }), REVISION)),
    { ...READERS, heavy: true },
  ),
  'POST /api/invariants/plan': {
    id: 'planInvariants',
    access: ['boundaries:manage'],
    summary: 'Plan an apply: which invariants these files would change, and which of them the policies break.',
    takes: planBody,
    gives: {
      200: one(
        s.model('InvariantPlan', {
          ...planMembers,
          invariants: s.described('The invariants because of which the apply would be refused.', s.listOf(BrokenInvariant)),
        }),
      ),
    },
    refuses: [409],
    heavy: true,
  },
  'POST /api/invariants/apply': {
    id: 'applyInvariants',
    access: ['boundaries:manage'],
    summary: 'Make the invariants match these files, in one change.',
    takes: applyBody,
    gives: { 200: one(s.model('AppliedInvariants', planMembers)) },
    refuses: [409],
    heavy: true,
  },
  'GET /api/invariants/{id}': tagged('getInvariant', 'Get an invariant.', one(Invariant, 'ETag'), READERS),
  'PUT /api/invariants/{id}': {
    id: 'updateInvariant',
    access: ['boundaries:manage'],
    summary:
      'Update an invariant. Omitted members keep their values. A change that forbids more is refused if the policies break it.',
    takes: changedInvariant,
    gives: { 200: one(Invariant, 'ETag') },
    refuses: [409],
    conditional: true,
    heavy: true,
  },
  'DELETE /api/invariants/{id}': {
    id: 'deleteInvariant',
    access: ['boundaries:manage'],
    summary: 'Delete an invariant.',
    gives: { 204: nothing() },
    conditional: true,
  },
};
