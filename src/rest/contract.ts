/** The contract of the REST API as an OpenAPI 3.1 document. Tests compare it with the mounted routes and with the answers. */
import { createHash } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { type Request, Router } from 'express';
import { type AdministrativeNeed, type Need, needText } from '../auth/rights.ts';
import { ERRORS } from '../base/errors.ts';
import { atOnce, inSlices } from '../base/turns/slices.ts';
import { ACCOUNT_OPERATIONS } from './accounts/contract.ts';
import { LOG_OPERATIONS } from './audit/contract.ts';
import { CONNECTION_OPERATIONS } from './connections/contract.ts';
import { CHANGE_OPERATIONS, GATEWAY_OPERATIONS, STATUS_OPERATIONS } from './gateway/contract.ts';
import { CLIENT_OPERATIONS, GRANT_OPERATIONS } from './grants/contract.ts';
import { BrokenInvariant, INVARIANT_OPERATIONS } from './invariants/contract.ts';
import { schemaOf } from './openapi/from-joi.ts';
import { type Given, HEADERS, header, type Operation, type Operations } from './openapi/operation.ts';
import * as s from './openapi/schema.ts';
import { OWNER_OPERATIONS } from './owners/contract.ts';
import { POLICY_OPERATIONS } from './policies/contract.ts';
import { DRAFT_OPERATIONS } from './policy-drafts/contract.ts';
import { POLICY_QUESTION_OPERATIONS } from './policy-questions/contract.ts';
import { POLICY_REPLAY_OPERATIONS } from './policy-questions/replay-contract.ts';
import { POLICY_REPORT_OPERATIONS } from './policy-questions/reports-contract.ts';
import { POLICY_SUGGEST_OPERATIONS } from './policy-questions/suggest-contract.ts';
import { POLICY_SET_OPERATIONS } from './policy-sets/contract.ts';
import { LINK_OPERATIONS, PROVIDER_OPERATIONS } from './providers/contract.ts';
import { RIGHT_OPERATIONS } from './rights/contract.ts';
import { SESSION_OPERATIONS, USER_SESSION_OPERATIONS } from './sessions/contract.ts';
import { CREDENTIAL_OPERATIONS, TARGET_OPERATIONS } from './targets/contract.ts';
import { USER_OPERATIONS } from './users/contract.ts';

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
    invariant: s.described('Only for `invariant_broken` and `invariant_undecided`.', BrokenInvariant),
  },
  ['errors', 'invariant'],
);

/** The operations by topic. The topics are the tags of the document. */
const AREAS: Readonly<Record<string, { readonly about: string; readonly operations: Operations }>> = {
  Accounts: { about: 'Registration, login, API tokens, and the keys that sign tokens.', operations: ACCOUNT_OPERATIONS },
  Users: {
    about: 'User records, and the rights of administration.',
    operations: { ...USER_OPERATIONS, ...USER_SESSION_OPERATIONS, ...LINK_OPERATIONS, ...RIGHT_OPERATIONS },
  },
  Providers: { about: "Companies' OpenID providers.", operations: PROVIDER_OPERATIONS },
  Grants: {
    about: 'What users have allowed OAuth clients, and these clients.',
    operations: { ...GRANT_OPERATIONS, ...CLIENT_OPERATIONS },
  },
  Policies: {
    about: 'Single policies, policies as files, their history, their bundles, and the limits of their owners.',
    operations: { ...POLICY_OPERATIONS, ...POLICY_SET_OPERATIONS, ...OWNER_OPERATIONS },
  },
  Invariants: { about: 'What no change of the policies may break.', operations: INVARIANT_OPERATIONS },
  Analysis: {
    about: 'What the policies decide, and what other policies would decide.',
    operations: {
      ...POLICY_QUESTION_OPERATIONS,
      ...POLICY_REPLAY_OPERATIONS,
      ...POLICY_REPORT_OPERATIONS,
      ...POLICY_SUGGEST_OPERATIONS,
    },
  },
  Drafts: {
    about: 'Changes of the policies that are saved but not applied yet, and their shadows.',
    operations: DRAFT_OPERATIONS,
  },
  Connections: { about: "Users' own accounts at targets.", operations: CONNECTION_OPERATIONS },
  Targets: { about: 'The MCP servers behind the gateway.', operations: TARGET_OPERATIONS },
  Credentials: { about: 'The credentials with which the gateway calls targets.', operations: CREDENTIAL_OPERATIONS },
  Sessions: { about: 'The sessions of MCP clients.', operations: SESSION_OPERATIONS },
  Audit: {
    about: 'The logs of decisions and of administrative changes.',
    operations: { ...LOG_OPERATIONS, ...CHANGE_OPERATIONS },
  },
  Gateway: {
    about: 'Replicas, health, metrics, public keys, and this document.',
    operations: { ...STATUS_OPERATIONS, ...GATEWAY_OPERATIONS },
  },
};

export const OPERATIONS: Operations = Object.assign({}, ...Object.values(AREAS).map(({ operations }) => operations));

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
function allowOf(path: string): string {
  const methods = Object.entries(OPERATIONS).flatMap(([key, { access }]) => {
    const [method = '', its] = key.split(' ');
    if (its !== path) return [];
    return method === 'GET' && (access === 'open' || !path.startsWith('/api/')) ? ['GET', 'HEAD'] : [method];
  });
  return methods.sort().join(', ');
}

/** Returns the statuses of refusals. 400 and 403 are always possible: form, Host and Origin of every request are checked. */
function refusals(path: string, method: string, operation: Operation): number[] {
  const statuses = [400, 403, 500, 503, ...(operation.refuses ?? [])];
  if (operation.access !== 'open') statuses.push(401);
  // Changes wait in one line, and each caller may have only a limited number in it.
  if (operation.access !== 'open' && method !== 'GET') statuses.push(429);
  if (method === 'POST' || method === 'PUT') statuses.push(413, 415);
  if (path.includes('{')) statuses.push(404);
  if (operation.conditional) statuses.push(412);
  if (operation.heavy) statuses.push(413, 429);
  return [...new Set(statuses)].filter((status) => !(status in operation.gives)).sort((a, b) => a - b);
}

function responseOf({ schema, headers, mediaType, orMediaType }: Given, description: string): s.Schema {
  const described = headers.map((name) => [name, { schema: { type: 'string' }, description: HEADERS[name] }]);
  const types = [mediaType, orMediaType].filter((type) => type !== undefined);
  return {
    description,
    ...(headers.length === 0 ? {} : { headers: Object.fromEntries(described) }),
    ...(schema === null ? {} : { content: Object.fromEntries(types.map((type) => [type, { schema }])) }),
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

const isAdministrative = (need: Need): need is AdministrativeNeed => typeof need !== 'string' || need === 'admin';

/** An administrative need is met by the rights of the caller, or by the role `admin`, which has all rights. */
function textOf(need: Exclude<Need, 'open'>): string {
  if (isAdministrative(need)) return needText(need);
  return { 'any token': 'any token', 'unlimited token': 'a token without limits', 'login token': 'a login token' }[need];
}

type DocumentedOperation = s.Schema & { readonly responses: Record<string, s.Schema> };

function operationOf(tag: string, path: string, method: string, operation: Operation): DocumentedOperation {
  const { id, summary, access, takes, gives, query = [], headers = [], conditional } = operation;
  const segments = [...path.matchAll(/\{(\w+)\}/g)].map(([, name]) => ({
    in: 'path',
    name,
    required: true,
    schema: SEGMENTS[name ?? ''] ?? s.uuid,
  }));
  const why = header('Portcullis-Reason', 'The reason of the change, in UTF-8. It is stored with the change.');
  const isChange = isAdministrative(access) && method !== 'GET' && !/\/(plan|explain|simulate|test|replay)$/.test(path);
  const ifMatch = header(
    'If-Match',
    'The ETag with which the resource was read. The change is refused (412) if the resource has changed.',
  );
  return {
    operationId: id,
    tags: [tag],
    summary,
    ...(access === 'open' ? { security: [] } : { description: `Needs ${textOf(access)}.` }),
    parameters: [...segments, ...query, ...headers, ...(conditional ? [ifMatch] : []), ...(isChange ? [why] : [])],
    ...(takes ? { requestBody: { required: true, content: { 'application/json': { schema: schemaOf(takes) } } } } : {}),
    responses: {
      ...Object.fromEntries(Object.entries(gives).map(([status, given]) => [status, responseOf(given, summary)])),
      ...Object.fromEntries(refusals(path, method, operation).map((status) => [status, problem(status)])),
      405: notAllowed(allowOf(path)),
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

/** Returns the document after steps of a millisecond or so. `publicUrl` is the origin under which clients reach the gateway. */
function* documentSteps(publicUrl: string) {
  const paths: Record<string, Record<string, DocumentedOperation>> = {};
  const schemas: Record<string, s.Schema> = {};
  for (const [tag, { operations }] of Object.entries(AREAS)) {
    for (const [key, operation] of Object.entries(operations)) {
      const [method = '', path = ''] = key.split(' ');
      const described = operationOf(tag, path, method, operation);
      collectNamed(described, schemas);
      paths[path] = { ...paths[path], [method.toLowerCase()]: described };
      yield;
    }
  }
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
    paths,
    components: {
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT' } },
      schemas,
    },
  };
}

export const openapiDocument = (publicUrl: string) => atOnce(documentSteps(publicUrl));

/**
 * Serves the document. It needs no token. The first request makes the document: at the start this would keep the gateway from being ready.
 * `limit` is called before each answer, because the document is large.
 */
export function openapiRoutes(publicUrl: string, limit: (req: Request) => Promise<void>): Router {
  const router = Router({ caseSensitive: true, strict: true });
  let document: Promise<{ readonly bytes: Buffer; readonly tag: string }> | undefined;
  async function make() {
    const bytes = Buffer.from(JSON.stringify(await inSlices(documentSteps(publicUrl))));
    return { bytes, tag: `"${createHash('sha256').update(bytes).digest('base64url')}"` };
  }
  router.get('/openapi.json', async (req, res) => {
    await limit(req);
    document ??= make();
    const { bytes, tag } = await document;
    // Express would compute a tag for each answer.
    res.setHeader('ETag', tag).type('json').send(bytes);
  });
  return router;
}
