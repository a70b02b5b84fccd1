/** Companies' OpenID providers, and the accounts of their users. */
import Joi from 'joi';
import { identity, newProvider, providerMembers, providerUpdate } from '../../providers/document.ts';
import { FAULT_KINDS } from '../../providers/faults.ts';
import { schemasOf } from '../openapi/from-joi.ts';
import { get, many, nothing, type Operations, one, tagged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';
import { User } from '../users/contract.ts';

const { name, title, preset, issuer, enabled, client_id, ...settings } = schemasOf(providerMembers);
const Provider = s.model('Provider', {
  id: s.uuid,
  ...{ name, title, preset, issuer, enabled, client_id },
  client_secret_set: s.boolean,
  ...settings,
  ...s.times,
});
const ProviderHealth = s.model('ProviderHealth', {
  replica: s.described('The replica that answers. Each replica reads the keys itself, and knows only its own refusals.', s.uuid),
  status: s.described(
    '`failing`: the last read failed, and the keys that were read before still count. `down`: the gateway has no keys that it may use, so it refuses the tokens of the provider.',
    s.oneOf(['unknown', 'ok', 'failing', 'down']),
  ),
  read_at: s.orNull(s.time),
  failure: s.orNull(s.model('ProviderFailure', { at: s.time, message: s.string })),
  keys: s.listOf(s.model('ProviderKey', { kid: s.orNull(s.string), alg: s.orNull(s.string), type: s.string })),
  faults: s.described(
    'The last refusals of tokens and sign-ins, newest first.',
    s.listOf(
      s.model('ProviderFault', {
        kind: s.oneOf(FAULT_KINDS),
        message: s.string,
        user_message: s.string,
        count: s.integer,
        at: s.time,
      }),
    ),
  ),
});

const ScimStatus = s.model('ScimStatus', {
  base_url: s.described('What the directory needs as its base URL or tenant URL.', s.string),
  token_created_at: s.described('null: there is no token, so SCIM is off.', s.orNull(s.time)),
  users: s.described('How many users the directory has sent.', s.integer),
  groups: s.integer,
});
const ScimToken = s.model('ScimToken', {
  token: s.described('The gateway stores only a hash and cannot show the token again.', s.string),
  created_at: s.time,
  base_url: s.string,
});

export const noMembers = Joi.object({});

export const PROVIDER_OPERATIONS: Operations = {
  'GET /api/providers': get('listProviders', 'List all providers.', many(Provider)),
  'POST /api/providers': {
    id: 'createProvider',
    access: 'admin',
    summary: 'Register an OpenID provider. The preset sets the members that the request leaves out.',
    takes: newProvider,
    gives: { 201: one(Provider, 'ETag', 'Location') },
    refuses: [409],
  },
  'GET /api/providers/{id}': tagged('getProvider', 'Get a provider.', one(Provider, 'ETag')),
  'PUT /api/providers/{id}': {
    id: 'updateProvider',
    access: 'admin',
    summary:
      'Update a provider. Omitted members keep their values. Roles and groups of its users are derived again in the same change.',
    takes: providerUpdate,
    gives: { 200: one(Provider, 'ETag') },
    refuses: [409],
    conditional: true,
  },
  'DELETE /api/providers/{id}': {
    id: 'deleteProvider',
    access: 'admin',
    summary: 'Delete a provider. Its users stay in the list of users, and are refused.',
    gives: { 204: nothing() },
    conditional: true,
  },
  'GET /api/providers/{id}/health': get(
    'getProviderHealth',
    'Get the keys and the last refusals of a provider, as the replica that answers knows them.',
    one(ProviderHealth),
  ),
  'POST /api/providers/{id}/probe': {
    id: 'probeProvider',
    access: 'admin',
    summary: 'Read metadata and keys of a provider now, and get its health.',
    gives: { 200: one(ProviderHealth) },
    refuses: [429],
  },
  'GET /api/providers/{id}/scim': get('getScim', 'Get whether the directory of a provider may use SCIM.', one(ScimStatus)),
  'POST /api/providers/{id}/scim/token': {
    id: 'createScimToken',
    access: 'admin',
    summary: 'Create the SCIM token of a provider. It replaces the one before, which is refused from then on.',
    gives: { 201: one(ScimToken) },
  },
  'DELETE /api/providers/{id}/scim/token': {
    id: 'revokeScimToken',
    access: 'admin',
    summary: 'Revoke the SCIM token of a provider. Users and groups stay as the directory sent them last.',
    gives: { 204: nothing() },
  },
};

export const LINK_OPERATIONS: Operations = {
  'POST /api/users/{id}/link': {
    id: 'linkUser',
    access: 'admin',
    summary:
      'Give the user the account at a provider. The user keeps id, role and groups, and loses the password. A user who had that account before is disabled.',
    takes: identity,
    gives: { 200: one(User) },
    refuses: [409],
  },
  'POST /api/users/{id}/end-tokens': {
    id: 'endUserTokens',
    access: 'admin',
    summary:
      'End the login tokens, browser sessions and grants of the user, and refuse the tokens of the provider that were issued until now. API tokens stay.',
    gives: { 200: one(User) },
  },
};
