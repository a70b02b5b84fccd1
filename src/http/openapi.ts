/** The contract of the REST API as an OpenAPI 3.1 document. Tests hold it equal to what is mounted and what is answered. */
import { Router } from 'express';
import { AUDIT_REASONS } from '../audit/event.ts';
import { EFFECTS, RESOURCE_TYPES } from '../policies/document.ts';
import { listOf, ownerName, ref, SCHEMAS, type Schema, type SchemaName, targetName, uuid } from './openapi-schemas.ts';

type Access = 'open' | 'any token' | 'login token' | 'admin' | 'admin or auditor';

interface Operation {
  readonly summary: string;
  readonly access: Access;
  readonly takes?: SchemaName;
  /** What it answers, by status. */
  readonly gives: Readonly<Record<number, Given>>;
  /** Refusals beyond those that follow from the rest. */
  readonly refuses?: readonly number[];
  readonly query?: readonly Schema[];
  readonly headers?: readonly Schema[];
  /** Whether `If-Match` is honoured. */
  readonly conditional?: boolean;
}

interface Given {
  /** null: no body. */
  readonly schema: Schema | null;
  readonly headers: readonly HeaderName[];
  readonly mediaType: string;
  /** Another form of the same. */
  readonly orMediaType?: string;
}

const HEADERS = {
  ETag: 'For If-Match.',
  Link: 'The next page, rel="next".',
  Location: 'Where the new resource is.',
  'Portcullis-Revision': 'Revision of the policy set.',
} as const;
type HeaderName = keyof typeof HEADERS;

const one = (name: SchemaName, ...headers: HeaderName[]): Given => ({
  schema: ref(name),
  headers,
  mediaType: 'application/json',
});
const many = (name: SchemaName, ...headers: HeaderName[]): Given => ({ ...one(name, ...headers), schema: listOf(ref(name)) });
const nothing = (...headers: HeaderName[]): Given => ({ schema: null, headers, mediaType: '' });

const parameter = (where: 'query' | 'header', name: string, schema: Schema, description: string): Schema => ({
  in: where,
  name,
  schema,
  description,
});
const paging = (limit: string): Schema[] => [
  parameter('query', 'limit', { type: 'integer', minimum: 1, maximum: 1000 }, limit),
  parameter('query', 'cursor', { type: 'string' }, 'From the Link header of the page before.'),
];
const wholeOrPaged = paging('Absent: the whole list.');
const atRevision = parameter('query', 'revision', { type: 'integer', minimum: 0 }, 'Of the history; absent: that of now.');
const paged = paging('Absent: 100.');

const time: Schema = { type: 'string', format: 'date-time' };
const logFilters = [
  parameter('query', 'from', time, 'Decided then or later.'),
  parameter('query', 'to', time, 'Decided before.'),
  parameter('query', 'id', uuid, 'The decision id.'),
  parameter('query', 'user_id', { type: 'string' }, 'Decisions on this user.'),
  parameter('query', 'target_id', uuid, 'On this target.'),
  parameter('query', 'target_name', { type: 'string' }, 'On the target of this name.'),
  parameter('query', 'method', { type: 'string' }, 'JSON-RPC method.'),
  parameter('query', 'resource_type', { type: 'string', enum: RESOURCE_TYPES }, 'What was asked for.'),
  parameter('query', 'resource_name', { type: 'string' }, 'Its name, or URI.'),
  parameter('query', 'resource_name_prefix', { type: 'string' }, 'How its name begins.'),
  parameter('query', 'effect', { type: 'string', enum: EFFECTS }, 'The answer.'),
  parameter('query', 'policy_id', uuid, 'The policy that decided.'),
  parameter('query', 'reason', { type: 'string', enum: AUDIT_REASONS }, 'Why.'),
];

const get = (summary: string, access: Access, given: Given, more: Partial<Operation> = {}): Operation => ({
  summary,
  access,
  gives: { 200: given },
  ...more,
});
/** 304: it is what If-None-Match names. */
const tagged = (summary: string, given: Given): Operation => ({
  ...get(summary, 'admin', given),
  gives: { 200: given, 304: nothing('ETag') },
  headers: [parameter('header', 'If-None-Match', { type: 'string' }, 'ETag of what is known already.')],
});
const REVISION = 'Portcullis-Revision';
const credentialsOf = (whom: string): { put: Operation; delete: Operation } => ({
  put: {
    summary: `Set a credential that the target is used with for ${whom}.`,
    access: 'admin',
    takes: 'NewCredential',
    gives: { 200: one('Credential'), 201: one('Credential') },
  },
  delete: {
    summary: `Delete those for ${whom}.`,
    access: 'admin',
    gives: { 204: nothing() },
    query: [parameter('query', 'name', { type: 'string' }, 'That of this header or variable alone.')],
  },
});

const twoRevisions = [
  { ...parameter('query', 'from', { type: 'integer', minimum: 0 }, 'The revision before.'), required: true },
  parameter('query', 'to', { type: 'integer', minimum: 0 }, 'The one after; absent: that of now.'),
];

export const PATHS: Readonly<Record<string, Readonly<Partial<Record<'get' | 'post' | 'put' | 'delete', Operation>>>>> = {
  '/api/auth/register': {
    post: {
      summary: 'Make an account. The first becomes the administrator.',
      access: 'open',
      takes: 'NewAccount',
      gives: { 201: one('User') },
      refuses: [403, 409, 429],
      headers: [
        parameter(
          'header',
          'Portcullis-Setup-Code',
          { type: 'string' },
          'For the first account of a gateway that is not on loopback.',
        ),
      ],
    },
  },
  '/api/auth/login': {
    post: { summary: 'Log in.', access: 'open', takes: 'Account', gives: { 200: one('Login') }, refuses: [401, 429] },
  },
  '/api/auth/logout': {
    post: { summary: 'Revoke the login token of this request.', access: 'login token', gives: { 204: nothing() } },
  },
  '/api/auth/me': { get: get('The caller.', 'any token', one('User')) },
  '/api/auth/password': {
    put: {
      summary: 'Change the password; other login tokens end.',
      access: 'login token',
      takes: 'PasswordChange',
      gives: { 204: nothing() },
      refuses: [429],
    },
  },
  '/api/auth/tokens': {
    get: get("The caller's API tokens.", 'any token', many('ApiToken'), {
      query: [parameter('query', 'user_id', uuid, 'Those of another user, for administrators.')],
    }),
    post: {
      summary: 'Make an API token.',
      access: 'login token',
      takes: 'NewApiToken',
      gives: { 201: one('CreatedApiToken') },
      refuses: [409],
    },
  },
  '/api/auth/tokens/{id}': { delete: { summary: 'Revoke an API token.', access: 'login token', gives: { 204: nothing() } } },
  '/api/keys/rotate': { post: { summary: 'Sign with a new key from now on.', access: 'admin', gives: { 201: one('Key') } } },

  '/api/users': {
    get: get('All users.', 'admin', many('User', 'Link'), { query: wholeOrPaged }),
    post: {
      summary: 'Make a user.',
      access: 'admin',
      takes: 'NewUser',
      gives: { 201: one('User', 'Location') },
      refuses: [409, 429],
    },
  },
  '/api/users/{id}': {
    get: get('One user.', 'admin', one('User')),
    put: {
      summary: 'Change role, groups or enabled; what is omitted stays.',
      access: 'admin',
      takes: 'UserUpdate',
      gives: { 200: one('User') },
      refuses: [409],
    },
  },

  '/api/users/{id}/recycle': {
    post: {
      summary: "Give the user's sessions a fresh half at their targets.",
      access: 'admin',
      gives: { 200: one('Recycled') },
    },
  },

  '/api/policies': {
    get: get('All policies.', 'admin', many('Policy', REVISION, 'Link'), { query: wholeOrPaged }),
    post: {
      summary: 'Create a policy.',
      access: 'admin',
      takes: 'NewPolicy',
      gives: { 201: one('Policy', REVISION, 'ETag', 'Location') },
    },
  },
  '/api/policies/history': {
    get: get('Revisions of the policy set, newest first.', 'admin', many('Revision', REVISION, 'Link'), { query: paged }),
  },
  '/api/policies/history/{revision}': {
    get: get('The policy set at a revision; 0 is the empty set before the first.', 'admin', one('RevisionSet', REVISION)),
  },
  '/api/policies/diff': {
    get: get('What is between two revisions.', 'admin', one('PolicyDiff', REVISION), { query: twoRevisions, refuses: [404] }),
  },
  '/api/policies/compare': {
    get: get(
      'What two revisions decide otherwise: over all requests that can be made.',
      'admin',
      one('PolicyComparison', REVISION),
      {
        query: twoRevisions,
        refuses: [404],
      },
    ),
  },
  '/api/policies/export': {
    get: get('The policies as files.', 'admin', one('PolicyFiles', REVISION), {
      query: [parameter('query', 'owner', ownerName, 'Whose files; policies of no file are among them. Absent: `default`.')],
    }),
  },
  '/api/policies/plan': {
    post: {
      summary: 'What applying these files would change, and which decisions. What could not be applied is refused.',
      access: 'admin',
      takes: 'PolicyFilesToPlan',
      gives: { 200: one('PolicyPlanWithFlips', REVISION) },
      refuses: [412],
    },
  },
  '/api/policies/apply': {
    post: {
      summary: 'Make the policies what these files say, in one change, if their tests pass.',
      access: 'admin',
      takes: 'PolicyFilesToApply',
      gives: { 200: one('PolicyPlan', REVISION) },
      refuses: [409, 412],
    },
  },
  '/api/policies/rollback': {
    post: {
      summary: 'Make the policy set what it was at a revision: a new revision.',
      access: 'admin',
      takes: 'Rollback',
      gives: { 200: one('RolledBack', REVISION) },
      refuses: [404, 412],
    },
  },
  '/api/policies/explain': {
    post: {
      summary: 'Why a request is decided as it is: the policy that decides, and each that was passed over.',
      access: 'admin',
      takes: 'PolicyQuestion',
      gives: { 200: one('PolicyExplanation', REVISION) },
    },
  },
  '/api/policies/simulate': {
    post: {
      summary: 'How requests are decided now, and how they would be if files were applied. Nothing is stored.',
      access: 'admin',
      takes: 'PolicyFilesToSimulate',
      gives: { 200: one('PolicySimulation', REVISION) },
      refuses: [404, 412],
    },
  },
  '/api/policies/test': {
    post: {
      summary: 'Run tests on the policies, or on those that files would make. Nothing is stored.',
      access: 'admin',
      takes: 'PolicyTests',
      gives: { 200: one('PolicyTestReport', REVISION) },
      refuses: [404, 412],
    },
  },
  '/api/policies/replay': {
    post: {
      summary: 'Put the recorded decisions of a time to files, a draft, or the policies as they are. Nothing is stored.',
      access: 'admin',
      takes: 'PolicyReplay',
      gives: { 200: { ...one('PolicyReplayReport', REVISION), orMediaType: 'application/x-ndjson' } },
      refuses: [404, 412, 429],
    },
  },
  '/api/policies/drafts': {
    get: get('Drafts: changes of the policies that are not made yet.', 'admin', many('PolicyDraftSummary')),
  },
  '/api/policies/drafts/{name}': {
    get: get('One draft, with its files.', 'admin', one('PolicyDraft', 'ETag')),
    put: {
      summary: 'Save a draft. What could not be applied is refused.',
      access: 'admin',
      takes: 'NewPolicyDraft',
      gives: { 200: one('PolicyDraft', 'ETag'), 201: one('PolicyDraft', 'ETag', 'Location') },
      refuses: [409],
      conditional: true,
    },
    delete: { summary: 'Delete a draft, with its shadow.', access: 'admin', gives: { 204: nothing() }, conditional: true },
  },
  '/api/policies/drafts/{name}/activate': {
    post: {
      summary: 'Apply a draft, if its tests pass, and remove it.',
      access: 'admin',
      takes: 'PolicyDraftActivation',
      gives: { 200: one('PolicyPlan', REVISION) },
      refuses: [409],
      conditional: true,
    },
  },
  '/api/policies/drafts/{name}/shadow': {
    put: {
      summary: 'Evaluate the draft beside the live policies, without effect, from now on.',
      access: 'admin',
      gives: { 200: one('PolicyShadow'), 201: one('PolicyShadow') },
      refuses: [409],
    },
    get: get('What the draft would have decided otherwise since then.', 'admin', one('PolicyShadow')),
    delete: { summary: 'End that.', access: 'admin', gives: { 204: nothing() } },
  },
  '/api/policies/access': {
    get: get(
      'Who can use what. A page has the rows of `limit` users, be they many or none.',
      'admin',
      { ...many('AccessRow', REVISION, 'Link'), orMediaType: 'text/csv' },
      {
        query: [
          ...paging('Users of a page. Absent: 100.'),
          parameter('query', 'format', { type: 'string', enum: ['json', 'csv'] }, 'csv: everything, as a stream.'),
          parameter('query', 'target', targetName, 'One target. Absent: all that are enabled.'),
          parameter('query', 'resource_type', { type: 'string', enum: RESOURCE_TYPES }, 'One object, with `resource_name`.'),
          parameter(
            'query',
            'resource_name',
            { type: 'string' },
            'Absent: the target itself, and every name in the newest rows of the log.',
          ),
          parameter(
            'query',
            'who',
            { type: 'string' },
            '`everyone`, `role:<name>`, `group:<name>` or `user:<id or e-mail>`. Absent: all.',
          ),
        ],
      },
    ),
  },
  '/api/policies/lint': {
    get: get(
      'What is wrong, or of no use, in the policies: over all requests that can be made.',
      'admin',
      one('PolicyLint', REVISION),
    ),
  },
  '/api/policies/bundle': {
    get: get(
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
    get: get('The Rego, and the document that it is given.', 'admin', one('PolicyRego', REVISION), {
      query: [atRevision],
      refuses: [404],
    }),
  },
  '/api/policies/{id}': {
    get: tagged('One policy.', one('Policy', REVISION, 'ETag')),
    put: {
      summary: 'Update a policy; what is omitted stays, `subjects` replaces the set.',
      access: 'admin',
      takes: 'PolicyUpdate',
      gives: { 200: one('Policy', REVISION, 'ETag') },
      conditional: true,
    },
    delete: { summary: 'Delete a policy.', access: 'admin', gives: { 204: nothing(REVISION) }, conditional: true },
  },
  '/api/policies/{id}/subjects': {
    post: {
      summary: 'Add a subject. 200: it was there already.',
      access: 'admin',
      takes: 'NewPolicySubject',
      gives: { 200: one('PolicySubject', REVISION), 201: one('PolicySubject', REVISION) },
      refuses: [409],
      conditional: true,
    },
  },
  '/api/policies/{id}/subjects/{subjectId}': {
    delete: { summary: 'Remove a subject.', access: 'admin', gives: { 204: nothing(REVISION) }, conditional: true },
  },

  '/api/targets': {
    get: get('All targets.', 'admin', many('Target', 'Link'), { query: wholeOrPaged }),
    post: {
      summary: 'Register a target.',
      access: 'admin',
      takes: 'NewTarget',
      gives: { 201: one('Target', 'ETag', 'Location') },
      refuses: [409],
    },
  },
  '/api/targets/{id}': {
    get: tagged('One target.', one('Target', 'ETag')),
    put: {
      summary: 'Update a target; what is omitted stays. Another origin disables its credentials until they are set again.',
      access: 'admin',
      takes: 'TargetUpdate',
      gives: { 200: one('Target', 'ETag') },
      refuses: [409],
      conditional: true,
    },
    delete: {
      summary: 'Delete a target that no policy names, and its credentials.',
      access: 'admin',
      gives: { 204: nothing() },
      refuses: [409],
      conditional: true,
    },
  },
  '/api/targets/{id}/credentials': {
    get: get('The credentials of a target, never their values.', 'admin', many('Credential')),
  },
  '/api/targets/{id}/credentials/default': credentialsOf('everybody who has none of their own'),
  '/api/targets/{id}/credentials/role/{value}': credentialsOf('a role'),
  '/api/targets/{id}/credentials/group/{value}': credentialsOf('a group'),
  '/api/targets/{id}/credentials/user/{value}': credentialsOf('a user, by id'),
  '/api/credentials': {
    get: get('What the caller may supply values for, at the targets that they may use.', 'any token', many('OwnCredential')),
  },
  '/api/credentials/{target}/{name}': {
    put: {
      summary: "Set the caller's own value. 403: an administrator has set one for them.",
      access: 'any token',
      takes: 'OwnCredentialValue',
      gives: { 200: one('OwnCredential'), 201: one('OwnCredential') },
      refuses: [429],
    },
    delete: { summary: 'Delete it.', access: 'any token', gives: { 204: nothing() }, refuses: [429] },
  },

  '/api/sessions': {
    get: get('Sessions that are open.', 'admin', many('Session', 'Link'), {
      query: [
        ...paged,
        parameter('query', 'user_id', uuid, 'Those of one user.'),
        parameter('query', 'target_id', uuid, 'Those with one target.'),
      ],
    }),
  },
  '/api/sessions/{id}': { delete: { summary: 'End a session.', access: 'admin', gives: { 204: nothing() } } },
  '/api/sessions/recycle': {
    post: {
      summary: 'Give sessions a fresh half at their targets; all, or those of a user, a target, or both.',
      access: 'admin',
      takes: 'Recycling',
      gives: { 200: one('Recycled') },
      refuses: [404],
    },
  },

  '/api/logs': {
    get: get(
      'Decisions, newest first. A page may be short, or empty, and have a next one.',
      'admin or auditor',
      many('LogEntry', 'Link'),
      {
        query: [...paged, ...logFilters],
      },
    ),
  },
  '/api/logs/checkpoint': {
    get: get('Where the chains of the log stand now, signed.', 'admin or auditor', one('Checkpoint')),
  },
  '/api/logs/export': {
    get: get(
      'The log as a stream. NDJSON without a filter: every record, for `portcullis audit verify`; otherwise decisions, newest first.',
      'admin or auditor',
      { schema: { type: 'string' }, headers: [], mediaType: 'application/x-ndjson', orMediaType: 'text/csv' },
      {
        query: [
          { ...parameter('query', 'format', { type: 'string', enum: ['ndjson', 'csv'] }, 'The form.'), required: true },
          ...logFilters,
        ],
      },
    ),
  },
  '/api/logs/erase': {
    post: {
      summary: "Take e-mail, groups and arguments out of a user's rows.",
      access: 'admin',
      takes: 'Erasing',
      gives: { 200: one('Erased') },
    },
  },
  '/api/logs/{id}': { get: get('One decision.', 'admin or auditor', one('LogEntry')) },
  '/api/status': { get: get('Every live replica, and how far it is.', 'admin or auditor', one('Status')) },
  '/api/changes': { get: get('Who changed what, newest first.', 'admin or auditor', many('Change', 'Link'), { query: paged }) },

  '/api/openapi.json': { get: get('This document.', 'open', one('OpenApi')) },
  '/health/live': { get: get('The process runs.', 'open', one('Live')) },
  '/health/ready': {
    get: { summary: 'Requests can be taken.', access: 'open', gives: { 200: one('Ready'), 503: one('Ready') } },
  },
  '/metrics': {
    get: get('For Prometheus; from loopback without a token.', 'admin', {
      schema: { type: 'string' },
      headers: [],
      mediaType: 'text/plain',
    }),
  },
  '/.well-known/jwks.json': { get: get('Public keys of the tokens.', 'open', one('KeySet')) },
  '/.well-known/oauth-protected-resource': { get: get('How to authenticate (RFC 9728).', 'open', one('ResourceMetadata')) },
  '/.well-known/oauth-protected-resource/mcp': { get: get('The same for /mcp.', 'open', one('ResourceMetadata')) },
  '/.well-known/oauth-protected-resource/mcp/{name}': {
    get: get('The same for one target.', 'open', one('ResourceMetadata')),
  },
};

const PROBLEMS: Readonly<Record<number, string>> = {
  400: 'Something in the request is wrong.',
  401: 'No valid token, or wrong credentials.',
  403: 'Not allowed.',
  404: 'Nothing has this id or name.',
  409: 'In conflict with what is there.',
  412: 'The resource is not the one that If-Match names, or the policies are not at the expected revision.',
  413: 'The body is too large.',
  415: 'The body is not JSON.',
  429: 'Too many requests; Retry-After says when.',
  500: 'The gateway failed.',
  503: 'Temporarily unavailable; Retry-After says when.',
};

/** The statuses with which an operation may refuse. 403 and 400 are always among them: Host and Origin are checked first, and the form of a request. */
function refusals(path: string, method: string, operation: Operation): number[] {
  const statuses = [400, 403, 500, 503, ...(operation.refuses ?? [])];
  if (operation.access !== 'open') statuses.push(401);
  if (method === 'post' || method === 'put') statuses.push(413, 415);
  if (path.includes('{')) statuses.push(404);
  if (operation.conditional) statuses.push(412);
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

/** Those that are no ids. */
const SEGMENTS: Readonly<Record<string, Schema>> = {
  name: { type: 'string' },
  value: { type: 'string' },
  target: targetName,
  revision: { type: 'integer', minimum: 0 },
};

function operationOf(path: string, method: string, operation: Operation): Schema {
  const { summary, access, takes, gives, query = [], headers = [], conditional } = operation;
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
    summary,
    ...(access === 'open' ? { security: [] } : { description: `Needs: ${access}.` }),
    parameters: [...segments, ...query, ...headers, ...(conditional ? [ifMatch] : []), ...(isChange ? [why] : [])],
    ...(takes ? { requestBody: { required: true, content: { 'application/json': { schema: ref(takes) } } } } : {}),
    responses: {
      ...Object.fromEntries(Object.entries(gives).map(([status, given]) => [status, responseOf(given, summary)])),
      ...Object.fromEntries(refusals(path, method, operation).map((status) => [status, problem(status)])),
    },
  };
}

export function openapiDocument() {
  const paths = Object.entries(PATHS).map(([path, operations]) => [
    path,
    Object.fromEntries(Object.entries(operations).map(([method, operation]) => [method, operationOf(path, method, operation)])),
  ]);
  return {
    openapi: '3.1.0',
    info: {
      title: 'Portcullis',
      version: '1',
      description: 'A policy-as-code gateway in front of MCP servers. Additions may come; what is here stays.',
    },
    security: [{ bearer: [] }],
    paths: Object.fromEntries(paths) as Record<string, Record<string, { responses: Record<string, Schema> }>>,
    components: {
      securitySchemes: { bearer: { type: 'http', scheme: 'bearer', bearerFormat: 'JWT' } },
      schemas: SCHEMAS,
    },
  };
}

/** Open to everyone. */
export function openapiRoutes(): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const document = openapiDocument();
  router.get('/openapi.json', (_req, res) => {
    res.json(document);
  });
  return router;
}
