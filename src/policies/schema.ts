/** Policies in the REST API: what a request may contain, and how the API shows a policy. */
import Joi from 'joi';
import { asTimestamp, type Hints, lines, model, readOnly, text, uuid, validate } from '../base/validate.ts';
import {
  EFFECTS,
  type Policy,
  type PolicySubject,
  RESOURCE_TYPES,
  type StoredPolicy,
  SUBJECT_TYPES,
  type SubjectType,
} from '../engine/compile/policy.ts';
import type { OrderedPolicy, OrderFilter } from './policy-store.ts';

export const POLICY_LIMITS = { name: 256, description: 4096, pattern: 512, subjectValue: 256, subjects: 1000 } as const;

export interface SubjectDocument {
  /** Allowed only if it was read before: the id of the existing subject. */
  readonly id?: string;
  readonly subject_type: SubjectType;
  readonly subject_value: string | null;
}

/** A policy as its author wrote it, with defaults filled in and each subject only once. */
export interface PolicyDocument extends Omit<Policy, 'id' | 'subjects' | 'created_at' | 'updated_at'> {
  readonly subjects: readonly SubjectDocument[];
}

/** An omitted member stays unchanged. The read-only members are allowed if they are as they were read. */
export interface PolicyUpdate extends Partial<PolicyDocument> {
  readonly id?: string;
  readonly managed_as?: string | null;
  readonly drift_since?: number | null;
  readonly created_at?: string;
  readonly updated_at?: string;
}

/** The members with the same meaning in every form of a policy, as a new policy has them. */
export const policyMembers = {
  name: text(POLICY_LIMITS.name).required().description('For people; it appears in the audit log.'),
  description: lines(POLICY_LIMITS.description).allow(null, '').description('Free text. It may contain line breaks.'),
  resource_type: Joi.valid(...RESOURCE_TYPES, 'all')
    .required()
    .description('The kind of objects that the policy covers.'),
  resource_pattern: text(POLICY_LIMITS.pattern)
    .allow(null)
    .description(
      'An RE2 pattern. It may match anywhere in the name, unless `^` and `$` anchor it. The name of a resource is its URI. null: every name.',
    ),
  effect: Joi.valid(...EFFECTS)
    .required()
    .description('allow grants access, deny refuses it.'),
  priority: Joi.number()
    .integer()
    .min(-(2 ** 31))
    .max(2 ** 31 - 1)
    .required()
    .messages({ '*': 'must be a whole number from -2147483648 to 2147483647', 'any.required': 'is required' })
    .description(
      'Policies with a higher priority are evaluated first, at equal priority deny before allow. The first policy that matches decides.',
    ),
  enabled: Joi.boolean().description('false disables the policy without deleting it.'),
};

export const subjectValues = {
  role: text(POLICY_LIMITS.subjectValue).description('Users with this role.'),
  group: text(POLICY_LIMITS.subjectValue).description('Users in this group.'),
  user: uuid().description('One user, by id.'),
};

// biome-ignore lint/suspicious/noThenProperty: joi's word for it
const ofType = (is: SubjectType, value: Joi.Schema) => ({ is, then: value });

const subjectMembers = {
  subject_type: Joi.valid(...SUBJECT_TYPES).required(),
  subject_value: Joi.when('subject_type', {
    switch: [
      ofType('everyone', Joi.valid(null).messages({ 'any.only': 'must be left out or null for everyone' })),
      ofType('role', subjectValues.role.required()),
      ofType('group', subjectValues.group.required()),
      ofType('user', subjectValues.user.required()),
    ],
  })
    .meta({ as: text(POLICY_LIMITS.subjectValue).allow(null) })
    .description('A role, a group, or the id of a user; null or absent exactly for `everyone`.'),
};
const subjectForm = (type: SubjectType): string => `{"subject_type": "${type}", "subject_value": "..."}`;
const everyoneForm = '{"subject_type": "everyone"}';

/** Hints for names that policy files use but this API does not. */
const FILE_NAMES: Hints = new Map([
  ['target', ['policy files use this name; in the API use `target_id`, the id of the target (GET /api/targets)']],
  ['role', [`policy files use this name; in the API a subject is ${subjectForm('role')}`]],
  ['group', [`policy files use this name; in the API a subject is ${subjectForm('group')}`]],
  ['user', [`policy files use this name; in the API a subject is ${subjectForm('user')}`]],
  ['everyone', [`policy files use this name; in the API a subject is ${everyoneForm}`]],
]);

export const newSubject = model<Omit<SubjectInput, 'id'>>('NewPolicySubject', subjectMembers);
const knownSubject = model<SubjectInput>('PolicySubjectUpdate', { id: uuid(), ...subjectMembers });
const listOf = (subject: Joi.ObjectSchema) =>
  Joi.array()
    .items(
      subject.messages({ 'object.base': 'must be an object with `subject_type` and `subject_value`; `everyone` has no value' }),
    )
    .max(POLICY_LIMITS.subjects);

export const apiMembers = {
  ...policyMembers,
  target_id: uuid().allow(null).description('The target of the policy; null: every target.'),
};
const optional = Object.entries(apiMembers).map(([name, member]) => [name, (member as Joi.Schema).optional()]);
export const newPolicy = model<PolicyInput>('NewPolicy', {
  ...apiMembers,
  subjects: listOf(newSubject).required(),
}).required();

export const changedPolicy = model<UpdateInput>('PolicyUpdate', {
  id: readOnly(uuid()),
  ...(Object.fromEntries(optional) as typeof apiMembers),
  subjects: listOf(knownSubject),
  managed_as: readOnly(Joi.string().allow(null)),
  drift_since: readOnly(Joi.number().integer().allow(null)),
  created_at: readOnly(asTimestamp(Joi.string())),
  updated_at: readOnly(asTimestamp(Joi.string())),
}).required();

type SubjectInput = Omit<SubjectDocument, 'subject_value'> & Partial<Pick<SubjectDocument, 'subject_value'>>;

type Optional = 'description' | 'target_id' | 'resource_pattern' | 'enabled';
type PolicyInput = Omit<PolicyDocument, 'subjects' | Optional> &
  Partial<Pick<PolicyDocument, Optional>> & { subjects: readonly SubjectInput[] };

type UpdateInput = Omit<PolicyUpdate, 'subjects'> & { readonly subjects?: readonly SubjectInput[] };

export const subjectKey = (subject: { subject_type: SubjectType; subject_value?: string | null }): string =>
  `${subject.subject_type}:${subject.subject_value ?? ''}`;

/** Sorts subjects by id, the order in which they are stored and shown. */
export const sortedSubjects = (subjects: readonly PolicySubject[]): PolicySubject[] =>
  subjects.toSorted((a, b) => (a.id < b.id ? -1 : a.id > b.id ? 1 : 0));

/** Throws AppError `invalid_request`, like the other functions here. */
export function readPolicy(value: unknown): PolicyDocument {
  const {
    description = null,
    target_id = null,
    resource_pattern = null,
    enabled = true,
    ...rest
  } = validate(newPolicy, value, FILE_NAMES);
  const subjects = new Map(rest.subjects.map((subject) => [subjectKey(subject), readySubject(subject)]));
  return { ...rest, description, target_id, resource_pattern, enabled, subjects: [...subjects.values()] };
}

/** Does not remove duplicate subjects: only the update knows which of them has the right id. */
export function readPolicyUpdate(value: unknown): PolicyUpdate {
  const { subjects, ...rest } = validate(changedPolicy, value, FILE_NAMES);
  return subjects === undefined ? rest : { ...rest, subjects: subjects.map(readySubject) };
}

export function readSubject(value: unknown): SubjectDocument {
  return readySubject(validate(newSubject.required(), value, FILE_NAMES));
}

const readySubject = (subject: SubjectInput): SubjectDocument => ({
  ...subject,
  subject_value: subject.subject_value ?? null,
});

export const timestamp = (milliseconds: number): string => new Date(milliseconds).toISOString();

export function subjectJson({ id, subject_type, subject_value }: PolicySubject): PolicySubject {
  return { id, subject_type, subject_value };
}

export interface PolicyJson extends Omit<StoredPolicy, 'created_at' | 'updated_at'> {
  readonly created_at: string;
  readonly updated_at: string;
}

/** Members that older versions did not record. */
type Newer = 'managed_as' | 'drift_since';

export function policyJson(policy: StoredPolicy): PolicyJson {
  return {
    id: policy.id,
    name: policy.name,
    description: policy.description,
    target_id: policy.target_id,
    resource_type: policy.resource_type,
    resource_pattern: policy.resource_pattern,
    effect: policy.effect,
    priority: policy.priority,
    enabled: policy.enabled,
    subjects: policy.subjects.map(subjectJson),
    managed_as: policy.managed_as,
    drift_since: policy.drift_since,
    created_at: timestamp(policy.created_at),
    updated_at: timestamp(policy.updated_at),
  };
}

/** Which policies `GET /api/policies/order` lists. */
export const orderMembers = {
  id: uuid().description('Only the policy with this id.'),
  text: text(POLICY_LIMITS.pattern).description(
    'A part of the name or of the pattern, or the whole id. Case makes no difference; with SQLite, only that of ASCII letters.',
  ),
  effect: Joi.valid(...EFFECTS).description('Only policies with this effect.'),
  enabled: Joi.valid('true', 'false').description('true: only policies that are enabled; false: only the others.'),
  target_id: uuid().description('Only policies for this target. Policies for every target do not count.'),
};
const orderQuery = Joi.object<Omit<OrderFilter, 'enabled'> & { readonly enabled?: 'true' | 'false' }>(orderMembers);

/** Reads the query without the members of the page. Throws AppError `invalid_request`. */
export function readOrderFilter({ limit: _, cursor: __, ...query }: Readonly<Record<string, unknown>>): OrderFilter {
  const { enabled, ...others } = validate(orderQuery, query);
  return { ...others, ...(enabled === undefined ? {} : { enabled: enabled === 'true' }) };
}

export interface OrderedPolicyJson {
  readonly position: number;
  readonly policy: PolicyJson;
}

export const orderedJson = ({ position, policy }: OrderedPolicy): OrderedPolicyJson => ({ position, policy: policyJson(policy) });

/** Reads back `policyJson` from recorded changes. Older changes lack some members. */
export function policyFromJson(json: Omit<PolicyJson, Newer> & Partial<Pick<PolicyJson, Newer>>): StoredPolicy {
  return {
    ...json,
    managed_as: json.managed_as ?? null,
    drift_since: json.drift_since ?? null,
    created_at: Date.parse(json.created_at),
    updated_at: Date.parse(json.updated_at),
  };
}
