/** Targets in the REST API: what a request may contain, and the JSON of an answer. */
import { isAbsolute } from 'node:path';
import Joi from 'joi';
import { type FieldError, invalidRequest } from '../base/errors.ts';
import { isLoopbackName } from '../base/network/network-address.ts';
import { asTimestamp, checked, lines, model, readOnly, text, uuid, validate } from '../base/validate.ts';
import { RESOURCE_TYPES } from '../engine/compile/policy.ts';
import { ASKABLE, type Askable } from '../protocol/capabilities.ts';
import { type ExtensionMethod, isRequestMethod } from '../protocol/operation.ts';
import { fitsTransport, suppliedKey, variableProblem } from './credential-document.ts';
import {
  type ArgumentCapture,
  type CredentialKey,
  DENIALS,
  type HttpTarget,
  ISOLATIONS,
  membersOf,
  OPTIONS,
  type OwnAccounts,
  PROCESS,
  type StdioTarget,
  TARGET_NAME,
  type Target,
  TRANSPORTS,
  type Transport,
} from './target.ts';

type Kept = 'id' | 'created_at' | 'updated_at';

/** A target as a request describes it, with defaults filled in. */
export type TargetDocument = Omit<HttpTarget, Kept> | Omit<StdioTarget, Kept>;

type Members = Partial<Omit<HttpTarget, Kept | 'transport'>> &
  Partial<Omit<StdioTarget, Kept | 'transport'>> & { readonly transport?: Target['transport'] };

interface NewTarget extends Members {
  readonly name: string;
}

/** Omitted members keep their values. Read-only members must be omitted or have the values that were read. */
export interface TargetUpdate extends Members {
  readonly id?: string;
  readonly created_at?: string;
  readonly updated_at?: string;
}

const TARGET_LIMITS = {
  description: 4096,
  url: 2048,
  path: 4096,
  args: 64,
  arg: 4096,
  env: 64,
  envName: 256,
  envValue: 8192,
  extensionMethods: 64,
  method: 256,
  param: 64,
  userCredentials: 16,
  mask: 64,
  maskedName: 128,
  issuer: 512,
  clientId: 1024,
  scopes: 64,
  scope: 256,
  /** Milliseconds. */
  minTimeout: 1_000,
  maxTimeout: 86_400_000,
} as const;

/** Returns why the gateway does not connect to a URL; null: it does. */
function urlProblem(value: string): string | null {
  if (value.length > TARGET_LIMITS.url) return `must have at most ${TARGET_LIMITS.url} characters`;
  if (!/^[\x21-\x7e]+$/.test(value) || value.includes('\\') || !URL.canParse(value)) return 'must be an absolute URL in ASCII';
  const [, authority] = /^https?:\/\/([^/?#]+)/i.exec(value) ?? [];
  if (authority === undefined) return 'must begin with http:// or https:// and a host';
  if (authority.includes('@')) return 'must not contain a user or password: set a credential of the target instead';
  if (value.includes('#')) return 'must not have a fragment';
  return null;
}

/** A scope of RFC 6749. */
const SCOPE = /^[\x21\x23-\x5b\x5d-\x7e]+$/;

/** Whether the host is this machine itself. There, an authorization server may use plain HTTP. */
export const isLoopback = ({ hostname }: URL): boolean => isLoopbackName(hostname);

/** Returns why the gateway does not use an authorization server; null: it does. The form of issuers is that of RFC 8414. */
export function issuerProblem(value: string): string | null {
  const problem = urlProblem(value);
  if (problem !== null) return problem;
  const url = new URL(value);
  if (url.search !== '') return 'must not have a query';
  return url.protocol === 'https:' || isLoopback(url) ? null : 'must begin with https://';
}

/** Requests of the protocol that targets send to clients. */
const OF_CLIENTS: readonly string[] = ['sampling/createMessage', 'elicitation/create', 'roots/list'];
const METHOD = /^[a-z]+(\/[A-Za-z0-9_-]+)+$/;
const PARAM = /^[A-Za-z][A-Za-z0-9_]*$/;

/** Returns why a target may not have this extension method; null: it may. */
export function extensionMethodProblem(method: string): string | null {
  if (!METHOD.test(method)) return 'must be lower-case letters followed by one or more segments after slashes, such as acme/run';
  const ofProtocol = isRequestMethod(method) || OF_CLIENTS.includes(method) || method.startsWith('notifications/');
  return ofProtocol ? `${method} is a method of the protocol itself` : null;
}

const absolutePath = checked(text(TARGET_LIMITS.path), (value) => (isAbsolute(value) ? null : 'must be an absolute path'));

/** The members of every target. */
export const commonMembers = {
  name: Joi.string().pattern(TARGET_NAME).messages({
    'string.pattern.base': 'must begin with a letter a-z, contain only a-z, 0-9 and -, and have at most 63 characters',
  }),
  description: lines(TARGET_LIMITS.description).allow(null, ''),
  enabled: Joi.boolean(),
  denials: Joi.valid(...DENIALS).description(
    '`shown`: the answer to a refused call says that policy refuses it. `hidden`: the answer is the same as for an unknown name.',
  ),
  may_ask: Joi.array<readonly Askable[]>()
    .items(Joi.valid(...ASKABLE))
    .unique()
    .description('What the target may request from its clients.'),
  extension_methods: Joi.array<readonly ExtensionMethod[]>()
    .items(
      model<ExtensionMethod>('ExtensionMethod', {
        method: checked(Joi.string().max(TARGET_LIMITS.method), extensionMethodProblem)
          .required()
          .meta({ pattern: METHOD.source }),
        resource_type: Joi.valid(...RESOURCE_TYPES).required(),
        param: Joi.string()
          .max(TARGET_LIMITS.param)
          .pattern(PARAM)
          .messages({ 'string.pattern.base': 'must be the plain name of a member of params' })
          .required()
          .description('The member of `params` that names the tool, resource or prompt.'),
      }),
    )
    .unique('method')
    .max(TARGET_LIMITS.extensionMethods)
    .description('Methods of the target that are not in the protocol.'),
  user_credentials: Joi.array<readonly CredentialKey[]>()
    .items(suppliedKey)
    .unique('name')
    .max(TARGET_LIMITS.userCredentials)
    .description('Headers or variables for which users may supply their own values.'),
  own_accounts: model<OwnAccounts>('OwnAccounts', {
    issuer: checked(text(TARGET_LIMITS.issuer), issuerProblem)
      .allow(null)
      .required()
      .description('The issuer of the authorization server; null: the target names it in its protected resource metadata.'),
    client_id: text(TARGET_LIMITS.clientId)
      .allow(null)
      .required()
      .description(
        'The client that is registered for the gateway at the authorization server, which needs `issuer`; null: the gateway registers itself.',
      ),
    scopes: Joi.array()
      .items(Joi.string().max(TARGET_LIMITS.scope).pattern(SCOPE).messages({ 'string.pattern.base': 'must be one OAuth scope' }))
      .unique()
      .max(TARGET_LIMITS.scopes)
      .required()
      .description('The scopes to ask for; empty: those that the target names.'),
    send_resource: Joi.boolean()
      .required()
      .description(
        'Whether requests name the target as `resource` (RFC 8707). false is for servers that refuse it, such as Entra.',
      ),
  })
    .custom((value: OwnAccounts, helpers) =>
      value.client_id !== null && value.issuer === null
        ? helpers.message({ custom: 'needs issuer if client_id is set: a registered client belongs to one authorization server' })
        : value,
    )
    .allow(null)
    .description(
      "If set, each user calls the target with their own account there, connected at `/account/connections`, and the target uses no other credentials. null: the gateway's own credentials.",
    ),
  capture_arguments: model<ArgumentCapture>('CaptureArguments', {
    mask: Joi.array().items(text(TARGET_LIMITS.maskedName)).unique().max(TARGET_LIMITS.mask).required(),
  })
    .allow(null)
    .description(
      'If set, the audit log records the arguments of `tools/call` and `prompts/get`. `mask` names members whose values are never recorded. null: arguments are not recorded.',
    ),
  timeout_ms: Joi.number()
    .integer()
    .min(TARGET_LIMITS.minTimeout)
    .max(TARGET_LIMITS.maxTimeout)
    .strict()
    .allow(null)
    .description(
      'How long the target may be silent during a request, in milliseconds; null: the value of `UPSTREAM_TIMEOUT_MS`.',
    ),
} satisfies Record<Exclude<keyof HttpTarget, Kept | 'transport' | 'url'>, Joi.Schema>;

/** The members of a target with the transport `streamable-http` or `sse`. */
export const httpMembers = {
  transport: Joi.valid('streamable-http', 'sse').messages({ 'any.only': `must be one of [${TRANSPORTS.join(', ')}]` }),
  url: checked(Joi.string(), urlProblem).meta({ maxLength: TARGET_LIMITS.url }),
};

/** The members of a target with the transport `stdio`. */
export const stdioMembers = {
  transport: Joi.valid('stdio'),
  command: absolutePath.description('The absolute path of an executable that STDIO_ALLOWED names.'),
  args: Joi.array().items(text(TARGET_LIMITS.arg).allow('')).max(TARGET_LIMITS.args),
  cwd: absolutePath
    .allow(null)
    .description('The working folder; null: an empty folder of its own, which is deleted when the process ends.'),
  env: checked(Joi.object<Record<string, string>>(), envProblem)
    .meta({
      additionalProperties: { type: 'string', maxLength: TARGET_LIMITS.envValue },
      maxProperties: TARGET_LIMITS.env,
    })
    .description(
      'The whole environment of the process, except credentials. Administrators can read it, so do not put secrets here.',
    ),
  isolation: Joi.valid(...ISOLATIONS).description('Which sessions share a process.'),
} satisfies Record<Exclude<keyof StdioTarget, keyof HttpTarget> | 'transport', Joi.Schema>;

/** Checks names and values by hand, because messages of Joi would show a value. */
function envProblem(env: Readonly<Record<string, unknown>>): string | null {
  const entries = Object.entries(env);
  if (entries.length > TARGET_LIMITS.env) return `must have at most ${TARGET_LIMITS.env} variables`;
  for (const [name, value] of entries) {
    if (name.length > TARGET_LIMITS.envName)
      return `the name of a variable must have at most ${TARGET_LIMITS.envName} characters`;
    if (variableProblem(name) !== null) return `the name of a variable ${variableProblem(name)}`;
    if (typeof value !== 'string') return `${name} must be a string`;
    if (value.length > TARGET_LIMITS.envValue) return `${name} must have at most ${TARGET_LIMITS.envValue} characters`;
    if (value.includes('\0') || !value.isWellFormed()) return `${name} must be well-formed Unicode without NUL`;
  }
  return null;
}

const foreign = Joi.forbidden().messages({ 'any.unknown': 'is not for this transport' });
const { transport: _, ...urlMembers } = httpMembers;
const { transport: __, ...processMembers } = stdioMembers;
const foreignTo = <Name extends string>(members: Record<Name, Joi.Schema>) =>
  Object.fromEntries(Object.keys(members).map((name) => [name, foreign])) as Record<Name, Joi.Schema>;

const newHttpTarget = model<NewTarget>('NewHttpTarget', {
  ...httpMembers,
  ...commonMembers,
  transport: httpMembers.transport.description('Absent: `streamable-http`.'),
  url: httpMembers.url.required(),
  name: commonMembers.name.required(),
  ...foreignTo(processMembers),
});
const newStdioTarget = model<NewTarget>('NewStdioTarget', {
  ...stdioMembers,
  ...commonMembers,
  transport: stdioMembers.transport.required(),
  command: stdioMembers.command.required(),
  name: commonMembers.name.required(),
  ...foreignTo(urlMembers),
});
export const newTarget = Joi.alternatives<NewTarget>()
  .conditional(Joi.object({ transport: Joi.valid('stdio').required() }).unknown(), {
    // biome-ignore lint/suspicious/noThenProperty: joi's word for it
    then: newStdioTarget,
    otherwise: newHttpTarget,
  })
  .required()
  .meta({ model: 'NewTarget' });

export const changedTarget = model<TargetUpdate>('TargetUpdate', {
  id: readOnly(uuid()),
  transport: Joi.valid(...TRANSPORTS),
  ...urlMembers,
  ...processMembers,
  ...commonMembers,
  created_at: readOnly(asTimestamp(Joi.string())),
  updated_at: readOnly(asTimestamp(Joi.string())),
}).required();

/** Throws AppError `invalid_request`, like the other functions here. */
export function readTarget(value: unknown): TargetDocument {
  return documentOf({ description: null, enabled: true, transport: 'streamable-http', ...validate(newTarget, value) });
}

export function readTargetUpdate(value: unknown): TargetUpdate {
  return validate(changedTarget, value);
}

/**
 * Returns the updated target. Refuses members of the other kind of transport. If the kind changes, the update must have the new
 * `url` or `command`.
 */
export function changedDocument(before: Target, update: TargetUpdate): TargetDocument {
  const { id: _, created_at: __, updated_at: ___, ...given } = update;
  const transport = given.transport ?? before.transport;
  const errors: FieldError[] = Object.keys(transport === 'stdio' ? urlMembers : processMembers)
    .filter((name) => Object.hasOwn(given, name))
    .map((path) => ({ path, message: `is not for the transport ${transport}` }));
  if (errors.length > 0) throw invalidRequest(errors);
  return documentOf({ ...before, ...given, transport });
}

function documentOf(given: Members & Pick<TargetDocument, 'name' | 'description' | 'enabled' | 'transport'>): TargetDocument {
  const { name, description, enabled, transport, url, command } = given;
  const common = { name, description, enabled, ...membersOf(OPTIONS, given) };
  if (common.own_accounts !== null) {
    if (transport === 'stdio') throw invalidRequest([{ path: 'own_accounts', message: 'is not for the transport stdio' }]);
    if (common.user_credentials.length > 0) {
      const message = 'must be empty if own_accounts is set: such a target uses no other credentials';
      throw invalidRequest([{ path: 'user_credentials', message }]);
    }
  }
  const unfit = common.user_credentials.findIndex(({ type }) => !fitsTransport(transport, type));
  if (unfit >= 0) {
    const message = `a target with the transport ${transport} takes only ${transport === 'stdio' ? 'env' : 'bearer and header'}`;
    throw invalidRequest([{ path: `user_credentials.${unfit}.type`, message }]);
  }
  if (transport !== 'stdio') {
    if (url === undefined) throw missing('url', transport);
    return { ...common, transport, url };
  }
  if (command === undefined) throw missing('command', transport);
  return { ...common, transport, ...membersOf(PROCESS, given) };
}

const missing = (path: 'url' | 'command', transport: Transport) =>
  invalidRequest([{ path, message: `is required for the transport ${transport}` }]);

type Shown<T> = Omit<T, 'created_at' | 'updated_at'> & { readonly created_at: string; readonly updated_at: string };
export type TargetJson = Shown<HttpTarget> | Shown<StdioTarget>;

export function targetJson(target: Target): TargetJson {
  const { id, name, description, enabled } = target;
  const rest = {
    enabled,
    ...membersOf(OPTIONS, target),
    created_at: new Date(target.created_at).toISOString(),
    updated_at: new Date(target.updated_at).toISOString(),
  };
  const { transport } = target;
  if (transport !== 'stdio') return { id, name, description, transport, url: target.url, ...rest };
  return { id, name, description, transport, ...membersOf(PROCESS, target), ...rest };
}
