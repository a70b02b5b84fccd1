/** Users in the REST API: what a request may contain, and the JSON of an answer. */
import Joi from 'joi';
import { etagOf } from '../base/etag.ts';
import { asTimestamp, model, readOnly, text, uuid } from '../base/validate.ts';
import type { User } from './user-store.ts';

export type UserDocument = ReturnType<typeof userDocument>;

/** The members are in the order of the API. */
export const userDocument = (user: User) => {
  const { id, issuer, subject, email, role, groups, facts, valid_after, enabled, created_at, updated_at } = user;
  return {
    ...{ id, email, role, groups, enabled, issuer, subject },
    // A local account has only what administrators gave.
    given_role: facts === null ? role : facts.given_role,
    given_groups: facts === null ? groups : facts.given_groups,
    refusal: facts?.refusal ?? null,
    valid_after: valid_after === null ? null : new Date(valid_after).toISOString(),
    created_at: new Date(created_at).toISOString(),
    updated_at: new Date(updated_at).toISOString(),
  };
};

export const userEtag = (user: User): string => etagOf(userDocument(user));

/** Limits in characters. `name` is for roles and groups. */
export const USER_LIMITS = { email: 254, passwordMin: 8, password: 256, name: 256 } as const;
const FACTS_MAX_BYTES = 4096;

/** Trims the address. Only mail shows whether an address exists, so the check is only for a plausible form. */
export const email = (): Joi.StringSchema =>
  text(USER_LIMITS.email * 2)
    .custom((value: string, helpers) => {
      const trimmed = value.trim();
      // E-mails are compared in lower case, and some letters become two in lower case.
      if (Math.max([...trimmed].length, [...trimmed.toLowerCase()].length) > USER_LIMITS.email)
        return helpers.message({ custom: `must have at most ${USER_LIMITS.email} characters` });
      if (!/^[^@\s\p{Cf}]+@[^@\s\p{Cf}]+$/u.test(trimmed)) return helpers.message({ custom: 'must be an e-mail address' });
      return trimmed;
    })
    .meta({ maxLength: USER_LIMITS.email });

/**
 * Invisible characters besides white space and format characters: those that are never drawn, those without a common glyph, and
 * blanks among letters and symbols (Braille, ideographic half fill, Egyptian, Khitan, musical, object replacement).
 */
const UNSEEN = /[\p{Default_Ignorable_Code_Point}\p{Cn}\p{Co}\u2800\u303f\ufffc\u{13441}\u{13442}\u{16fe4}\u{1d159}]/u;

/** The e-mail of a new user. Two users must not look the same to people or in the audit log. Existing users keep theirs. */
export const newEmail = (): Joi.StringSchema =>
  email().custom((value: string, helpers) => {
    if (UNSEEN.test(value)) return helpers.message({ custom: 'must not contain characters that cannot be seen' });
    // Other normalization forms look the same.
    if (value !== value.normalize('NFC')) return helpers.message({ custom: 'must be in Unicode normalization form C' });
    return value;
  });

/** A new password. */
export const newPassword = (): Joi.StringSchema =>
  text(USER_LIMITS.password)
    .custom((value: string, helpers) =>
      [...value].length < USER_LIMITS.passwordMin
        ? helpers.message({ custom: `must have at least ${USER_LIMITS.passwordMin} characters` })
        : value,
    )
    .meta({ minLength: USER_LIMITS.passwordMin });

/** A password to check. A short one is wrong, but not malformed. */
export const password = (): Joi.StringSchema => text(USER_LIMITS.password);

const role = (): Joi.StringSchema => text(USER_LIMITS.name);
const groups = (): Joi.ArraySchema =>
  Joi.array().items(text(USER_LIMITS.name)).unique().messages({ 'array.unique': 'repeats the group at {#dupePos}' });

/** Returns why role and groups are too large: they are part of the token, which must fit in a header; null: they fit. */
export function factsTooLarge(facts: { readonly role: string; readonly groups: readonly string[] }): string | null {
  const bytes = Buffer.byteLength(JSON.stringify({ role: facts.role, groups: facts.groups }));
  return bytes > FACTS_MAX_BYTES ? `role and groups together must have at most ${FACTS_MAX_BYTES} bytes as JSON` : null;
}

export interface NewUser {
  readonly email: string;
  readonly password: string;
  readonly role: string;
  readonly groups: readonly string[];
}

export const newUser = model<NewUser>('NewUser', {
  email: newEmail().required(),
  password: newPassword().required(),
  role: role().default('user').description('Absent: `user`.'),
  groups: groups().default([]),
}).required();

export interface UserFilter {
  readonly email?: string;
  readonly text?: string;
  readonly role?: string;
  readonly group?: readonly string[];
}

/** Which users `GET /api/users` lists. */
export const userFilter: { readonly [Name in keyof UserFilter]-?: Joi.Schema } = {
  email: text(USER_LIMITS.email).description(
    'Only users with this e-mail, in any case. Accounts of different providers may have the same.',
  ),
  text: text(256).description('A part of the e-mail, in any case of ASCII letters, or the whole id.'),
  role: text(USER_LIMITS.name).description('Only users with this role.'),
  group: Joi.array()
    .items(text(USER_LIMITS.name))
    .max(20)
    .single()
    .description('Only users in this group. If it is given several times, only users in all of these groups.'),
};

/** Members that an update may not change. It may repeat their values, so that a client can send back what it has read. */
export const READ_ONLY = ['id', 'email', 'issuer', 'subject', 'refusal', 'valid_after', 'created_at', 'updated_at'] as const;

export interface UserUpdate extends Partial<Record<(typeof READ_ONLY)[number], unknown>> {
  readonly role?: string;
  readonly groups?: readonly string[];
  readonly given_role?: string | null;
  readonly given_groups?: readonly string[];
  readonly enabled?: boolean;
}

/** Checks no more than that the value is the one that was read. */
const asRead = (shown: Joi.Schema): Joi.Schema => readOnly(Joi.any().meta({ as: shown }));

export const userUpdate = model<UserUpdate>('UserUpdate', {
  id: asRead(uuid()),
  email: asRead(email().allow(null)),
  issuer: asRead(Joi.string()),
  subject: asRead(Joi.string()),
  role: role().description('For a user of a provider, this sets `given_role`.'),
  groups: groups().description(
    'All groups. Only those of a local account can be changed; for a user of a provider, change `given_groups`.',
  ),
  given_role: role()
    .allow(null)
    .description('The role that an administrator gives to a user of a provider; null: the provider decides.'),
  given_groups: groups().description('The groups that administrators give, in addition to those of the provider.'),
  enabled: Joi.boolean(),
  refusal: asRead(Joi.string().allow(null)),
  valid_after: asRead(asTimestamp(Joi.string()).allow(null)),
  created_at: asRead(asTimestamp(Joi.string())),
  updated_at: asRead(asTimestamp(Joi.string())),
}).required();
