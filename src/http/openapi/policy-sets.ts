/** Changes of the policy set as a whole: between revisions, by files, back to a revision. */
import { EFFECTS } from '../../policies/document.ts';
import { DRAFT_NAME } from '../../policies/drafts/draft.ts';
import { FILE_NAME, OWNER } from '../../policies/files.ts';
import { REASON_MAX } from '../caller.ts';
import { get, inLines, one, type Paths, parameter, REVISION } from './operation.ts';
import { objectFound, policyMembers, policyRef, principalFound, subjectFound } from './policies.ts';
import {
  boolean,
  described,
  int32,
  integer,
  listOf,
  named,
  object,
  oneOf,
  orNull,
  type Schema,
  strict,
  string,
  text,
  uuid,
} from './schema.ts';

export const ownerName: Schema = { type: 'string', pattern: OWNER.source };
export const policyFiles = described('Texts of YAML files, by name.', {
  type: 'object',
  propertyNames: { pattern: FILE_NAME.source },
  additionalProperties: string,
});
export const planMembers = {
  files: policyFiles,
  owner: described(
    'Whose files they are: each owner has names, and removes policies, of its own. Left out: `default`.',
    ownerName,
  ),
  prune: described('Whether policies of the owner go whose files are not there.', boolean),
  adopt: described('Whether policies that were made over the API become those of the files that are called like them.', boolean),
  expected_revision: described('Refused (412) where the policies are at another.', { type: 'integer', minimum: 0 }),
};
export const draftName: Schema = { type: 'string', pattern: DRAFT_NAME.source };
/** Files, or the draft that has them. */
export const sourceMembers = {
  ...planMembers,
  draft: described('A draft, in place of `files` and what goes with them.', draftName),
};
export const reason = described('Why; it is kept with the change.', text(REASON_MAX));
/** As a file has it. */
const fileContent = orNull(
  named(
    'PolicyFileContent',
    object({
      name: string,
      description: orNull(string),
      target: described('Its name; its id where the target is gone.', orNull(string)),
      resource_type: policyMembers.resource_type,
      resource_pattern: orNull(string),
      effect: policyMembers.effect,
      priority: int32,
      enabled: boolean,
      subjects: listOf(subjectFound),
    }),
  ),
);
const policyChange = {
  action: described(
    "adopt: an update of a policy that was made over the API and is the file's from then on.",
    oneOf(['create', 'update', 'adopt', 'delete']),
  ),
  file: described('null where no file is asked.', orNull(string)),
  policy_id: described('null where it is not made yet.', orNull(uuid)),
  name: string,
  members: described('Those that differ.', listOf(string)),
  before: fileContent,
  after: fileContent,
};
const policyChanges = listOf(named('PolicyChange', object(policyChange)));

/** What a change of the policies does to decisions. */
const verdict = described(
  'stricter: some requests are denied that were allowed, none the other way round; looser: the contrary; incomparable: both; unknown: it would take too long to tell.',
  oneOf(['equal', 'stricter', 'looser', 'incomparable', 'unknown']),
);
const decided = named(
  'Decided',
  object({ effect: oneOf(EFFECTS), policy: described('null: no policy fits.', orNull(policyRef)) }),
);
const policyChangesWithFlips = listOf(
  named(
    'PolicyChangeWithFlips',
    object({
      ...policyChange,
      flips: described(
        'Requests that get another effect, and that this policy decides before or after: at most one that is allowed then and one that is denied; none: there is no such request; null: it could not be told.',
        orNull(
          listOf(
            named(
              'DecisionChange',
              object({
                principal: principalFound,
                subjects: described(
                  'What of the principal counts: whoever has these, and nothing else that a policy names, is answered the same.',
                  listOf(subjectFound),
                ),
                target: described('Its name; its id where it is gone; made up where it holds for every other.', string),
                ...objectFound,
                before: decided,
                after: decided,
              }),
            ),
          ),
        ),
      ),
    }),
  ),
);

const policyPlan = {
  revision: described('That the plan was made on; after an apply, the one that it made.', integer),
  changes: policyChanges,
  unchanged: described('Files that say what is so already.', integer),
  left: described(
    'Policies whose files are gone, and which stay because `prune` was not asked for.',
    listOf(named('LeftPolicy', object({ file: string, policy_id: uuid, name: string }))),
  ),
  unmanaged: described('Policies that are of no file, even where one says the same and has not adopted it.', integer),
};

const warnings = described(
  'Roles, groups and users that changed policies name and that nobody has.',
  listOf(
    named(
      'PolicyWarning',
      object({
        code: oneOf(['unknown_role', 'unknown_group', 'unknown_user']),
        file: orNull(string),
        policy: string,
        message: string,
      }),
    ),
  ),
);

const rollbackMembers = {
  revision: { type: 'integer', minimum: 0 },
  owner: described('Only policies of this owner go back. Left out: every policy.', ownerName),
  expected_revision: planMembers.expected_revision,
};

const twoRevisions = [
  { ...parameter('query', 'from', { type: 'integer', minimum: 0 }, 'The revision before.'), required: true },
  parameter('query', 'to', { type: 'integer', minimum: 0 }, 'The one after; absent: that of now.'),
];

export const POLICY_SET_SCHEMAS = {
  PolicyDiff: object({ from: integer, to: integer, changes: policyChanges }),
  PolicyComparison: object({ from: integer, to: integer, verdict, changes: policyChangesWithFlips }),
  PolicyFiles: object({ owner: ownerName, files: policyFiles }),
  PolicyFilesToPlan: strict(planMembers, ['files']),
  PolicyFilesToApply: strict(
    {
      ...planMembers,
      reason,
      tests: described('Texts of YAML files of tests, by name: nothing is applied unless all pass on what would be.', {
        ...policyFiles,
        minProperties: 1,
      }),
    },
    ['files'],
  ),
  PolicyPlan: object(policyPlan),
  PolicyPlanWithFlips: object({ ...policyPlan, verdict, warnings, changes: policyChangesWithFlips }),
  Rollback: strict({ ...rollbackMembers, reason }, ['revision']),
  RollbackToPlan: strict(rollbackMembers, ['revision']),
  RollbackPlan: object({
    revision: described('That the plan was made on.', integer),
    verdict,
    warnings,
    changes: policyChangesWithFlips,
  }),
  RolledBack: object({ revision: described('The new one; that of now where nothing changed.', integer), changes: policyChanges }),
} satisfies Record<string, Schema>;

export const POLICY_SET_PATHS: Paths = {
  '/api/policies/diff': {
    get: get('diffRevisions', 'What is between two revisions.', 'admin', one('PolicyDiff', REVISION), {
      query: twoRevisions,
      refuses: [404],
    }),
  },
  '/api/policies/compare': {
    get: get(
      'compareRevisions',
      'What two revisions decide otherwise: over all requests that can be made.',
      'admin',
      inLines(one('PolicyComparison', REVISION)),
      {
        heavy: true,
        query: twoRevisions,
        refuses: [404],
      },
    ),
  },
  '/api/policies/export': {
    get: get('exportPolicies', 'The policies as files.', 'admin', inLines(one('PolicyFiles', REVISION)), {
      heavy: true,
      query: [parameter('query', 'owner', ownerName, 'Whose files; policies of no file are among them. Absent: `default`.')],
    }),
  },
  '/api/policies/plan': {
    post: {
      id: 'planPolicies',
      summary: 'What applying these files would change, and which decisions. What could not be applied is refused.',
      access: 'admin',
      takes: 'PolicyFilesToPlan',
      gives: { 200: inLines(one('PolicyPlanWithFlips', REVISION)) },
      heavy: true,
      refuses: [412],
    },
  },
  '/api/policies/apply': {
    post: {
      id: 'applyPolicies',
      summary: 'Make the policies what these files say, in one change, if their tests pass.',
      access: 'admin',
      takes: 'PolicyFilesToApply',
      gives: { 200: one('PolicyPlan', REVISION) },
      heavy: true,
      refuses: [409, 412],
    },
  },
  '/api/policies/rollback': {
    post: {
      id: 'rollBackPolicies',
      summary: 'Make the policy set what it was at a revision: a new revision.',
      access: 'admin',
      takes: 'Rollback',
      gives: { 200: one('RolledBack', REVISION) },
      heavy: true,
      refuses: [404, 412],
    },
  },
  '/api/policies/rollback/plan': {
    post: {
      id: 'planRollback',
      summary: 'What a rollback would change, and which decisions.',
      access: 'admin',
      takes: 'RollbackToPlan',
      gives: { 200: inLines(one('RollbackPlan', REVISION)) },
      heavy: true,
      refuses: [404, 412],
    },
  },
};
