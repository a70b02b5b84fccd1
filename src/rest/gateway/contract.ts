/** The replicas, the audit log of administrative changes, and what the gateway says of itself. */
import { OBJECT_TYPES } from '../../db/changes.ts';
import type { serverMetadata } from '../../oauth/metadata.ts';
import { get, getOpen, many, type Operations, one, paged } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

/** These changes have no content to show. */
const UNSHOWN = 'or for a logout or a password change';

const Change = s.model('Change', {
  sequence: s.integer,
  revision: s.integer,
  created_at: s.time,
  actor: s.actor,
  request_id: s.string,
  reason: s.described('The reason in the words of the actor; null: the actor gave none.', s.orNull(s.string)),
  override: s.described('Whether a policy that belongs to a file was changed outside of its file.', s.boolean),
  action: s.string,
  object_type: s.oneOf(OBJECT_TYPES),
  object_id: s.string,
  before: s.described(`The object before the change, without secrets; null for a creation, ${UNSHOWN}.`, {
    type: ['object', 'null'],
  }),
  after: s.described(`The object after the change, without secrets; null for a deletion or revocation, ${UNSHOWN}.`, {
    type: ['object', 'null'],
  }),
});

export const CHANGE_OPERATIONS: Operations = {
  'GET /api/changes': get('listChanges', 'List administrative changes, newest first.', many(Change, 'Link'), {
    query: paged,
  }),
};

const Status = s.model('Status', {
  sequence: s.described('The number of the newest administrative change.', s.integer),
  revision: s.described('The revision of the newest policy set.', s.integer),
  replicas: s.listOf(
    s.model('Replica', {
      id: s.uuid,
      this: s.described('Whether this replica answers the request.', s.boolean),
      started_at: s.time,
      seen_ms_ago: s.described('Milliseconds since the last report of the replica.', s.integer),
      sequence: s.integer,
      revision: s.integer,
      lag: s.described('How many changes the replica has not read yet. It reads them before its next decision.', s.integer),
      engine_hash: s.sha256,
    }),
  ),
});

export const STATUS_OPERATIONS: Operations = {
  'GET /api/status': get('getStatus', 'List the live replicas and the state that each has read.', one(Status)),
};

const Live = s.model('Live', { live: s.boolean });
const Ready = s.model('Ready', { ready: s.boolean, checks: { type: 'object', additionalProperties: s.boolean } });
const KeySet = s.model('KeySet', { keys: s.listOf({ type: 'object' }) });
const ResourceMetadata = s.model('ResourceMetadata', {
  resource: s.string,
  authorization_servers: s.listOf(s.string),
  scopes_supported: s.listOf(s.string),
  resource_name: s.string,
  bearer_methods_supported: s.listOf(s.string),
});
const Home = s.model('Home', { about: s.string, mcp: s.string, openapi: s.string });
const OpenApi = s.named('OpenApi', { type: 'object' });

const ServerMetadata = s.model<ReturnType<typeof serverMetadata>>(
  'AuthorizationServerMetadata',
  {
    ...{ issuer: s.string, authorization_endpoint: s.string, token_endpoint: s.string, registration_endpoint: s.string },
    ...{ revocation_endpoint: s.string, device_authorization_endpoint: s.string, jwks_uri: s.string },
    scopes_supported: s.listOf(s.string),
    response_types_supported: s.listOf(s.string),
    response_modes_supported: s.listOf(s.string),
    grant_types_supported: s.listOf(s.string),
    authorization_grant_profiles_supported: s.listOf(s.string),
    token_endpoint_auth_methods_supported: s.listOf(s.string),
    revocation_endpoint_auth_methods_supported: s.listOf(s.string),
    code_challenge_methods_supported: s.listOf(s.string),
    authorization_response_iss_parameter_supported: s.boolean,
    client_id_metadata_document_supported: s.boolean,
    subject_types_supported: s.listOf(s.string),
    id_token_signing_alg_values_supported: s.listOf(s.string),
    claims_supported: s.listOf(s.string),
  },
  ['registration_endpoint', 'authorization_grant_profiles_supported'],
);

export const GATEWAY_OPERATIONS: Operations = {
  'GET /': getOpen('getHome', 'Get an overview of the gateway, as a page for browsers or as JSON.', {
    ...one(Home),
    orMediaType: 'text/html',
  }),
  'GET /api/openapi.json': getOpen('getOpenApi', 'Get this document.', one(OpenApi)),
  'GET /health/live': getOpen('getLiveness', 'Whether the process runs.', one(Live)),
  'GET /health/ready': {
    id: 'getReadiness',
    summary: 'Whether the gateway can take requests.',
    access: 'open',
    gives: { 200: one(Ready), 503: one(Ready) },
  },
  'GET /metrics': get(
    'getMetrics',
    'Get metrics for Prometheus. Requests from loopback need no token. Other requests may use METRICS_TOKEN instead of a token.',
    {
      schema: { type: 'string' },
      headers: [],
      mediaType: 'text/plain',
    },
  ),
  'GET /.well-known/jwks.json': getOpen('getKeySet', 'Get the public keys that verify tokens.', one(KeySet)),
  'GET /.well-known/oauth-authorization-server': getOpen(
    'getAuthorizationServer',
    'Get the metadata of the authorization server (RFC 8414).',
    one(ServerMetadata),
  ),
  'GET /.well-known/openid-configuration': getOpen(
    'getOpenIdConfiguration',
    'Get the same metadata, where clients of OpenID Connect look for it.',
    one(ServerMetadata),
  ),
  'GET /.well-known/oauth-protected-resource': getOpen(
    'getResourceMetadata',
    'Get the protected resource metadata (RFC 9728), which says how to authenticate.',
    one(ResourceMetadata),
  ),
  'GET /.well-known/oauth-protected-resource/mcp': getOpen(
    'getMcpMetadata',
    'Get the protected resource metadata of /mcp.',
    one(ResourceMetadata),
  ),
  'GET /.well-known/oauth-protected-resource/mcp/{name}': getOpen(
    'getTargetMetadata',
    'Get the protected resource metadata of one target.',
    one(ResourceMetadata),
  ),
};
