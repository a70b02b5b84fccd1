/** The contract of the REST API as an OpenAPI 3.1 document. Tests compare it with the mounted routes and with the answers. */
import { isDeepStrictEqual } from 'node:util';
import { Router } from 'express';
import { ERRORS } from '../base/errors.ts';
import { ACCOUNT_PATHS } from './accounts/contract.ts';
import { LOG_PATHS } from './audit/contract.ts';
import { CHANGE_PATHS, GATEWAY_PATHS, STATUS_PATHS } from './gateway/contract.ts';
import { schemaOf } from './openapi/from-joi.ts';
import { type Given, HEADERS, type Operation, type Paths, parameter } from './openapi/operation.ts';
import * as s from './openapi/schema.ts';
import { ALL_POLICIES_PATHS, ONE_POLICY_PATHS, POLICY_BUNDLE_PATHS, POLICY_HISTORY_PATHS } from './policies/contract.ts';
import { DRAFT_PATHS } from './policy-drafts/contract.ts';
import { POLICY_QUESTION_PATHS } from './policy-questions/contract.ts';
import { POLICY_REPLAY_PATHS } from './policy-questions/replay-contract.ts';
import { POLICY_REPORT_PATHS } from './policy-questions/reports-contract.ts';
import { POLICY_SET_PATHS } from './policy-sets/contract.ts';
import { SESSION_PATHS, USER_SESSION_PATHS } from './sessions/contract.ts';
import { CREDENTIAL_PATHS, TARGET_PATHS } from './targets/contract.ts';
import { USER_PATHS } from './users/contract.ts';

const Problem = s.model(
  'Problem',
  {
    type: s.described('`urn:portcullis:problem:<code>`', s.string),
    title: s.string,
    status: s.integer,
    detail: s.string,
    code: s.oneOf(Object.keys(ERRORS)),
    request_id: s.uuid,
    errors: s.described(
      'Every wrong member, by its path. A mistake in a file also has the file, line and column.',
      s.listOf(
        s.model('ProblemDetail', { path: s.string, message: s.string, file: s.string, line: s.integer, column: s.integer }, [
          'file',
          'line',
          'column',
        ]),
      ),
    ),
  },
  ['errors'],
);

/** The operations by topic. The topics are the tags of the document. */
const AREAS: Readonly<Record<string, { readonly about: string; readonly paths: Paths }>> = {
  Accounts: { about: 'Registration, login, API tokens, and the keys that sign tokens.', paths: ACCOUNT_PATHS },
  Users: { about: 'User records.', paths: { ...USER_PATHS, ...USER_SESSION_PATHS } },
  Policies: {
    about: 'Single policies, policies as files, their history and their bundles.',
    paths: {
      ...ALL_POLICIES_PATHS,
      ...POLICY_HISTORY_PATHS,
      ...POLICY_SET_PATHS,
      ...POLICY_BUNDLE_PATHS,
      ...ONE_POLICY_PATHS,
    },
  },
  Analysis: {
    about: 'What the policies decide, and what other policies would decide.',
    paths: { ...POLICY_QUESTION_PATHS, ...POLICY_REPLAY_PATHS, ...POLICY_REPORT_PATHS },
  },
  Drafts: { about: 'Changes of the policies that are saved but not applied yet, and their shadows.', paths: DRAFT_PATHS },
  Targets: { about: 'The MCP servers behind the gateway.', paths: TARGET_PATHS },
  Credentials: { about: 'The credentials with which the gateway calls targets.', paths: CREDENTIAL_PATHS },
  Sessions: { about: 'The sessions of MCP clients.', paths: SESSION_PATHS },
  Audit: { about: 'The logs of decisions and of administrative changes.', paths: { ...LOG_PATHS, ...CHANGE_PATHS } },
  Gateway: { about: 'Replicas, health, metrics, public keys, and this document.', paths: { ...STATUS_PATHS, ...GATEWAY_PATHS } },
};

export const PATHS: Paths = Object.assign({}, ...Object.values(AREAS).map(({ paths }) => paths));

const PROBLEMS: Readonly<Record<number, string>> = {
  400: 'The request is not valid. `errors` lists the wrong members.',
  401: 'The request has no valid token, or the credentials are wrong.',
  403: 'The caller may not do this, or the Host or Origin header is not allowed.',
  404: 'Nothing has this id or name.',
  405: 'The path does not have this method. Allow lists its methods.',
  409: 'The request conflicts with the current state.',
  412: 'The resource has changed since the ETag in If-Match, or the policies are not at the expected revision.',
  413: 'The body is too large, or the work takes too much memory or time.',
  415: 'The body is not JSON.',
  429: 'Too many requests. Retry-After says when to try again.',
  500: 'An internal error of the gateway.',
  503: 'Temporarily unavailable. Retry-After says when to try again.',
};

/** Returns the value of `Allow` in a 405. Under `/api`, only open operations have HEAD. */
function allowOf(path: string, operations: Paths[string]): string {
  const methods = Object.entries(operations).flatMap(([method, { access }]) =>
    method === 'get' && (access === 'open' || !path.startsWith('/api/')) ? ['GET', 'HEAD'] : [method.toUpperCase()],
  );
  return methods.sort().join(', ');
}

/**
 * Returns the statuses of refusals. 400 and 403 are always among them, because every request is checked for its form, Host
 * and Origin.
 */
function refusals(path: string, method: string, operation: Operation): number[] {
  const statuses = [400, 403, 500, 503, ...(operation.refuses ?? [])];
  if (operation.access !== 'open') statuses.push(401);
  // Changes wait in one line, and each caller may have only a limited number in it.
  if (operation.access !== 'open' && method !== 'get') statuses.push(429);
  if (method === 'post' || method === 'put') statuses.push(413, 415);
  if (path.includes('{')) statuses.push(404);
  if (operation.conditional) statuses.push(412);
  if (operation.heavy) statuses.push(413, 429);
  return [...new Set(statuses)].filter((status) => !(status in operation.gives)).sort((a, b) => a - b);
}

function responseOf({ schema, headers, mediaType, orMediaType }: Given, description: string): s.Schema {
  return {
    description,
    ...(headers.length === 0
      ? {}
      : {
          headers: Object.fromEntries(headers.map((name) => [name, { schema: { type: 'string' }, description: HEADERS[name] }])),
        }),
    ...(schema === null
      ? {}
      : { content: { [mediaType]: { schema }, ...(orMediaType === undefined ? {} : { [orMediaType]: { schema } }) } }),
  };
}

const problem = (status: number): s.Schema =>
  responseOf({ schema: Problem, headers: [], mediaType: 'application/problem+json' }, PROBLEMS[status] ?? '');

const notAllowed = (allow: string): s.Schema => ({
  ...problem(405),
  headers: { Allow: { schema: { type: 'string', const: allow }, description: 'The methods that the path has.' } },
});

/** The path parameters that are not ids. */
const SEGMENTS: Readonly<Record<string, s.Schema>> = {
  name: { type: 'string' },
  value: { type: 'string' },
  target: s.targetName,
  revision: { type: 'integer', minimum: 0 },
};

function operationOf(tag: string, path: string, method: string, operation: Operation, allow: string): s.Schema {
  const { id, summary, access = 'admin', takes, gives, query = [], headers = [], conditional } = operation;
  const segments = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    in: 'path',
    name,
    required: true,
    schema: SEGMENTS[name ?? ''] ?? s.uuid,
  }));
  const why = parameter(
    'header',
    'Portcullis-Reason',
    { type: 'string' },
    'The reason of the change, in UTF-8. It is stored with the change.',
  );
  const isChange = access === 'admin' && method !== 'get' && !/\/(plan|explain|simulate|test|replay)$/.test(path);
  const ifMatch = parameter(
    'header',
    'If-Match',
    { type: 'string' },
    'The ETag with which the resource was read. The change is refused (412) if the resource has changed.',
  );
  return {
    operationId: id,
    tags: [tag],
    summary,
    ...(access === 'open' ? { security: [] } : { description: `Needs: ${access}.` }),
    parameters: [...segments, ...query, ...headers, ...(conditional ? [ifMatch] : []), ...(isChange ? [why] : [])],
    ...(takes ? { requestBody: { required: true, content: { 'application/json': { schema: schemaOf(takes) } } } } : {}),
    responses: {
      ...Object.fromEntries(Object.entries(gives).map(([status, given]) => [status, responseOf(given, summary)])),
      ...Object.fromEntries(refusals(path, method, operation).map((status) => [status, problem(status)])),
      405: notAllowed(allow),
    },
  };
}

/** Collects the schemas that `named` has named, recursively. Throws if two different schemas have the same name. */
function collectNamed(schema: unknown, found: Record<string, s.Schema>): void {
  if (typeof schema !== 'object' || schema === null) return;
  const named = (schema as s.Schema)[s.NAMED] as readonly [string, s.Schema] | undefined;
  if (named !== undefined) {
    const [name, own] = named;
    if (name in found && !isDeepStrictEqual(found[name], own)) throw new Error(`Two schemas are called ${name}`);
    if (!(name in found)) {
      found[name] = own;
      collectNamed(own, found);
    }
  }
  for (const inner of Object.values(schema)) collectNamed(inner, found);
}

/** `publicUrl` is the origin under which clients reach the gateway. */
export function openapiDocument(publicUrl: string) {
  const paths = Object.entries(AREAS).flatMap(([tag, area]) =>
    Object.entries(area.paths).map(([path, operations]) => {
      const allow = allowOf(path, operations);
      return [
        path,
        Object.fromEntries(
          Object.entries(operations).map(([method, operation]) => [method, operationOf(tag, path, method, operation, allow)]),
        ),
      ];
    }),
  );
  const schemas: Record<string, s.Schema> = {};
  collectNamed(paths, schemas);
  return {
    openapi: '3.1.0',
    info: {
      title: 'Portcullis',
      version: '1',
      description:
        'A policy-as-code gateway in front of MCP servers. Later versions may add members and operations, but do not change or remove any.',
    },
    servers: [{ url: publicUrl }],
    security: [{ bearer: [] }],
    tags: Object.entries(AREAS).map(([name, { about }]) => ({ name, description: about })),
    paths: Object.fromEntries(paths) as Record<string, Record<string, { responses: Record<string, s.Schema> }>>,
    components: {
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT' } },
      schemas,
    },
  };
}

/** Serves the document. It needs no token. */
export function openapiRoutes(publicUrl: string): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const document = openapiDocument(publicUrl);
  router.get('/openapi.json', (_req, res) => {
    res.json(document);
  });
  return router;
}
