/** The input of the engine: the Rego, and the compiled document of the policies. */
import { get, one, type Paths, parameter, REVISION } from '../openapi/operation.ts';
import * as s from '../openapi/schema.ts';

const atRevision = parameter(
  'query',
  'revision',
  { type: 'integer', minimum: 0 },
  'A revision of the history. Absent: the current one.',
);

const PolicyRego = s.model('PolicyRego', {
  revision: s.integer,
  data: { type: 'object' },
  data_hash: s.sha256,
  engine_hash: s.sha256,
  rego: s.model('RegoFiles', { 'gateway.rego': { type: 'string' }, 'reference.rego': { type: 'string' } }),
});

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
    get: get('getRego', 'Get the Rego files, and the compiled document that they evaluate.', 'admin', one(PolicyRego, REVISION), {
      query: [atRevision],
      refuses: [404],
    }),
  },
};
