/** The replicas, the audit log of administrative changes, and what the gateway says of itself. */
import { get, getAsAuditor, getOpen, many, type Operations, one, paged } from '../openapi/operation.ts';
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
  action: s.string,
  object_type: s.oneOf(['policy', 'user', 'token', 'target', 'credential', 'key', 'session', 'draft']),
  object_id: s.string,
  before: s.described(`The object before the change, without secrets; null for a creation, ${UNSHOWN}.`, {
    type: ['object', 'null'],
  }),
  after: s.described(`The object after the change, without secrets; null for a deletion or revocation, ${UNSHOWN}.`, {
    type: ['object', 'null'],
  }),
});

export const CHANGE_OPERATIONS: Operations = {
  'GET /api/changes': getAsAuditor('listChanges', 'List administrative changes, newest first.', many(Change, 'Link'), {
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
  'GET /api/status': getAsAuditor('getStatus', 'List the live replicas and the state that each has read.', one(Status)),
};

const Live = s.model('Live', { live: s.boolean });
const Ready = s.model('Ready', { ready: s.boolean, checks: { type: 'object', additionalProperties: s.boolean } });
const KeySet = s.model('KeySet', { keys: s.listOf({ type: 'object' }) });
const ResourceMetadata = s.model('ResourceMetadata', {
  resource: s.string,
  authorization_servers: s.listOf(s.string),
  bearer_methods_supported: s.listOf(s.string),
});
const Home = s.model('Home', { about: s.string, mcp: s.string, openapi: s.string });
const OpenApi = s.named('OpenApi', { type: 'object' });

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
