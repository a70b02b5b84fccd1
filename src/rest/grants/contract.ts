/** The REST contract of grants, and of the OAuth clients that have them. */
import Joi from 'joi';
import { model, uuid } from '../../base/validate.ts';
import { CLIENT_KINDS } from '../../oauth/client-store.ts';
import type { clientDocument, grantDocument } from '../../oauth/grants.ts';
import { queryOf } from '../openapi/from-joi.ts';
import { get, getWithToken, many, nothing, type Operations, one, paged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

export const grantQuery = {
  user_id: uuid().description('Lists the grants of this user instead. This needs the right `read`.'),
};
export const clientQuery = {
  unused: Joi.valid('true').description('Also lists registered clients that no user has approved.'),
};
export const clientUpdate = model<{ enabled: boolean }>('ClientUpdate', {
  enabled: Joi.boolean()
    .required()
    .description('If false, users cannot approve the client. Setting it to false ends the grants of the client.'),
}).required();

const kind = s.described(
  '`registered`: the client registered itself. `document`: its `client_id` is the address of its metadata.',
  s.oneOf(CLIENT_KINDS),
);
type GrantDocument = ReturnType<typeof grantDocument>;
const Grant = s.model<GrantDocument>('Grant', {
  id: s.described('Also the claim `grant` of its access tokens.', s.uuid),
  user_id: s.uuid,
  client: s.model<GrantDocument['client']>('GrantClient', {
    id: s.uuid,
    client_id: s.orNull(s.string),
    name: s.described('As the client calls itself.', s.orNull(s.string)),
    kind: { anyOf: [kind, { type: 'null' }] },
  }),
  resources: s.described('The addresses that the client may use.', s.listOf(s.string)),
  redirect_uri: s.described('Where the browser went after the approval. Empty: the client is on a device.', s.string),
  created_at: s.time,
  used_at: s.described('When the client last got an access token.', s.time),
  expires_at: s.time,
});
const Client = s.model<ReturnType<typeof clientDocument>>('Client', {
  id: s.uuid,
  client_id: s.string,
  kind,
  name: s.described('As the client calls itself.', s.string),
  redirect_uris: s.listOf(s.string),
  enabled: s.boolean,
  created_at: s.time,
  used_at: s.described('When a user last approved the client; null: never.', s.orNull(s.time)),
});

export const GRANT_OPERATIONS: Operations = {
  'GET /api/auth/grants': getWithToken(
    'listGrants',
    'List what the caller has allowed OAuth clients, oldest first.',
    many(Grant),
    { access: 'unlimited token', query: queryOf(grantQuery) },
  ),
  'DELETE /api/auth/grants/{id}': {
    id: 'endGrant',
    summary:
      'End a grant, and those that go back to the same answer of the user, with their access tokens and refresh tokens. An administrator may end the grants of any user.',
    access: 'login token',
    gives: { 204: nothing() },
  },
};

export const CLIENT_OPERATIONS: Operations = {
  'GET /api/clients': get('listClients', 'List the OAuth clients that users have approved.', many(Client, 'Link'), {
    query: [...paged, ...queryOf(clientQuery)],
  }),
  'GET /api/clients/{id}': get('getClient', 'Get an OAuth client.', one(Client)),
  'PUT /api/clients/{id}': {
    id: 'updateClient',
    access: 'admin',
    summary: 'Enable or disable an OAuth client.',
    takes: clientUpdate,
    gives: { 200: one(Client) },
  },
  'DELETE /api/clients/{id}': {
    id: 'deleteClient',
    access: 'admin',
    summary: 'End the registration of an OAuth client, and its grants. A client with a metadata document can be approved again.',
    gives: { 204: nothing() },
  },
};
