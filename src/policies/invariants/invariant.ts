/** Invariants: statements over all requests. No change of the policies may add a request that breaks one. Pure. */
import Joi from 'joi';
import { asTimestamp, instant, model, readOnly, text, uuid, validate } from '../../base/validate.ts';
import type { Policy, StoredPolicy } from '../../engine/compile/policy.ts';
import type { Guarded, InvariantSubject, Never } from '../analysis/invariants.ts';
import { newSubject, policyMembers, subjectKey, timestamp } from '../schema.ts';

export const INVARIANT_LIMITS = { invariants: 100, reason: 1024, subjects: 100, targets: 100, exceptions: 100 } as const;

/** A policy that may allow what the invariant forbids. */
export interface Exception {
  /** The id of the policy. */
  readonly policy: string;
  readonly reason: string;
  /** Milliseconds since the epoch. From then on, the exception no longer counts. */
  readonly expires_at: number;
}

export interface InvariantDocument {
  readonly name: string;
  readonly reason: string;
  readonly never: Never;
  readonly exceptions: readonly Exception[];
  readonly enabled: boolean;
}

export interface Invariant extends InvariantDocument {
  readonly id: string;
  /** Advances with each change. */
  readonly version: number;
  readonly created_at: number;
  readonly updated_at: number;
}

export interface InvariantChange {
  readonly before: Invariant | null;
  readonly after: Invariant | null;
}

/** What a change of invariants can refer to. */
export interface InvariantState {
  readonly invariants: readonly Invariant[];
  readonly policies: readonly StoredPolicy[];
  readonly targets: readonly { readonly id: string; readonly name: string }[];
}

/** The invariant as the analysis needs it, at this time. */
export const guardedAt = ({ never, exceptions }: InvariantDocument, now: number): Guarded => ({
  never,
  excepted: new Set(exceptions.filter(({ expires_at }) => expires_at > now).map(({ policy }) => policy)),
});

const EVERYONE_KEY = subjectKey({ subject_type: 'everyone' });

/** Whether `after` obviously forbids no request that `before` does not forbid. */
export function loosens(before: InvariantDocument, after: InvariantDocument, now: number): boolean {
  if (!after.enabled) return true;
  if (!before.enabled) return false;
  const [was, is] = [before.never, after.never];
  const among = (others: readonly InvariantSubject[]): ((subject: InvariantSubject) => boolean) => {
    const keys = new Set(others.map(subjectKey));
    return (subject) => keys.has(EVERYONE_KEY) || keys.has(subjectKey(subject));
  };
  const excepted = guardedAt(after, now).excepted;
  return (
    is.subjects.every(among(was.subjects)) &&
    was.except.subjects.every(among(is.except.subjects)) &&
    was.except.targets.every((target) => is.except.targets.includes(target)) &&
    (was.targets === null || is.targets?.every((target) => was.targets?.includes(target)) === true) &&
    (was.resource_type === 'all' || was.resource_type === is.resource_type) &&
    (was.resource_pattern === null || was.resource_pattern === is.resource_pattern) &&
    [...guardedAt(before, now).excepted].every((policy) => excepted.has(policy))
  );
}

/**
 * Whether `after` may allow what `before` does not, if it is enabled and other policies change. False only if each member of `after`
 * obviously allows no more.
 */
export function widens(before: Policy, after: Policy): boolean {
  if (after.effect === 'deny') return false;
  const callers = new Set(before.subjects.map(subjectKey));
  const hasEveryone = before.subjects.some(({ subject_type }) => subject_type === 'everyone');
  return !(
    before.effect === 'allow' &&
    after.priority <= before.priority &&
    (before.target_id === null || before.target_id === after.target_id) &&
    (before.resource_type === 'all' || before.resource_type === after.resource_type) &&
    (before.resource_pattern === null || before.resource_pattern === after.resource_pattern) &&
    (hasEveryone || after.subjects.every((subject) => callers.has(subjectKey(subject))))
  );
}

const listOf = (subject: Joi.Schema) => Joi.array().items(subject).max(INVARIANT_LIMITS.subjects);
const NO_EVERYONE = { custom: 'must not be everyone: the invariant would cover no caller' };
const targets = Joi.array().items(uuid()).max(INVARIANT_LIMITS.targets);
const { name, resource_type, resource_pattern, enabled } = policyMembers;

/** The members with the same meaning in every form of an invariant. */
export const invariantMembers = {
  name: name.description('For people. No two invariants have the same name.'),
  reason: text(INVARIANT_LIMITS.reason).required().description('Refused callers read it.'),
  resource_type: resource_type.description('The kind of objects that the invariant covers.'),
  resource_pattern,
  enabled: enabled.description('false: the gateway does not check the invariant.'),
  expires_at: instant().required().description('From then on, the exception no longer counts.'),
};

const never = model<NeverInput>('InvariantNever', {
  subjects: listOf(newSubject).min(1).required().description('The invariant covers callers that match one of these subjects.'),
  except: model<Partial<Never['except']>>('InvariantExcept', {
    subjects: listOf(
      newSubject.custom((subject, helpers) => (subject.subject_type === 'everyone' ? helpers.message(NO_EVERYONE) : subject)),
    ).description('The invariant does not cover callers that match one of these subjects.'),
    targets: targets.description('Ids of targets that the invariant does not cover.'),
  }),
  targets: targets.min(1).allow(null).description('Ids. Absent or null: every target, also those that are created later.'),
  resource_type: invariantMembers.resource_type,
  resource_pattern: invariantMembers.resource_pattern,
});

const exceptions = Joi.array()
  .items(
    model<Exception>('InvariantException', {
      policy: uuid()
        .required()
        .description(
          'The id of a policy. The exception covers everything that this policy allows. Only holders of `boundaries:manage` can let it allow more.',
        ),
      reason: text(INVARIANT_LIMITS.reason).required(),
      expires_at: invariantMembers.expires_at,
    }),
  )
  .unique('policy')
  .max(INVARIANT_LIMITS.exceptions)
  .messages({ 'array.unique': 'names the same policy as an earlier exception' });

export const restMembers = {
  name: invariantMembers.name,
  reason: invariantMembers.reason,
  never: never.required(),
  exceptions: exceptions.description('Policies that may allow what the invariant forbids.'),
  enabled: invariantMembers.enabled,
};

type SubjectInput = Omit<InvariantSubject, 'subject_value'> & Partial<Pick<InvariantSubject, 'subject_value'>>;
interface NeverInput extends Pick<Never, 'resource_type'>, Partial<Pick<Never, 'targets' | 'resource_pattern'>> {
  readonly subjects: readonly SubjectInput[];
  readonly except?: { readonly subjects?: readonly SubjectInput[]; readonly targets?: readonly string[] };
}

interface InvariantInput extends Omit<InvariantDocument, 'never' | 'exceptions' | 'enabled'> {
  readonly never: NeverInput;
  readonly exceptions?: readonly Exception[];
  readonly enabled?: boolean;
}

export const newInvariant = model<InvariantInput>('NewInvariant', restMembers).required();
const optional = Object.fromEntries(Object.entries(restMembers).map(([key, member]) => [key, member.optional()]));
export const changedInvariant = model<InvariantUpdate>('InvariantUpdate', {
  id: readOnly(uuid()),
  ...(optional as typeof restMembers),
  created_at: readOnly(asTimestamp(Joi.string())),
  updated_at: readOnly(asTimestamp(Joi.string())),
}).required();

interface InvariantUpdate extends Partial<InvariantInput> {
  readonly id?: string;
  readonly created_at?: string;
  readonly updated_at?: string;
}

/** Throws AppError `invalid_request`, as `readInvariantUpdate` does. */
export function readInvariant(value: unknown): InvariantDocument {
  const { name, reason, never, exceptions = [], enabled = true } = validate(newInvariant, value);
  return { name, reason, never: readNever(never), exceptions: exceptions.map(orderedException), enabled };
}

/** An omitted member stays unchanged. */
export function readInvariantUpdate(value: unknown) {
  const { id, created_at, updated_at, never, exceptions, ...rest } = validate(changedInvariant, value);
  const members: Partial<InvariantDocument> = {
    ...rest,
    ...(never === undefined ? {} : { never: readNever(never) }),
    ...(exceptions === undefined ? {} : { exceptions: exceptions.map(orderedException) }),
  };
  return { members, readOnly: { id, created_at, updated_at } };
}

/** The same members in a fixed order, so that equal exceptions have the same JSON. */
export const orderedException = ({ policy, reason, expires_at }: Exception): Exception => ({ policy, reason, expires_at });

function readNever({ subjects, except = {}, targets = null, resource_type, resource_pattern = null }: NeverInput): Never {
  const ready = (some: readonly SubjectInput[]): InvariantSubject[] =>
    some.map(({ subject_type, subject_value = null }) => ({ subject_type, subject_value }));
  return {
    subjects: ready(subjects),
    except: { subjects: ready(except.subjects ?? []), targets: except.targets ?? [] },
    ...{ targets, resource_type, resource_pattern },
  };
}

export type InvariantJson = ReturnType<typeof invariantJson>;

export const invariantJson = ({ id, name, reason, never, exceptions, enabled, created_at, updated_at }: Invariant) => ({
  ...{ id, name, reason, never },
  exceptions: exceptions.map((exception) => ({ ...exception, expires_at: timestamp(exception.expires_at) })),
  enabled,
  created_at: timestamp(created_at),
  updated_at: timestamp(updated_at),
});
