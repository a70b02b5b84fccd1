/** The bodies of requests about the whole policy set: files to plan or apply, and the set that a question is about. */
import Joi from 'joi';
import { model, text, uuid } from '../../base/validate.ts';
import { REASON_MAX } from '../../http/caller.ts';
import { DEFAULT_OWNER, FILE_NAME, OWNER } from '../files/file.ts';
import { DRAFT_NAME } from './draft.ts';
import type { Expected, MoveRequest, RollbackRequest } from './planning.ts';
import type { ApplyRequest } from './sets.ts';

export interface PlanBody {
  files: Record<string, string>;
  owner?: string;
  prune?: boolean;
  adopt?: boolean;
  expected_revision?: number;
  expected_targets?: string;
}

export const ownerName = Joi.string().pattern(OWNER).messages({
  'string.pattern.base':
    'must consist of a-z, 0-9, ".", "_" and "-", begin with a letter or digit, and have at most 63 characters',
});
/** Texts by file name. The names are checked when the files are read. */
const texts = Joi.object<Record<string, string>>()
  .pattern(Joi.string(), Joi.string().allow(''))
  .meta({ propertyNames: { pattern: FILE_NAME.source } });
export const policyFiles = texts.description('Texts of YAML files, by file name.');
export const testFiles = texts.description('Texts of YAML test files, by file name.');
export const revision = Joi.number().integer().min(0);
export const planMembers = {
  files: policyFiles.required(),
  owner: ownerName.description(
    'The owner of the files. File names are separate for each owner, and `prune` deletes only policies of this owner. Absent: `default`.',
  ),
  prune: Joi.boolean().description('Whether policies of the owner are deleted if their files are missing.'),
  adopt: Joi.boolean().description('Whether a file takes over a policy of the same name that was created over the API.'),
  expected_revision: revision.description(
    'The request is refused (412) if policies of the owner changed after this revision; with `adopt`, if any policy changed. `owner_revision` of a plan is the revision to send.',
  ),
  expected_targets: Joi.string()
    .pattern(/^[0-9a-f]{16}$/)
    .messages({ 'string.pattern.base': 'must be the `targets_hash` of a plan' })
    .description(
      'The request is refused (412) if a name in the files means a different target than before. `targets_hash` of a plan is the value to send.',
    ),
};
export const reason = text(REASON_MAX).description('The reason of the change. It is stored with the change.');
export const planBody = model<PlanBody>('PolicyFilesToPlan', planMembers).required();
export const applyBody = model<PlanBody & { reason?: string; tests?: Record<string, string> }>('PolicyFilesToApply', {
  ...planMembers,
  reason,
  tests: testFiles
    .min(1)
    .description('Texts of YAML test files, by file name. Nothing is applied unless all tests pass on the new policies.'),
}).required();
export interface RollbackBody {
  revision: number;
  owner?: string;
  expected_revision?: number;
}

const rollbackMembers = {
  revision: revision.required(),
  owner: ownerName.description('Only policies of this owner are rolled back. Absent: all policies.'),
  expected_revision: revision.description('The request is refused (412) if the policies are at a different revision.'),
};
export const rollbackBody = model<RollbackBody & { reason?: string }>('Rollback', { ...rollbackMembers, reason }).required();
export const rollbackPlanBody = model<RollbackBody>('RollbackToPlan', rollbackMembers).required();

export const rollbackOf = ({ revision, owner, expected_revision }: RollbackBody): RollbackRequest => ({
  ...{ revision, owner: owner ?? null, expectedRevision: expected_revision ?? null },
});

export interface MoveBody {
  policy_id: string;
  position: number;
  override?: boolean;
  expected_revision?: number;
}

const moveMembers = {
  policy_id: uuid().required().description('The policy to move.'),
  position: Joi.number().integer().min(1).required().description('Its new place in the order of evaluation, counted from 1.'),
  override: Joi.boolean().description(
    'Whether priorities of policies that belong to files may change. They are reported as drift until the files are applied.',
  ),
  expected_revision: rollbackMembers.expected_revision,
};
export const moveBody = model<MoveBody & { reason?: string }>('PolicyMove', { ...moveMembers, reason }).required();
export const movePlanBody = model<MoveBody>('PolicyMoveToPlan', moveMembers).required();

export const moveOf = ({ policy_id, position, override = false, expected_revision }: MoveBody): MoveRequest => ({
  ...{ policyId: policy_id, position, override, expectedRevision: expected_revision ?? null },
});

export const requestOf = ({
  files,
  owner = DEFAULT_OWNER,
  prune = false,
  adopt = false,
  ...expected
}: PlanBody): ApplyRequest => ({
  files: new Map(Object.entries(files)),
  ...{ owner, prune, adopt, ...expectedOf(expected) },
});

/** What `plan` says about the state on which it is based. */
export type ExpectedBody = Pick<PlanBody, 'expected_revision' | 'expected_targets'>;

export const expectedOf = ({ expected_revision, expected_targets }: ExpectedBody): Expected => ({
  ...{ expectedRevision: expected_revision ?? null, expectedTargets: expected_targets ?? null },
});

/** Files in the form of `apply`, the name of a draft that contains them, a rollback, or a move. With none of them, the current set. */
export interface SetSource extends Partial<PlanBody> {
  draft?: string;
  rollback?: Pick<RollbackBody, 'revision' | 'owner'>;
  move?: Pick<MoveBody, 'policy_id' | 'position'>;
}

export const sourceMembers = {
  ...planMembers,
  files: planMembers.files.optional(),
  draft: Joi.string()
    .pattern(DRAFT_NAME)
    .messages({ 'string.pattern.base': 'must be the name of a draft' })
    .description('A draft, instead of `files` and their options.'),
  rollback: model<NonNullable<SetSource['rollback']>>('RollbackAsSource', {
    revision: rollbackMembers.revision,
    owner: rollbackMembers.owner,
  }).description('The policies that this rollback would make, instead of those of files.'),
  move: model<NonNullable<SetSource['move']>>('MoveAsSource', {
    policy_id: moveMembers.policy_id,
    position: moveMembers.position,
  }).description('The policies that this move in the order of evaluation would make, instead of those of files.'),
};

const SOURCES = ['files', 'draft', 'rollback', 'move'] as const;

/** The options of files are only allowed with files. `needed`: the request must have a source. */
export const withSource = <T>(schema: Joi.ObjectSchema<T>, needed: boolean): Joi.ObjectSchema<T> =>
  (needed ? schema.xor(...SOURCES) : schema.oxor(...SOURCES))
    .with('owner', 'files')
    .with('prune', 'files')
    .with('adopt', 'files')
    .messages({
      'object.with': 'is only allowed with `files`, which the request does not have',
      'object.missing': 'must have one of `files`, `draft`, `rollback` and `move`',
      'object.xor': 'must have only one of `files`, `draft`, `rollback` and `move`',
      'object.oxor': 'must have only one of `files`, `draft`, `rollback` and `move`',
    });
