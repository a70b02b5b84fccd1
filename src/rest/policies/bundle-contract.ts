/** The input of the engine: the Rego, and the compiled document of the policies. */
import { get, one, type Paths, parameter, REVISION } from '../openapi/operation.ts';
import { integer, named, object, type Schema, sha256 } from '../openapi/schema.ts';

const atRevision = parameter(
  'query',
  'revision',
  { type: 'integer', minimum: 0 },
  'A revision of the history. Absent: the current one.',
);

export const POLICY_BUNDLE_SCHEMAS = {
  PolicyRego: object({
    revision: integer,
    data: { type: 'object' },
    data_hash: sha256,
    engine_hash: sha256,
    rego: named('RegoFiles', object({ 'gateway.rego': { type: 'string' }, 'reference.rego': { type: 'string' } })),
  }),
} satisfies Record<string, Schema>;

export const POLICY_BUNDLE_PATHS: Paths = {
  '/api/policies/bundle': {
    get: get(
      'getBundle',
      'Get the policies as an OPA bundle: both Rego files, the compiled document, and a manifest with the revision.',
      'admin',
      { schema: { type: 'string', format: 'binary' }, headers: [REVISION, 'ETag'], mediaType: 'application/gzip' },
      {
        query: [
          atRevision,
          parameter('query', 'signed', { type: 'boolean' }, 'Whether the bundle has a signature, made with the signing key.'),
        ],
        refuses: [404],
      },
    ),
  },
  '/api/policies/rego': {
    get: get(
      'getRego',
      'Get the Rego files, and the compiled document that they evaluate.',
      'admin',
      one('PolicyRego', REVISION),
      {
        query: [atRevision],
        refuses: [404],
      },
    ),
  },
};
