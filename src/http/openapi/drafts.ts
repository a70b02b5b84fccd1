/** Changes of the policies that are not made yet, and their shadows. */
import { get, many, nothing, one, type Paths, REVISION } from './operation.ts';
import { replayed } from './policy-replay.ts';
import { draftName, ownerName, planMembers, policyFiles, reason } from './policy-sets.ts';
import { actor, boolean, described, object, orNull, type Schema, sha256, strict, string, times } from './schema.ts';

const draftSummary = {
  name: draftName,
  owner: ownerName,
  prune: boolean,
  adopt: boolean,
  shadow: described('Whether it is evaluated beside the live policies.', boolean),
  author: described('Who saved it last.', actor),
  hash: described('Of its content; quoted, it is the ETag.', sha256),
  ...times,
};

export const DRAFT_SCHEMAS = {
  PolicyDraftSummary: object(draftSummary),
  PolicyDraft: object({ ...draftSummary, files: policyFiles, tests: policyFiles }),
  NewPolicyDraft: strict(
    {
      files: planMembers.files,
      tests: described('Texts of YAML files of tests, by name: they must pass before the draft is activated.', policyFiles),
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
      'Why the draft cannot be applied to the policies as they are now; until it can, decisions wait.',
      orNull(string),
    ),
    ...replayed,
  }),
} satisfies Record<string, Schema>;

export const DRAFT_PATHS: Paths = {
  '/api/policies/drafts': {
    get: get('listDrafts', 'Drafts: changes of the policies that are not made yet.', 'admin', many('PolicyDraftSummary')),
  },
  '/api/policies/drafts/{name}': {
    get: get('getDraft', 'One draft, with its files.', 'admin', one('PolicyDraft', 'ETag')),
    put: {
      id: 'saveDraft',
      summary: 'Save a draft. What could not be applied is refused.',
      access: 'admin',
      takes: 'NewPolicyDraft',
      gives: { 200: one('PolicyDraft', 'ETag'), 201: one('PolicyDraft', 'ETag', 'Location') },
      refuses: [409],
      conditional: true,
      heavy: true,
    },
    delete: {
      id: 'deleteDraft',
      summary: 'Delete a draft, with its shadow.',
      access: 'admin',
      gives: { 204: nothing() },
      conditional: true,
    },
  },
  '/api/policies/drafts/{name}/activate': {
    post: {
      id: 'activateDraft',
      summary: 'Apply a draft, if its tests pass, and remove it.',
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
      summary: 'Evaluate the draft beside the live policies, without effect, from now on.',
      access: 'admin',
      gives: { 200: one('PolicyShadow'), 201: one('PolicyShadow') },
      refuses: [409],
    },
    get: get('getShadow', 'What the draft would have decided otherwise since then.', 'admin', one('PolicyShadow')),
    delete: { id: 'stopShadow', summary: 'End that.', access: 'admin', gives: { 204: nothing() } },
  },
};
