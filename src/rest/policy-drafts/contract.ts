/** Drafts: saved changes of the policies that are not applied yet, and their shadows. */
import { model } from '../../base/validate.ts';
import { type ExpectedBody, type PlanBody, planMembers, reason, testFiles } from '../../policies/sets/bodies.ts';
import { DRAFT_NAME } from '../../policies/sets/draft.ts';
import { get, many, nothing, type Operations, one, REVISION } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { replayed } from '../policy-questions/replay-contract.ts';
import { ownerName, PolicyPlan, policyFiles } from '../policy-sets/contract.ts';

interface DraftBody extends Omit<PlanBody, keyof ExpectedBody> {
  tests?: Record<string, string>;
}

const { files, owner, prune, adopt, expected_revision, expected_targets } = planMembers;
export const draftBody = model<DraftBody>('NewPolicyDraft', {
  files,
  tests: testFiles.description('Texts of YAML test files, by file name. The tests must pass before the draft is activated.'),
  owner,
  prune,
  adopt,
}).required();
export const activateBody = model<ExpectedBody & { reason?: string }>('PolicyDraftActivation', {
  expected_revision,
  expected_targets,
  reason,
}).default({});

const draftName: s.Schema = { type: 'string', pattern: DRAFT_NAME.source };

const draftSummary = {
  name: draftName,
  owner: ownerName,
  prune: s.boolean,
  adopt: s.boolean,
  shadow: s.described('Whether the draft is evaluated beside the live policies.', s.boolean),
  author: s.described('The user who saved the draft last.', s.actor),
  hash: s.described('Hash of the content. In quotes, it is the ETag.', s.sha256),
  ...s.times,
};

const PolicyDraftSummary = s.model('PolicyDraftSummary', draftSummary);
const PolicyDraft = s.model('PolicyDraft', { ...draftSummary, files: policyFiles, tests: policyFiles });
const PolicyShadow = s.model('PolicyShadow', {
  draft: draftName,
  problem: s.described(
    'Why the draft cannot be applied to the current policies; null: it can. Until it can, decisions wait to be evaluated.',
    s.orNull(s.string),
  ),
  ...replayed,
});

export const DRAFT_OPERATIONS: Operations = {
  'GET /api/policies/drafts': get('listDrafts', 'List the drafts that the caller may read.', many(PolicyDraftSummary), {
    access: ['policies:plan'],
  }),
  'GET /api/policies/drafts/{name}': get('getDraft', 'Get a draft with its files.', one(PolicyDraft, 'ETag'), {
    access: ['policies:plan'],
  }),
  'PUT /api/policies/drafts/{name}': {
    id: 'saveDraft',
    access: ['policies:manage'],
    summary: 'Save a draft. A draft that could not be applied is refused.',
    takes: draftBody,
    gives: { 200: one(PolicyDraft, 'ETag'), 201: one(PolicyDraft, 'ETag', 'Location') },
    refuses: [409],
    conditional: true,
    heavy: true,
  },
  'DELETE /api/policies/drafts/{name}': {
    id: 'deleteDraft',
    access: ['policies:manage'],
    summary: 'Delete a draft and its shadow.',
    gives: { 204: nothing() },
    conditional: true,
  },
  'POST /api/policies/drafts/{name}/activate': {
    id: 'activateDraft',
    access: ['policies:manage'],
    summary: 'Apply a draft if its tests pass, and delete it.',
    takes: activateBody,
    gives: { 200: one(PolicyPlan, REVISION) },
    refuses: [409],
    conditional: true,
    heavy: true,
  },
  'PUT /api/policies/drafts/{name}/shadow': {
    id: 'startShadow',
    access: { all: ['policies:manage', 'read'] },
    summary: 'Start to evaluate the draft beside the live policies, without effect.',
    gives: { 200: one(PolicyShadow), 201: one(PolicyShadow) },
    refuses: [409],
  },
  'GET /api/policies/drafts/{name}/shadow': get(
    'getShadow',
    'Get the decisions since the start of the shadow that the draft would change.',
    one(PolicyShadow),
  ),
  'DELETE /api/policies/drafts/{name}/shadow': {
    id: 'stopShadow',
    access: ['policies:manage'],
    summary: 'Stop the shadow.',
    gives: { 204: nothing() },
  },
};
