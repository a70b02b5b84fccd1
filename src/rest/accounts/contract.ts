/** Accounts, API tokens, and the keys that sign tokens. */
import Joi from 'joi';
import type { BrowserSession as StoredBrowserSession } from '../../auth/browser-store.ts';
import type { KeyRing } from '../../auth/keys.ts';
import { RIGHTS } from '../../auth/rights.ts';
import { model, uuid } from '../../base/validate.ts';
import { RESOURCE_TYPES } from '../../engine/compile/policy.ts';
import { email, newEmail, newPassword, password } from '../../users/document.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, getWithToken, header, many, nothing, type Operations, one } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { User } from '../users/contract.ts';
import { ApiToken, newApiToken } from './api-tokens.ts';

interface Account {
  readonly email: string;
  readonly password: string;
}

export const newAccount = model<Account & { readonly only_first?: boolean }>('NewAccount', {
  email: newEmail().required(),
  password: newPassword().required(),
  only_first: Joi.boolean()
    .strict()
    .description('true: make the account only if it becomes the first administrator; 403 `registration_closed` otherwise.'),
}).required();
export const account = model<Account>('Account', { email: email().required(), password: password().required() }).required();
export const passwordChange = model<{ current_password: string; new_password: string }>('PasswordChange', {
  current_password: password().required(),
  new_password: newPassword().required(),
}).required();
export const tokenQuery = {
  user_id: uuid().description('Lists the tokens of this user instead. This needs the right `read`.'),
};

export const browserSessionQuery = {
  user_id: uuid().description(
    'The sessions of this user instead. To list them needs the right `read`, to end them the role `admin`.',
  ),
};

const Login = s.model('Login', { user: User, token: s.described('A JWT that is valid for 12 hours.', s.string) });
const CreatedApiToken = s.model('CreatedApiToken', {
  api_token: ApiToken,
  token: s.described('A JWT. It is shown only once.', s.string),
});
const OwnRights = s.model('OwnRights', {
  admin: s.described('Whether the caller may do everything.', s.boolean),
  rights: s.listOf(
    s.model('OwnRight', {
      right: s.oneOf(RIGHTS),
      owner: s.described('null: every owner, and policies without one; or the right has no owner.', s.orNull(s.string)),
    }),
  ),
  endpoints: s.described(
    'The names of the targets to which the token is limited; only `*`: policies alone decide. A target of the list still needs a policy.',
    s.listOf(s.string),
  ),
});
const usable = { target: s.targetName, endpoint: s.described('The address for MCP clients.', s.string) };
const UsableTarget = s.model('UsableTarget', usable);
const OwnAccess = s.model('OwnAccess', {
  ...usable,
  names: s.described(
    'What the target last listed through this replica to callers with the same credentials, and policies allow the caller. Empty until a client has asked for a list.',
    s.listOf(s.model('UsableName', { resource_type: s.oneOf(RESOURCE_TYPES), resource_name: s.string })),
  ),
  more: s.described('Whether there are more names than `limit` allows.', s.boolean),
});

const count = Joi.string().pattern(/^[0-9]{1,6}$/);
const ownAccessMembers = {
  skip: count.description('How many of the names to leave out, the first ones. Absent: none.'),
  limit: count.description('At most so many names. Absent: all.'),
};
export const ownAccessQuery = Joi.object<{ readonly skip?: string; readonly limit?: string }>(ownAccessMembers);

export type BrowserSessionDocument = ReturnType<typeof browserSessionDocument>;

export const browserSessionDocument = ({ id, method, agent, address, signed_in_at, seen_at }: StoredBrowserSession) => ({
  ...{ id, method, agent, address },
  signed_in_at: new Date(signed_in_at).toISOString(),
  seen_at: new Date(seen_at).toISOString(),
});

const BrowserSession = s.model<BrowserSessionDocument>('BrowserSession', {
  id: s.uuid,
  method: s.described('`password`, or the name of the provider.', s.string),
  agent: s.described('What the browser says it is.', s.string),
  address: s.described('The IP address of the sign-in.', s.string),
  signed_in_at: s.time,
  seen_at: s.described('The time of the last request, to within a minute.', s.time),
});
const Key = s.model('Key', { kid: s.string, created_at: s.time });
export const signingKeyDocument = (
  { kid, createdAt, retiredAt }: Awaited<ReturnType<KeyRing['list']>>[number],
  tokens: ReadonlyMap<string, number>,
) => ({
  kid,
  created_at: new Date(createdAt).toISOString(),
  retired_at: retiredAt === null ? null : new Date(retiredAt).toISOString(),
  api_tokens: tokens.get(kid) ?? 0,
});
export type SigningKeyDocument = ReturnType<typeof signingKeyDocument>;

const SigningKey = s.model<SigningKeyDocument>('SigningKey', {
  kid: s.described('The id of the key, which the header of a token names.', s.string),
  created_at: s.time,
  retired_at: s.described(
    'Since when the key signs no more. Login tokens that it signed are valid for 12 hours longer, API tokens until they end. null: the key signs now.',
    s.orNull(s.time),
  ),
  api_tokens: s.described('How many API tokens that it signed are valid now.', s.integer),
});

export const ACCOUNT_OPERATIONS: Operations = {
  'POST /api/auth/register': {
    id: 'register',
    summary: 'Create an account. The first user becomes the administrator.',
    access: 'open',
    takes: newAccount,
    gives: { 201: one(User) },
    refuses: [403, 409, 429],
    headers: [
      header('Portcullis-Setup-Code', 'The setup code. It is required for the first account if the gateway is not on loopback.'),
    ],
  },
  'POST /api/auth/login': {
    id: 'logIn',
    summary: 'Log in.',
    access: 'open',
    takes: account,
    gives: { 200: one(Login) },
    refuses: [401, 429],
  },
  'POST /api/auth/logout': {
    id: 'logOut',
    summary: 'Revoke the login token of this request.',
    access: 'login token',
    gives: { 204: nothing() },
  },
  'GET /api/auth/me': getWithToken('getMe', 'Get the user record of the caller.', one(User)),
  'GET /api/auth/rights': getWithToken('getOwnRights', 'Get what the token of this request may administer.', one(OwnRights)),
  'GET /api/auth/access': getWithToken('listOwnTargets', 'List the targets that the caller may use.', many(UsableTarget)),
  'GET /api/auth/access/{target}': getWithToken(
    'getOwnAccess',
    'Get what the caller may use of a target. A target that the caller may not use is not found.',
    one(OwnAccess),
    { query: queryOf(ownAccessMembers) },
  ),
  'PUT /api/auth/password': {
    id: 'changePassword',
    summary: 'Change the password. Ends the other logins, the browser sessions and the grants of the user.',
    access: 'login token',
    takes: passwordChange,
    gives: { 204: nothing() },
    refuses: [429],
  },
  'GET /api/auth/tokens': getWithToken('listApiTokens', "List the caller's API tokens.", many(ApiToken), {
    query: queryOf(tokenQuery),
  }),
  'POST /api/auth/tokens': {
    id: 'createApiToken',
    summary: 'Create an API token.',
    // An attacker with a leaked API token must not be able to make tokens that outlive its revocation, or to lock the owner out.
    access: 'login token',
    takes: newApiToken,
    gives: { 201: one(CreatedApiToken) },
    refuses: [409, 429],
  },
  'DELETE /api/auth/tokens/{id}': {
    id: 'revokeApiToken',
    summary: 'Revoke an API token.',
    access: 'login token',
    gives: { 204: nothing() },
  },
  'GET /api/auth/browser-sessions': getWithToken(
    'listBrowserSessions',
    "List the caller's open browser sessions, the last used first.",
    many(BrowserSession),
    { access: 'unlimited token', query: queryOf(browserSessionQuery) },
  ),
  'DELETE /api/auth/browser-sessions': {
    id: 'endBrowserSessions',
    summary: "End all of the caller's browser sessions.",
    access: 'login token',
    gives: { 204: nothing() },
    query: queryOf(browserSessionQuery),
  },
  'DELETE /api/auth/browser-sessions/{id}': {
    id: 'endBrowserSession',
    summary: 'End a browser session. An administrator may end the session of any user.',
    access: 'login token',
    gives: { 204: nothing() },
  },
  'GET /api/keys': get('listSigningKeys', 'List the keys that sign tokens, newest first.', many(SigningKey)),
  'POST /api/keys/rotate': {
    id: 'rotateSigningKey',
    access: 'admin',
    summary: 'Make a new signing key. Earlier keys still verify the tokens that they signed.',
    gives: { 201: one(Key) },
  },
};
