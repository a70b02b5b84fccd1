/** Drafts: saved changes of the policies that are not applied yet, and their shadows. */
import { get, many, nothing, one, type Paths, REVISION } from '../openapi/operation.ts';
import { actor, boolean, described, object, orNull, type Schema, sha256, strict, string, times } from '../openapi/schema.ts';
import { replayed } from '../policy-questions/replay-contract.ts';
import { draftName, ownerName, planMembers, policyFiles, reason } from '../policy-sets/contract.ts';

const draftSummary = {
  name: draftName,
  owner: ownerName,
  prune: boolean,
  adopt: boolean,
  shadow: described('Whether the draft is evaluated beside the live policies.', boolean),
  author: described('The user who saved the draft last.', actor),
  hash: described('Hash of the content. In quotes, it is the ETag.', sha256),
  ...times,
};

export const DRAFT_SCHEMAS = {
  PolicyDraftSummary: object(draftSummary),
  PolicyDraft: object({ ...draftSummary, files: policyFiles, tests: policyFiles }),
  NewPolicyDraft: strict(
    {
      files: planMembers.files,
      tests: described('Texts of YAML test files, by file name. The tests must pass before the draft is activated.', policyFiles),
      owner: planMembers.owner,
      prune: planMembers.prune,
      adopt: planMembers.adopt,
    },
    ['files'],
  ),
  PolicyDraftActivation: strict({ expected_revision: planMembers.expected_revision, reason }, []),
  PolicyShadow: object({
    draft: draftName,
    problem: described(
      'Why the draft cannot be applied to the current policies; null: it can. Until it can, decisions wait to be evaluated.',
      orNull(string),
    ),
    ...replayed,
  }),
} satisfies Record<string, Schema>;

export const DRAFT_PATHS: Paths = {
  '/api/policies/drafts': {
    get: get('listDrafts', 'List the drafts.', 'admin', many('PolicyDraftSummary')),
  },
  '/api/policies/drafts/{name}': {
    get: get('getDraft', 'Get a draft with its files.', 'admin', one('PolicyDraft', 'ETag')),
    put: {
      id: 'saveDraft',
      summary: 'Save a draft. A draft that could not be applied is refused.',
      access: 'admin',
      takes: 'NewPolicyDraft',
      gives: { 200: one('PolicyDraft', 'ETag'), 201: one('PolicyDraft', 'ETag', 'Location') },
      refuses: [409],
      conditional: true,
      heavy: true,
    },
    delete: {
      id: 'deleteDraft',
      summary: 'Delete a draft and its shadow.',
      access: 'admin',
      gives: { 204: nothing() },
      conditional: true,
    },
  },
  '/api/policies/drafts/{name}/activate': {
    post: {
      id: 'activateDraft',
      summary: 'Apply a draft if its tests pass, and delete it.',
      access: 'admin',
      takes: 'PolicyDraftActivation',
      gives: { 200: one('PolicyPlan', REVISION) },
      refuses: [409],
      conditional: true,
      heavy: true,
    },
  },
  '/api/policies/drafts/{name}/shadow': {
    put: {
      id: 'startShadow',
      summary: 'Start to evaluate the draft beside the live policies, without effect.',
      access: 'admin',
      gives: { 200: one('PolicyShadow'), 201: one('PolicyShadow') },
      refuses: [409],
    },
    get: get(
      'getShadow',
      'Get the decisions since the start of the shadow that the draft would change.',
      'admin',
      one('PolicyShadow'),
    ),
    delete: { id: 'stopShadow', summary: 'Stop the shadow.', access: 'admin', gives: { 204: nothing() } },
  },
};
