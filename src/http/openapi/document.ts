/** The contract of the REST API as an OpenAPI 3.1 document. Tests hold it equal to what is mounted and what is answered. */
import { isDeepStrictEqual } from 'node:util';
import { Router } from 'express';
import { ERRORS } from '../../errors.ts';
import { ACCOUNT_PATHS, ACCOUNT_SCHEMAS } from './accounts.ts';
import { CHANGE_PATHS, CHANGE_SCHEMAS } from './changes.ts';
import { CREDENTIAL_PATHS, CREDENTIAL_SCHEMAS } from './credentials.ts';
import { DRAFT_PATHS, DRAFT_SCHEMAS } from './drafts.ts';
import { GATEWAY_PATHS, GATEWAY_SCHEMAS } from './gateway.ts';
import { LOG_PATHS, LOG_SCHEMAS } from './log.ts';
import { type Given, HEADERS, type Operation, type Paths, parameter } from './operation.ts';
import { ALL_POLICIES_PATHS, ONE_POLICY_PATHS, POLICY_SCHEMAS } from './policies.ts';
import { POLICY_BUNDLE_PATHS, POLICY_BUNDLE_SCHEMAS } from './policy-bundles.ts';
import { POLICY_HISTORY_PATHS, POLICY_HISTORY_SCHEMAS } from './policy-history.ts';
import { POLICY_QUESTION_PATHS, POLICY_QUESTION_SCHEMAS } from './policy-questions.ts';
import { POLICY_REPLAY_PATHS, POLICY_REPLAY_SCHEMAS } from './policy-replay.ts';
import { POLICY_REPORT_PATHS, POLICY_REPORT_SCHEMAS } from './policy-reports.ts';
import { POLICY_SET_PATHS, POLICY_SET_SCHEMAS } from './policy-sets.ts';
import { described, integer, listOf, NAMED, named, object, oneOf, ref, type Schema, string, targetName, uuid } from './schema.ts';
import { SESSION_PATHS, SESSION_SCHEMAS } from './sessions.ts';
import { STATUS_PATHS, STATUS_SCHEMAS } from './status.ts';
import { TARGET_PATHS, TARGET_SCHEMAS } from './targets.ts';
import { USER_PATHS, USER_SCHEMAS } from './users.ts';

const schemas = {
  ...ACCOUNT_SCHEMAS,
  ...USER_SCHEMAS,
  ...POLICY_SCHEMAS,
  ...POLICY_HISTORY_SCHEMAS,
  ...POLICY_BUNDLE_SCHEMAS,
  ...POLICY_SET_SCHEMAS,
  ...POLICY_QUESTION_SCHEMAS,
  ...POLICY_REPLAY_SCHEMAS,
  ...DRAFT_SCHEMAS,
  ...POLICY_REPORT_SCHEMAS,
  ...TARGET_SCHEMAS,
  ...CREDENTIAL_SCHEMAS,
  ...LOG_SCHEMAS,
  ...CHANGE_SCHEMAS,
  ...SESSION_SCHEMAS,
  ...STATUS_SCHEMAS,
  ...GATEWAY_SCHEMAS,
  Problem: object(
    {
      type: described('`urn:portcullis:problem:<code>`', string),
      title: string,
      status: integer,
      detail: string,
      code: oneOf(Object.keys(ERRORS)),
      request_id: uuid,
      errors: described(
        'Every bad member, by its path; what is wrong in a file, with its place.',
        listOf(
          named(
            'ProblemDetail',
            object({ path: string, message: string, file: string, line: integer, column: integer }, ['file', 'line', 'column']),
          ),
        ),
      ),
    },
    ['errors'],
  ),
} satisfies Record<string, Schema>;

export type SchemaName = keyof typeof schemas;
const SCHEMAS: Readonly<Record<SchemaName, Schema>> = schemas;

/** The operations by what they are about: the tags of the document. */
const AREAS: Readonly<Record<string, { readonly about: string; readonly paths: Paths }>> = {
  Accounts: { about: 'Registration, login, API tokens, and the keys that sign tokens.', paths: ACCOUNT_PATHS },
  Users: { about: 'User records.', paths: USER_PATHS },
  Policies: {
    about: 'Policies one by one and as files, their history and their bundles.',
    paths: {
      ...ALL_POLICIES_PATHS,
      ...POLICY_HISTORY_PATHS,
      ...POLICY_SET_PATHS,
      ...POLICY_BUNDLE_PATHS,
      ...ONE_POLICY_PATHS,
    },
  },
  Analysis: {
    about: 'What policies decide, and what other policies would.',
    paths: { ...POLICY_QUESTION_PATHS, ...POLICY_REPLAY_PATHS, ...POLICY_REPORT_PATHS },
  },
  Drafts: { about: 'Changes of the policies before they are made, and their shadows.', paths: DRAFT_PATHS },
  Targets: { about: 'The MCP servers behind the gateway.', paths: TARGET_PATHS },
  Credentials: { about: 'What the gateway authenticates to targets with.', paths: CREDENTIAL_PATHS },
  Sessions: { about: 'The sessions of MCP clients.', paths: SESSION_PATHS },
  Audit: { about: 'The logs of decisions and of administrative changes.', paths: { ...LOG_PATHS, ...CHANGE_PATHS } },
  Gateway: { about: 'Replicas, health, metrics, public keys, and this document.', paths: { ...STATUS_PATHS, ...GATEWAY_PATHS } },
};

export const PATHS: Paths = Object.assign({}, ...Object.values(AREAS).map(({ paths }) => paths));

const PROBLEMS: Readonly<Record<number, string>> = {
  400: 'Something in the request is wrong.',
  401: 'No valid token, or wrong credentials.',
  403: 'Not allowed.',
  404: 'Nothing has this id or name.',
  405: 'The path has other methods.',
  409: 'In conflict with what is there.',
  412: 'The resource is not the one that If-Match names, or the policies are not at the expected revision.',
  413: 'The body is too large, or the answer takes too much memory or time.',
  415: 'The body is not JSON.',
  429: 'Too many requests; Retry-After says when.',
  500: 'The gateway failed.',
  503: 'Temporarily unavailable; Retry-After says when.',
};

/** The methods of a path, as `Allow` lists them with 405. What needs a token under `/api` has no HEAD. */
function allowOf(path: string, operations: Paths[string]): string {
  const methods = Object.entries(operations).flatMap(([method, { access }]) =>
    method === 'get' && (access === 'open' || !path.startsWith('/api/')) ? ['GET', 'HEAD'] : [method.toUpperCase()],
  );
  return methods.sort().join(', ');
}

/**
 * The statuses with which an operation may refuse. 403 and 400 are always among them: Host and Origin are checked first, and the
 * form of a request.
 */
function refusals(path: string, method: string, operation: Operation): number[] {
  const statuses = [400, 403, 500, 503, ...(operation.refuses ?? [])];
  if (operation.access !== 'open') statuses.push(401);
  // Changes wait in line, and one caller may fill only so much of it.
  if (operation.access !== 'open' && method !== 'get') statuses.push(429);
  if (method === 'post' || method === 'put') statuses.push(413, 415);
  if (path.includes('{')) statuses.push(404);
  if (operation.conditional) statuses.push(412);
  if (operation.heavy) statuses.push(413, 429);
  return [...new Set(statuses)].filter((status) => !(status in operation.gives)).sort((a, b) => a - b);
}

function responseOf({ schema, headers, mediaType, orMediaType }: Given, description: string): Schema {
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

const problem = (status: number): Schema =>
  responseOf({ schema: ref('Problem'), headers: [], mediaType: 'application/problem+json' }, PROBLEMS[status] ?? '');

const notAllowed = (allow: string): Schema => ({
  ...problem(405),
  headers: { Allow: { schema: { type: 'string', const: allow }, description: 'The methods of the path.' } },
});

/** Those that are no ids. */
const SEGMENTS: Readonly<Record<string, Schema>> = {
  name: { type: 'string' },
  value: { type: 'string' },
  target: targetName,
  revision: { type: 'integer', minimum: 0 },
};

function operationOf(tag: string, path: string, method: string, operation: Operation, allow: string): Schema {
  const { id, summary, access, takes, gives, query = [], headers = [], conditional } = operation;
  const segments = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    in: 'path',
    name,
    required: true,
    schema: SEGMENTS[name ?? ''] ?? uuid,
  }));
  const why = parameter('header', 'Portcullis-Reason', { type: 'string' }, 'Why; it is kept with the change. UTF-8.');
  const isChange = access === 'admin' && method !== 'get' && !/\/(plan|explain|simulate|test|replay)$/.test(path);
  const ifMatch = parameter('header', 'If-Match', { type: 'string' }, 'ETag of the resource as it was read.');
  return {
    operationId: id,
    tags: [tag],
    summary,
    ...(access === 'open' ? { security: [] } : { description: `Needs: ${access}.` }),
    parameters: [...segments, ...query, ...headers, ...(conditional ? [ifMatch] : []), ...(isChange ? [why] : [])],
    ...(takes ? { requestBody: { required: true, content: { 'application/json': { schema: ref(takes) } } } } : {}),
    responses: {
      ...Object.fromEntries(Object.entries(gives).map(([status, given]) => [status, responseOf(given, summary)])),
      ...Object.fromEntries(refusals(path, method, operation).map((status) => [status, problem(status)])),
      405: notAllowed(allow),
    },
  };
}

/** Collects what `named` has named in a schema, and in what was collected. Throws if two schemas share a name. */
function collectNamed(schema: unknown, found: Record<string, Schema>): void {
  if (typeof schema !== 'object' || schema === null) return;
  const named = (schema as Schema)[NAMED] as readonly [string, Schema] | undefined;
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

/** `publicUrl`: the origin under which clients reach the gateway. */
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
  const all: Record<string, Schema> = { ...SCHEMAS };
  collectNamed(SCHEMAS, all);
  return {
    openapi: '3.1.0',
    info: {
      title: 'Portcullis',
      version: '1',
      description: 'A policy-as-code gateway in front of MCP servers. Additions may come; what is here stays.',
    },
    servers: [{ url: publicUrl }],
    security: [{ bearer: [] }],
    tags: Object.entries(AREAS).map(([name, { about }]) => ({ name, description: about })),
    paths: Object.fromEntries(paths) as Record<string, Record<string, { responses: Record<string, Schema> }>>,
    components: {
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT' } },
      schemas: all,
    },
  };
}

/** Open to everyone. */
export function openapiRoutes(publicUrl: string): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const document = openapiDocument(publicUrl);
  router.get('/openapi.json', (_req, res) => {
    res.json(document);
  });
  return router;
}
