/** What requests say about users, and users as the API shows them. */
import Joi from 'joi';
import { text } from '../http/validate.ts';
import type { User } from './store.ts';

export interface UserDocument {
  readonly id: string;
  readonly email: string;
  readonly role: string;
  readonly groups: readonly string[];
  readonly enabled: boolean;
  /** RFC 3339. */
  readonly created_at: string;
  readonly updated_at: string;
}

/** In the order in which the API shows them. */
export function userDocument(user: User): UserDocument {
  return {
    id: user.id,
    email: user.email,
    role: user.role,
    groups: user.groups,
    enabled: user.enabled,
    created_at: new Date(user.created_at).toISOString(),
    updated_at: new Date(user.updated_at).toISOString(),
  };
}

/** In characters; `name`: of a role or a group. */
export const USER_LIMITS = { email: 254, passwordMin: 8, password: 256, name: 256 } as const;
const FACTS_MAX_BYTES = 4096;

/** Trimmed. Whether the address exists shows only when mail is sent to it, so only the plausible is asked for. */
export const email = (): Joi.StringSchema =>
  text(USER_LIMITS.email * 2).custom((value: string, helpers) => {
    const trimmed = value.trim();
    // In lower case, the form that is compared, some letters become two.
    if (Math.max([...trimmed].length, [...trimmed.toLowerCase()].length) > USER_LIMITS.email)
      return helpers.message({ custom: `must have at most ${USER_LIMITS.email} characters` });
    if (!/^[^@\s\p{Cf}]+@[^@\s\p{Cf}]+$/u.test(trimmed)) return helpers.message({ custom: 'must be an e-mail address' });
    return trimmed;
  });

/**
 * Beside white space and format characters: what is not drawn by definition, what has no glyph that everybody has, and the
 * blanks among letters and symbols (Braille, ideographic half fill, Egyptian, Khitan, musical, object replacement).
 */
const UNSEEN = /[\p{Default_Ignorable_Code_Point}\p{Cn}\p{Co}\u2800\u303f\ufffc\u{13441}\u{13442}\u{16fe4}\u{1d159}]/u;

/** For a user to be made: nobody, the audit log neither, may see two users as one. Users who have such an e-mail keep it. */
export const newEmail = (): Joi.StringSchema =>
  email().custom((value: string, helpers) => {
    if (UNSEEN.test(value)) return helpers.message({ custom: 'must not contain characters that cannot be seen' });
    // Other forms are drawn like this one.
    if (value !== value.normalize('NFC')) return helpers.message({ custom: 'must be in Unicode normalization form C' });
    return value;
  });

/** For a password to be set. */
export const newPassword = (): Joi.StringSchema =>
  text(USER_LIMITS.password).custom((value: string, helpers) =>
    [...value].length < USER_LIMITS.passwordMin
      ? helpers.message({ custom: `must have at least ${USER_LIMITS.passwordMin} characters` })
      : value,
  );

/** For a password to be checked: shorter ones are wrong, not malformed. */
export const password = (): Joi.StringSchema => text(USER_LIMITS.password);

const role = (): Joi.StringSchema => text(USER_LIMITS.name);
const groups = (): Joi.ArraySchema =>
  Joi.array().items(text(USER_LIMITS.name)).unique().messages({ 'array.unique': 'repeats the group at {#dupePos}' });

/** Why the two do not fit a token that must fit a header; null when they do. */
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

export const newUser = Joi.object<NewUser>({
  email: newEmail().required(),
  password: newPassword().required(),
  role: role().default('user'),
  groups: groups().default([]),
}).required();

/** The members that are shown but never written: accepted as they are, so that what was read can be put back. */
export const READ_ONLY = ['id', 'email', 'created_at', 'updated_at'] as const;

export interface UserUpdate extends Partial<Record<(typeof READ_ONLY)[number], unknown>> {
  readonly role?: string;
  readonly groups?: readonly string[];
  readonly enabled?: boolean;
}

export const userUpdate = Joi.object<UserUpdate>({
  id: Joi.any(),
  email: Joi.any(),
  role: role(),
  groups: groups(),
  enabled: Joi.boolean(),
  created_at: Joi.any(),
  updated_at: Joi.any(),
}).required();
