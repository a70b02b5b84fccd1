/** Accounts, API tokens, and the keys that sign tokens. */
import { TOKEN_NAME_MAX } from '../../auth/token-store.ts';
import { model, text, uuid } from '../../base/validate.ts';
import { email, newEmail, newPassword, password } from '../../users/document.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { getWithToken, header, many, nothing, type Operations, one } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { User } from '../users/contract.ts';

interface Account {
  readonly email: string;
  readonly password: string;
}

export const newAccount = model<Account>('NewAccount', {
  email: newEmail().required(),
  password: newPassword().required(),
}).required();
export const account = model<Account>('Account', { email: email().required(), password: password().required() }).required();
export const passwordChange = model<{ current_password: string; new_password: string }>('PasswordChange', {
  current_password: password().required(),
  new_password: newPassword().required(),
}).required();
export const newApiToken = model<{ name: string }>('NewApiToken', { name: text(TOKEN_NAME_MAX).required() }).required();
export const tokenQuery = {
  user_id: uuid().description('Lists the tokens of this user instead. Only administrators may do this.'),
};

const Login = s.model('Login', { user: User, token: s.described('A JWT that is valid for 12 hours.', s.string) });
const ApiToken = s.model('ApiToken', { id: s.uuid, name: s.string, created_at: s.time });
const CreatedApiToken = s.model('CreatedApiToken', {
  api_token: ApiToken,
  token: s.described('A JWT that does not expire. It is shown only once.', s.string),
});
const Key = s.model('Key', { kid: s.string, created_at: s.time });

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
  'PUT /api/auth/password': {
    id: 'changePassword',
    summary: 'Change the password. Revokes the other login tokens of the user.',
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
  'POST /api/keys/rotate': {
    id: 'rotateSigningKey',
    summary: 'Make a new signing key. Earlier keys still verify the tokens that they signed.',
    gives: { 201: one(Key) },
  },
};
