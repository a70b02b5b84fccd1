/** What the engine is given: the Rego, and the document that the policies are compiled to. */
import { get, one, type Paths, parameter, REVISION } from './operation.ts';
import { integer, named, object, type Schema, sha256 } from './schema.ts';

const atRevision = parameter('query', 'revision', { type: 'integer', minimum: 0 }, 'Of the history; absent: that of now.');

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
      'The policies as a bundle of OPA: both rules, the compiled document, a manifest with the revision.',
      'admin',
      { schema: { type: 'string', format: 'binary' }, headers: [REVISION, 'ETag'], mediaType: 'application/gzip' },
      {
        query: [atRevision, parameter('query', 'signed', { type: 'boolean' }, 'With a signature by the signing key.')],
        refuses: [404],
      },
    ),
  },
  '/api/policies/rego': {
    get: get('getRego', 'The Rego, and the document that it is given.', 'admin', one('PolicyRego', REVISION), {
      query: [atRevision],
      refuses: [404],
    }),
  },
};
