/** What the gateway says of itself: its contract, its health and metrics, its keys, how to authenticate. */
import { get, one, type Paths } from './operation.ts';
import { boolean, listOf, object, type Schema, string } from './schema.ts';

export const GATEWAY_SCHEMAS = {
  Live: object({ live: boolean }),
  Ready: object({ ready: boolean, checks: { type: 'object', additionalProperties: boolean } }),
  KeySet: object({ keys: listOf({ type: 'object' }) }),
  ResourceMetadata: object({
    resource: string,
    authorization_servers: listOf(string),
    bearer_methods_supported: listOf(string),
  }),
  Home: object({ about: string, mcp: string, openapi: string }),
  OpenApi: { type: 'object' },
} satisfies Record<string, Schema>;

export const GATEWAY_PATHS: Paths = {
  '/': {
    get: get('getHome', 'What this is and where to go: a page for browsers.', 'open', {
      ...one('Home'),
      orMediaType: 'text/html',
    }),
  },
  '/api/openapi.json': { get: get('getOpenApi', 'This document.', 'open', one('OpenApi')) },
  '/health/live': { get: get('getLiveness', 'The process runs.', 'open', one('Live')) },
  '/health/ready': {
    get: {
      id: 'getReadiness',
      summary: 'Requests can be taken.',
      access: 'open',
      gives: { 200: one('Ready'), 503: one('Ready') },
    },
  },
  '/metrics': {
    get: get(
      'getMetrics',
      'Metrics for Prometheus. From loopback no token is needed; elsewhere METRICS_TOKEN will do, too.',
      'admin',
      {
        schema: { type: 'string' },
        headers: [],
        mediaType: 'text/plain',
      },
    ),
  },
  '/.well-known/jwks.json': { get: get('getKeySet', 'Public keys of the tokens.', 'open', one('KeySet')) },
  '/.well-known/oauth-protected-resource': {
    get: get('getResourceMetadata', 'How to authenticate (RFC 9728).', 'open', one('ResourceMetadata')),
  },
  '/.well-known/oauth-protected-resource/mcp': {
    get: get('getMcpMetadata', 'The same for /mcp.', 'open', one('ResourceMetadata')),
  },
  '/.well-known/oauth-protected-resource/mcp/{name}': {
    get: get('getTargetMetadata', 'The same for one target.', 'open', one('ResourceMetadata')),
  },
};
