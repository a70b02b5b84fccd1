/** The limits of an owner in the REST API. */
import Joi from 'joi';
import { asTimestamp, model, readOnly, uuid } from '../base/validate.ts';
import { EFFECTS, RESOURCE_TYPES, SUBJECT_TYPES } from '../engine/compile/policy.ts';
import type { LimitSubject, Limits } from './limits/limits.ts';
import type { Owner } from './limits/owner-store.ts';
import { policyMembers, subjectValues, timestamp } from './schema.ts';

const LIMITS_MAX = { targets: 1_000, patterns: 100, subjects: 1_000 } as const;

const priority = policyMembers.priority.optional();
const subject = model<LimitSubject>('OwnerSubject', {
  subject_type: Joi.valid(...SUBJECT_TYPES).required(),
  subject_value: Joi.when('subject_type', {
    switch: [
      // biome-ignore lint/suspicious/noThenProperty: joi's word for it
      { is: 'everyone', then: Joi.valid(null).messages({ 'any.only': 'must be left out or null for everyone' }) },
      // biome-ignore lint/suspicious/noThenProperty: joi's word for it
      { is: 'user', then: subjectValues.user.allow(null) },
    ],
    otherwise: subjectValues.role.allow(null),
  })
    .meta({ as: subjectValues.role.allow(null).description('null or absent: every subject of this type.') })
    .description('null or absent: every subject of this type.'),
});

export const limitsForm = model<Limits>('OwnerLimits', {
  targets: Joi.array()
    .items(uuid().allow(null))
    .max(LIMITS_MAX.targets)
    .description('Ids of targets. null in the list allows policies for every target.'),
  resource_types: Joi.array()
    .items(Joi.valid(...RESOURCE_TYPES))
    .max(RESOURCE_TYPES.length)
    .description('A policy for `all` types needs all of them.'),
  resource_patterns: Joi.array()
    .items(policyMembers.resource_pattern.disallow(null))
    .max(LIMITS_MAX.patterns)
    .description('Every name that the pattern of a policy matches must match at least one of these.'),
  priority: model<{ min: number; max: number }>('OwnerPriority', { min: priority, max: priority }).description(
    'The lowest and the highest priority.',
  ),
  effects: Joi.array()
    .items(Joi.valid(...EFFECTS))
    .max(EFFECTS.length)
    .description('The effects that policies may have.'),
  subjects: Joi.array()
    .items(subject)
    .max(LIMITS_MAX.subjects)
    .description('Each subject of a policy must be in the list. `everyone` contains no other subject.'),
});

export interface OwnerUpdate {
  readonly name?: string;
  readonly limits: Limits;
  readonly created_at?: string;
  readonly updated_at?: string;
}

export const ownerBody = model<OwnerUpdate>('OwnerUpdate', {
  name: readOnly(Joi.string()),
  limits: limitsForm.required().description('A member that is absent limits nothing.'),
  created_at: readOnly(asTimestamp(Joi.string())),
  updated_at: readOnly(asTimestamp(Joi.string())),
}).required();

export const ownerJson = ({ name, limits, created_at, updated_at }: Owner) => ({
  ...{ name, limits },
  created_at: timestamp(created_at),
  updated_at: timestamp(updated_at),
});
export type OwnerJson = ReturnType<typeof ownerJson>;
