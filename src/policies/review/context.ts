/**
 * The policies of other owners without names of people, as a file: lint, tests and comparisons of a folder then see conflicts with them
 * without a gateway. Pure.
 *
 * The file has no names, descriptions or file names of policies, because people's names may be in them. The pseudonym of a user is a
 * hash: it tells which policies mean the same user, and whether they mean a user whose id the reader knows already.
 */
import { createHash } from 'node:crypto';
import Joi from 'joi';
import { readJsonText } from '../../base/json/json.ts';
import { checked, uuid } from '../../base/validate.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { OWNER, ownerIn } from '../files/file.ts';
import { POLICY_LIMITS, policyMembers, type SubjectDocument, subjectValues } from '../schema.ts';
import { type OtherPolicy, type Surroundings, targetId } from '../sets/offline.ts';
import type { TargetName } from '../sets/planning.ts';
import { isDay } from './ignores.ts';

type ContextSubject = 'everyone' | { role: string } | { group: string } | { user_pseudonym: string };

export interface ContextPolicy extends Pick<StoredPolicy, 'id' | 'resource_type' | 'resource_pattern' | 'effect' | 'priority'> {
  /** null: the policy belongs to no file. */
  readonly owner: string | null;
  /** The name of the target; null: every target. */
  readonly target: string | null;
  readonly subjects: readonly ContextSubject[];
}

export interface PolicyContext {
  readonly portcullis_context: typeof VERSION;
  /** The owner whose policies are left out, because the reader has them as files. */
  readonly owner: string;
  readonly revision: number;
  /** The day in UTC on which the revision was current. */
  readonly as_of: string;
  /** Sorted by id. Disabled policies are left out. */
  readonly policies: readonly ContextPolicy[];
  /** The hash of all other members. It finds damage and careless edits. It is not a signature. */
  readonly sha256: string;
}

const VERSION = 1;
const MAX_VALUES = 10_000_000;

export interface ContextParts {
  readonly owner: string;
  readonly revision: number;
  readonly today: string;
  readonly targets: readonly TargetName[];
}

/** Depends only on the policies of other owners, the revision and the day. */
export function contextOf(policies: readonly StoredPolicy[], { owner, revision, today, targets }: ContextParts): PolicyContext {
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  const others = policies
    .filter((policy) => policy.enabled && ownerIn(policy.managed_as) !== owner)
    .sort((a, b) => (a.id < b.id ? -1 : 1))
    .map((policy): ContextPolicy => {
      const { target_id, subjects } = policy;
      // Sorted by what is written: the order of ids would tell who registered first.
      const sorted = subjects
        .map((subject) => written(subject, owner))
        .sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1));
      return {
        ...{
          id: policy.id,
          owner: ownerIn(policy.managed_as),
          target: target_id === null ? null : (names.get(target_id) ?? target_id),
        },
        ...{ resource_type: policy.resource_type, resource_pattern: policy.resource_pattern },
        ...{ effect: policy.effect, priority: policy.priority, subjects: sorted },
      };
    });
  return sealed({ owner, revision, as_of: today, policies: others });
}

type Content = Pick<PolicyContext, 'owner' | 'revision' | 'as_of' | 'policies'>;

function sealed({ owner, revision, as_of, policies }: Content): PolicyContext {
  const content = { portcullis_context: VERSION, owner, revision, as_of, policies } as const;
  return { ...content, sha256: sha256(JSON.stringify(content)) };
}

function written({ subject_type, subject_value }: SubjectDocument, owner: string): ContextSubject {
  const value = subject_value ?? '';
  switch (subject_type) {
    case 'everyone':
      return 'everyone';
    case 'role':
      return { role: value };
    case 'group':
      return { group: value };
    case 'user':
      return { user_pseudonym: pseudonym(value, owner) };
  }
}

/** The ids of users are random, so they cannot be guessed. The owner makes files for different readers incomparable. */
const pseudonym = (userId: string, owner: string): string => sha256(`portcullis context ${owner} ${userId}`).slice(0, 32);

const sha256 = (text: string): string => createHash('sha256').update(text).digest('hex');

export const formatContext = (context: PolicyContext): string => `${JSON.stringify(context, null, 2)}\n`;

const one = (members: Joi.SchemaMap) => Joi.object(members).length(1);
const form = Joi.object<PolicyContext>({
  portcullis_context: Joi.valid(VERSION).required(),
  owner: Joi.string().pattern(OWNER).required(),
  revision: Joi.number().integer().min(0).required(),
  as_of: checked(Joi.string(), (value) => (isDay(value) ? null : 'as_of is not a day')).required(),
  policies: Joi.array()
    .items(
      Joi.object({
        id: uuid().required(),
        owner: Joi.string().pattern(OWNER).allow(null).required(),
        target: Joi.string().pattern(TARGET_NAME).allow(null).required(),
        resource_type: policyMembers.resource_type,
        resource_pattern: policyMembers.resource_pattern.required(),
        effect: policyMembers.effect,
        priority: policyMembers.priority,
        subjects: Joi.array()
          .items(
            Joi.valid('everyone'),
            one({ role: subjectValues.role }),
            one({ group: subjectValues.group }),
            one({ user_pseudonym: Joi.string().pattern(/^[0-9a-f]{32}$/) }),
          )
          .max(POLICY_LIMITS.subjects)
          .required(),
      }),
    )
    .unique('id')
    .required(),
  sha256: Joi.string().required(),
}).required();

/** Returns the context, or the reason why the text is refused. */
export function readContext(text: string): PolicyContext | string {
  const read = readJsonText(text, { maxValues: MAX_VALUES });
  if (!read.ok) return read.reason;
  const version = (Object(read.value) as Partial<PolicyContext>).portcullis_context;
  if (version !== VERSION) return `it must be a context of version ${VERSION}, which portcullis policies context writes`;
  const { value, error } = form.validate(read.value, { convert: false });
  if (error) return error.message;
  // The order of members counts for the hash.
  const policies = value.policies.map(
    ({ id, owner, target, resource_type, resource_pattern, effect, priority, subjects }): ContextPolicy => ({
      ...{ id, owner, target, resource_type, resource_pattern, effect, priority, subjects },
    }),
  );
  const context = sealed({ ...value, policies });
  return context.sha256 === value.sha256 ? context : 'it was changed after the gateway had made it: its hash is a different one';
}

/** `users`: ids of users that the reader's own files name. Policies that mean one of them get the id back. */
export function surroundingsOf(
  { owner, policies }: PolicyContext,
  users: Iterable<string>,
): Pick<Surroundings, 'owner' | 'others'> & { readonly targets: readonly string[] } {
  const ids = new Map([...users].map((id) => [pseudonym(id, owner), id]));
  const others = policies.map(
    ({ id, owner: of, target, subjects, ...rest }): OtherPolicy => ({
      ...rest,
      ...{ id, name: `${of === null ? 'policy' : `${of}'s policy`} ${id}`, description: null, enabled: true },
      ...{ managed_as: null, drift_since: null },
      ...{ target_id: target === null ? null : targetId(target), created_at: 0, updated_at: 0, owner: of },
      subjects: subjects.map((subject, i) => ({ id: `${id} ${i}`, ...readSubject(subject, ids) })),
    }),
  );
  return { owner, others, targets: policies.flatMap(({ target }) => target ?? []) };
}

function readSubject(
  subject: ContextSubject,
  ids: ReadonlyMap<string, string>,
): Pick<SubjectDocument, 'subject_type' | 'subject_value'> {
  if (subject === 'everyone') return { subject_type: 'everyone', subject_value: null };
  if ('role' in subject) return { subject_type: 'role', subject_value: subject.role };
  if ('group' in subject) return { subject_type: 'group', subject_value: subject.group };
  const { user_pseudonym: known } = subject;
  return { subject_type: 'user', subject_value: ids.get(known) ?? known };
}
