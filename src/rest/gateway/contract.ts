/** The gateway's contract, health, metrics and keys, and how to authenticate. */
import { get, one, type Paths } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

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

export const GATEWAY_PATHS: Paths = {
  '/': {
    get: get('getHome', 'Get an overview of the gateway, as a page for browsers or as JSON.', 'open', {
      ...one(Home),
      orMediaType: 'text/html',
    }),
  },
  '/api/openapi.json': { get: get('getOpenApi', 'Get this document.', 'open', one(OpenApi)) },
  '/health/live': { get: get('getLiveness', 'Whether the process runs.', 'open', one(Live)) },
  '/health/ready': {
    get: {
      id: 'getReadiness',
      summary: 'Whether the gateway can take requests.',
      access: 'open',
      gives: { 200: one(Ready), 503: one(Ready) },
    },
  },
  '/metrics': {
    get: get(
      'getMetrics',
      'Get metrics for Prometheus. Requests from loopback need no token. Other requests may use METRICS_TOKEN instead of a token.',
      'admin',
      {
        schema: { type: 'string' },
        headers: [],
        mediaType: 'text/plain',
      },
    ),
  },
  '/.well-known/jwks.json': { get: get('getKeySet', 'Get the public keys that verify tokens.', 'open', one(KeySet)) },
  '/.well-known/oauth-protected-resource': {
    get: get(
      'getResourceMetadata',
      'Get the protected resource metadata (RFC 9728), which says how to authenticate.',
      'open',
      one(ResourceMetadata),
    ),
  },
  '/.well-known/oauth-protected-resource/mcp': {
    get: get('getMcpMetadata', 'Get the protected resource metadata of /mcp.', 'open', one(ResourceMetadata)),
  },
  '/.well-known/oauth-protected-resource/mcp/{name}': {
    get: get('getTargetMetadata', 'Get the protected resource metadata of one target.', 'open', one(ResourceMetadata)),
  },
};
