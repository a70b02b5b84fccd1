/** The bodies of requests about the whole policy set: files to plan or apply, and the set that a question is about. */
import Joi from 'joi';
import { text } from '../../base/validate.ts';
import { REASON_MAX } from '../../http/caller.ts';
import { DEFAULT_OWNER, OWNER } from '../files/file.ts';
import { DRAFT_NAME } from './draft.ts';
import type { RollbackRequest } from './planning.ts';
import type { ApplyRequest } from './sets.ts';

export interface PlanBody {
  files: Record<string, string>;
  owner?: string;
  prune?: boolean;
  adopt?: boolean;
  expected_revision?: number;
}

const owner = Joi.string().pattern(OWNER).messages({
  'string.pattern.base':
    'must consist of a-z, 0-9, ".", "_" and "-", begin with a letter or digit, and have at most 63 characters',
});
/** Texts by file name. */
export const texts = Joi.object<Record<string, string>>().pattern(Joi.string(), Joi.string().allow(''));
export const planMembers = {
  files: texts.required(),
  owner,
  prune: Joi.boolean(),
  adopt: Joi.boolean(),
  expected_revision: Joi.number().integer().min(0),
};
const reason = text(REASON_MAX);
export const planBody = Joi.object<PlanBody>(planMembers).required();
export const applyBody = Joi.object<PlanBody & { reason?: string; tests?: Record<string, string> }>({
  ...planMembers,
  reason,
  tests: texts.min(1),
}).required();
export interface RollbackBody {
  revision: number;
  owner?: string;
  expected_revision?: number;
}

const rollbackMembers = {
  revision: Joi.number().integer().min(0).required(),
  owner,
  expected_revision: planMembers.expected_revision,
};
export const rollbackBody = Joi.object<RollbackBody & { reason?: string }>({ ...rollbackMembers, reason }).required();
export const rollbackPlanBody = Joi.object<RollbackBody>(rollbackMembers).required();

export const rollbackOf = ({ revision, owner, expected_revision }: RollbackBody): RollbackRequest => ({
  ...{ revision, owner: owner ?? null, expectedRevision: expected_revision ?? null },
});

export const requestOf = ({
  files,
  owner = DEFAULT_OWNER,
  prune = false,
  adopt = false,
  expected_revision,
}: PlanBody): ApplyRequest => ({
  files: new Map(Object.entries(files)),
  ...{ owner, prune, adopt, expectedRevision: expected_revision ?? null },
});

/** Files in the form of `apply`, or the name of a draft that contains them. With neither, the current set. */
export interface SetSource extends Partial<PlanBody> {
  draft?: string;
}

export const sourceMembers = {
  ...planMembers,
  files: planMembers.files.optional(),
  draft: Joi.string().pattern(DRAFT_NAME).messages({ 'string.pattern.base': 'must be the name of a draft' }),
};

/** The options of files are only allowed with files. `needed`: the request must have files or a draft. */
export const withSource = <T>(schema: Joi.ObjectSchema<T>, needed: boolean): Joi.ObjectSchema<T> =>
  (needed ? schema.xor('files', 'draft') : schema.oxor('files', 'draft'))
    .with('owner', 'files')
    .with('prune', 'files')
    .with('adopt', 'files')
    .messages({
      'object.with': 'is only allowed with `files`, which the request does not have',
      'object.missing': 'must have either `files` or `draft`',
      'object.xor': 'must have either `files` or `draft`, not both',
      'object.oxor': 'must have either `files` or `draft`, not both',
    });
