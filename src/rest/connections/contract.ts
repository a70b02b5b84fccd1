/** Users' own accounts at targets: who has connected one, and the gateway's client at the authorization server. Tokens are never shown. */
import Joi from 'joi';
import { model } from '../../base/validate.ts';
import { CONNECTION_PROBLEMS, type ConnectionRow } from '../../targets/connection-store.ts';
import { type ConnectionJson, connectionJson } from '../../targets/connections.ts';
import { get, getWithToken, many, nothing, type Operations, one } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

const SECRET_MAX = 4096;

export const clientSecret = model<{ client_secret: string }>('AccountClientSecret', {
  client_secret: Joi.string()
    .max(SECRET_MAX)
    .pattern(/^[\x20-\x7e]+$/)
    .required()
    .messages({ 'string.pattern.base': 'must be printable ASCII' })
    .description('The secret that the authorization server gave for `own_accounts.client_id`. It is never shown.'),
}).required();

const problem = s.described(
  '`refused`: the authorization server no longer accepts the account. `interrupted`: the gateway was interrupted while it renewed the access, and could not renew it again. `scope`: the target asks for more rights. In each case the user must connect the account again. null: no problem is known.',
  s.orNull(s.oneOf(CONNECTION_PROBLEMS)),
);

const Connection = s.model<ConnectionJson>('Connection', {
  id: s.uuid,
  user_id: s.uuid,
  issuer: s.described('The authorization server that knows the account.', s.string),
  scopes: s.listOf(s.string),
  problem,
  connected_at: s.time,
  renewed_at: s.described('When the authorization server last gave a token.', s.time),
});
export type OwnConnectionJson = ReturnType<typeof ownConnectionJson>;

export function ownConnectionJson(row: ConnectionRow | null, target: string | null, connect_url: string | null) {
  const { id, issuer, scopes, problem, connected_at } = row === null ? NONE : connectionJson(row);
  return { id, target, issuer, scopes, problem, connected_at, connect_url };
}

const NONE = { id: null, issuer: null, scopes: [], problem: null, connected_at: null } as const;

const OwnConnection = s.model<OwnConnectionJson>('OwnConnection', {
  id: s.described('null: no account is connected.', s.orNull(s.uuid)),
  target: s.described('null: the caller may no longer use the target of this connection.', s.orNull(s.targetName)),
  issuer: s.orNull(s.string),
  scopes: s.listOf(s.string),
  problem,
  connected_at: s.orNull(s.time),
  connect_url: s.described('Where the caller connects an account, signed in to the gateway in a browser.', s.orNull(s.string)),
});
export interface AccountClientJson {
  readonly redirect_uri: string;
  readonly metadata_url: string;
  readonly client_id: string | null;
  readonly has_secret: boolean;
}

const AccountClient = s.model<AccountClientJson>('AccountClient', {
  redirect_uri: s.described('To be registered at the authorization server.', s.string),
  metadata_url: s.described('The client ID metadata document of the gateway for this target.', s.string),
  client_id: s.described('The configured client; null: the gateway registers itself.', s.orNull(s.string)),
  has_secret: s.described('Whether a secret is stored for the configured client and issuer.', s.boolean),
});

export const CONNECTION_OPERATIONS: Operations = {
  'GET /api/connections': getWithToken(
    'listOwnConnections',
    "List the caller's own accounts at targets, and the targets that need one.",
    many(OwnConnection),
  ),
  'DELETE /api/connections/{id}': {
    id: 'deleteOwnConnection',
    summary: "Disconnect the caller's own account. Its tokens are revoked at the authorization server.",
    access: 'unlimited token',
    gives: { 204: nothing() },
  },
  'GET /api/targets/{id}/connections': get('listConnections', 'List who has connected an account at a target.', many(Connection)),
  'DELETE /api/targets/{id}/connections/{connection}': {
    id: 'deleteConnection',
    access: 'admin',
    summary: "End a user's connection. Its tokens are revoked at the authorization server.",
    gives: { 204: nothing() },
  },
  'GET /api/targets/{id}/account-client': get(
    'getAccountClient',
    'Get what an authorization server must know of the gateway for a target with own accounts.',
    one(AccountClient),
  ),
  'PUT /api/targets/{id}/account-client': {
    id: 'setAccountClientSecret',
    access: 'admin',
    summary: 'Set the secret of the client that `own_accounts` names.',
    takes: clientSecret,
    gives: { 200: one(AccountClient) },
  },
  'DELETE /api/targets/{id}/account-client': {
    id: 'deleteAccountClientSecret',
    access: 'admin',
    summary: 'Delete the secret of the client that `own_accounts` names.',
    gives: { 204: nothing() },
  },
};
