/** Targets in the REST API: what a request may contain, and the JSON of an answer. */
import { isAbsolute } from 'node:path';
import Joi from 'joi';
import { type FieldError, invalidRequest } from '../base/errors.ts';
import { lines, text, uuid, validate } from '../base/validate.ts';
import { RESOURCE_TYPES } from '../engine/compile/policy.ts';
import { ASKABLE, type Askable } from '../mcp/protocol/capabilities.ts';
import { type ExtensionMethod, isRequestMethod } from '../mcp/protocol/operation.ts';
import { fitsTransport, suppliedKey, variableProblem } from './credential-document.ts';
import {
  type ArgumentCapture,
  type CredentialKey,
  type HttpTarget,
  ISOLATIONS,
  type StdioTarget,
  TARGET_NAME,
  type Target,
  TRANSPORTS,
} from './target.ts';

type Kept = 'id' | 'created_at' | 'updated_at';

/** A target as a request describes it, with defaults filled in. */
export type TargetDocument = Omit<HttpTarget, Kept> | Omit<StdioTarget, Kept>;

type Members = Partial<Omit<HttpTarget, Kept | 'transport'>> &
  Partial<Omit<StdioTarget, Kept | 'transport'>> & { readonly transport?: Target['transport'] };

/** Omitted members keep their values. Read-only members must be omitted or have the values that were read. */
export interface TargetUpdate extends Members {
  readonly id?: string;
  readonly created_at?: string;
  readonly updated_at?: string;
}

export const TARGET_LIMITS = {
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

/** Requests of the protocol that targets send to clients. */
const OF_CLIENTS: readonly string[] = ['sampling/createMessage', 'elicitation/create', 'roots/list'];
export const METHOD = /^[a-z]+(\/[A-Za-z0-9_-]+)+$/;
export const PARAM = /^[A-Za-z][A-Za-z0-9_]*$/;

/** Returns why a target may not have this extension method; null: it may. */
export function extensionMethodProblem(method: string): string | null {
  if (!METHOD.test(method)) return 'must be lower-case letters followed by one or more segments after slashes, such as acme/run';
  const ofProtocol = isRequestMethod(method) || OF_CLIENTS.includes(method) || method.startsWith('notifications/');
  return ofProtocol ? `${method} is a method of the protocol itself` : null;
}

const checked = (schema: Joi.StringSchema, problemOf: (value: string) => string | null): Joi.StringSchema =>
  schema.custom((value: string, helpers) => {
    const problem = problemOf(value);
    return problem === null ? value : helpers.message({ custom: problem });
  });
const absolutePath = checked(text(TARGET_LIMITS.path), (value) => (isAbsolute(value) ? null : 'must be an absolute path'));

const members = {
  name: Joi.string().pattern(TARGET_NAME).messages({
    'string.pattern.base': 'must begin with a letter a-z, contain only a-z, 0-9 and -, and have at most 63 characters',
  }),
  description: lines(TARGET_LIMITS.description).allow(null, ''),
  transport: Joi.valid(...TRANSPORTS),
  url: checked(Joi.string(), urlProblem),
  command: absolutePath,
  args: Joi.array().items(text(TARGET_LIMITS.arg).allow('')).max(TARGET_LIMITS.args),
  cwd: absolutePath.allow(null),
  env: Joi.object<Record<string, string>>().custom((env: Record<string, unknown>, helpers) => {
    const problem = envProblem(env);
    return problem === null ? env : helpers.message({ custom: problem });
  }),
  isolation: Joi.valid(...ISOLATIONS),
  enabled: Joi.boolean(),
  denials: Joi.valid('shown', 'hidden'),
  may_ask: Joi.array<readonly Askable[]>()
    .items(Joi.valid(...ASKABLE))
    .unique(),
  extension_methods: Joi.array<readonly ExtensionMethod[]>()
    .items(
      Joi.object<ExtensionMethod>({
        method: checked(Joi.string().max(TARGET_LIMITS.method), extensionMethodProblem).required(),
        resource_type: Joi.valid(...RESOURCE_TYPES).required(),
        param: Joi.string()
          .max(TARGET_LIMITS.param)
          .pattern(PARAM)
          .messages({ 'string.pattern.base': 'must be the plain name of a member of params' })
          .required(),
      }),
    )
    .unique('method')
    .max(TARGET_LIMITS.extensionMethods),
  user_credentials: Joi.array<readonly CredentialKey[]>().items(suppliedKey).unique('name').max(TARGET_LIMITS.userCredentials),
  capture_arguments: Joi.object<ArgumentCapture>({
    mask: Joi.array().items(text(TARGET_LIMITS.maskedName)).unique().max(TARGET_LIMITS.mask).required(),
  }).allow(null),
  timeout_ms: Joi.number().integer().min(TARGET_LIMITS.minTimeout).max(TARGET_LIMITS.maxTimeout).strict().allow(null),
};

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

const HTTP_MEMBERS = ['url'] as const;
const STDIO_MEMBERS = ['command', 'args', 'cwd', 'env', 'isolation'] as const;

const foreign = Joi.forbidden().messages({ 'any.unknown': 'is not for this transport' });
const ofKind = (stdio: boolean, schema: Joi.Schema): Joi.Schema =>
  Joi.when('transport', {
    is: Joi.valid('stdio').required(),
    // biome-ignore lint/suspicious/noThenProperty: joi's word for it
    then: stdio ? schema : foreign,
    otherwise: stdio ? foreign : schema,
  });

const newTarget = Joi.object<Members & { name: string }>({
  ...members,
  name: members.name.required(),
  url: ofKind(false, members.url.required()),
  command: ofKind(true, members.command.required()),
  args: ofKind(true, members.args),
  cwd: ofKind(true, members.cwd),
  env: ofKind(true, members.env),
  isolation: ofKind(true, members.isolation),
}).required();

const changedTarget = Joi.object<TargetUpdate>({
  id: uuid(),
  ...members,
  created_at: Joi.string(),
  updated_at: Joi.string(),
}).required();

const DEFAULTS = {
  description: null,
  enabled: true,
  denials: 'shown',
  may_ask: ASKABLE,
  extension_methods: [],
  user_credentials: [],
  capture_arguments: null,
  timeout_ms: null,
} as const satisfies Partial<TargetDocument>;
const STDIO_DEFAULTS = { args: [], cwd: null, env: {}, isolation: 'per_user' } as const satisfies Partial<StdioTarget>;

/** Throws AppError `invalid_request`, like the other functions here. */
export function readTarget(value: unknown): TargetDocument {
  const { name, transport = 'streamable-http', ...given } = validate(newTarget, value);
  return documentOf({ ...DEFAULTS, ...given, name, transport }, null);
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
  const errors: FieldError[] = (transport === 'stdio' ? HTTP_MEMBERS : STDIO_MEMBERS)
    .filter((name) => given[name] !== undefined)
    .map((path) => ({ path, message: `is not for the transport ${transport}` }));
  if (errors.length > 0) throw invalidRequest(errors);
  const { name, description, enabled, denials, may_ask, extension_methods } = before;
  const { user_credentials, capture_arguments, timeout_ms } = before;
  const kept = { name, description, enabled, denials, may_ask, extension_methods };
  return documentOf({ ...kept, user_credentials, capture_arguments, timeout_ms, ...given, transport }, before);
}

/** Members of the transport that `given` lacks are taken from `before`; null: a new target. */
function documentOf(
  given: Members & Required<Pick<TargetDocument, keyof typeof DEFAULTS | 'name' | 'transport'>>,
  before: Target | null,
): TargetDocument {
  const { name, description, enabled, denials, may_ask, extension_methods } = given;
  const { transport, user_credentials, capture_arguments, timeout_ms } = given;
  const options = { denials, may_ask, extension_methods, user_credentials, capture_arguments, timeout_ms };
  const base = { name, description, enabled, ...options };
  const unfit = user_credentials.findIndex(({ type }) => !fitsTransport(transport, type));
  if (unfit >= 0) {
    const message = `a target with the transport ${transport} takes only ${transport === 'stdio' ? 'env' : 'bearer and header'}`;
    throw invalidRequest([{ path: `user_credentials.${unfit}.type`, message }]);
  }
  if (transport !== 'stdio') {
    const url = given.url ?? (before?.transport !== 'stdio' ? before?.url : undefined);
    if (url === undefined) throw invalidRequest([{ path: 'url', message: `is required for the transport ${transport}` }]);
    return { ...base, transport, url };
  }
  const was = before?.transport === 'stdio' ? before : null;
  const command = given.command ?? was?.command;
  if (command === undefined) throw invalidRequest([{ path: 'command', message: 'is required for the transport stdio' }]);
  const kept = was ? { args: was.args, cwd: was.cwd, env: was.env, isolation: was.isolation } : STDIO_DEFAULTS;
  const { args = kept.args, cwd = kept.cwd, env = kept.env, isolation = kept.isolation } = given;
  return { ...base, transport, command, args, cwd, env, isolation };
}

type Shown<T> = Omit<T, 'created_at' | 'updated_at'> & { readonly created_at: string; readonly updated_at: string };
export type TargetJson = Shown<HttpTarget> | Shown<StdioTarget>;

export function targetJson(target: Target): TargetJson {
  const { id, name, description, enabled, denials, may_ask, extension_methods } = target;
  const { user_credentials, capture_arguments, timeout_ms } = target;
  const rest = {
    enabled,
    denials,
    may_ask,
    extension_methods,
    user_credentials,
    capture_arguments,
    timeout_ms,
    created_at: new Date(target.created_at).toISOString(),
    updated_at: new Date(target.updated_at).toISOString(),
  };
  if (target.transport !== 'stdio') return { id, name, description, transport: target.transport, url: target.url, ...rest };
  const { transport, command, args, cwd, env, isolation } = target;
  return { id, name, description, transport, command, args, cwd, env, isolation, ...rest };
}
