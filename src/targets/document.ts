/** Targets and their credentials on the wire: what a request may hold, and how they are shown. */
import Joi from 'joi';
import { text, uuid, validate } from '../http/validate.ts';
import { isLinkLocal } from './address.ts';
import { TARGET_NAME, type Target, TRANSPORTS, type Transport, type UpstreamCredential } from './target.ts';

/** A target as somebody wrote it, defaults filled in. */
export type TargetDocument = Omit<Target, 'id' | 'created_at' | 'updated_at'>;

/** What is omitted stays. The read-only members may be there as they were read. */
export interface TargetUpdate extends Partial<TargetDocument> {
  readonly id?: string;
  readonly created_at?: string;
  readonly updated_at?: string;
}

const SUPPORTED: readonly Transport[] = ['streamable-http'];
export const TARGET_LIMITS = { description: 4096, url: 2048 } as const;
export const CREDENTIAL_LIMITS = { name: 256, value: 8192 } as const;

/** Why the gateway does not connect to such a URL, or null. */
function urlProblem(value: string): string | null {
  if (value.length > TARGET_LIMITS.url) return `must have at most ${TARGET_LIMITS.url} characters`;
  if (!/^[\x21-\x7e]+$/.test(value) || value.includes('\\') || !URL.canParse(value)) return 'must be an absolute URL in ASCII';
  const [, authority] = /^https?:\/\/([^/?#]+)/i.exec(value) ?? [];
  if (authority === undefined) return 'must begin with http:// or https:// and a host';
  if (authority.includes('@')) return 'must not hold a user or password: set a credential of the target instead';
  if (value.includes('#')) return 'must not have a fragment';
  if (isLinkLocal(new URL(value).hostname)) return 'must not be a link-local address';
  return null;
}

const members = {
  name: Joi.string()
    .pattern(TARGET_NAME)
    .messages({ 'string.pattern.base': 'must begin with a letter a-z and hold only a-z, 0-9 and -, at most 63 in all' }),
  description: text(TARGET_LIMITS.description).allow(null, ''),
  transport: Joi.string().custom((value: string, helpers) => {
    const known = TRANSPORTS.find((transport) => transport === value);
    if (known === undefined) return helpers.message({ custom: `must be one of [${TRANSPORTS.join(', ')}]` });
    return SUPPORTED.includes(known) ? known : helpers.message({ custom: `${known} is not supported yet: use streamable-http` });
  }),
  url: Joi.string().custom((value: string, helpers) => {
    const problem = urlProblem(value);
    return problem === null ? value : helpers.message({ custom: problem });
  }),
  enabled: Joi.boolean(),
};

type TargetInput = Pick<TargetDocument, 'name' | 'url'> & Partial<TargetDocument>;

const newTarget = Joi.object<TargetInput>({
  ...members,
  name: members.name.required(),
  url: members.url.required(),
}).required();

const changedTarget = Joi.object<TargetUpdate>({
  id: uuid(),
  ...members,
  created_at: Joi.string(),
  updated_at: Joi.string(),
}).required();

/** Throws AppError `invalid_request`, as the others here do. */
export function readTarget(value: unknown): TargetDocument {
  const { description = null, transport = 'streamable-http', enabled = true, ...rest } = validate(newTarget, value);
  return { ...rest, description, transport, enabled };
}

export function readTargetUpdate(value: unknown): TargetUpdate {
  return validate(changedTarget, value);
}

export interface TargetJson extends Omit<Target, 'created_at' | 'updated_at'> {
  readonly created_at: string;
  readonly updated_at: string;
}

export function targetJson(target: Target): TargetJson {
  return {
    id: target.id,
    name: target.name,
    description: target.description,
    transport: target.transport,
    url: target.url,
    enabled: target.enabled,
    created_at: new Date(target.created_at).toISOString(),
    updated_at: new Date(target.updated_at).toISOString(),
  };
}

/** Where a credential may go. */
export const originOf = (url: string): string => new URL(url).origin;

/** Headers that mean something to the connection, to MCP or to the gateway itself; and the one name that no object can hold. */
const RESERVED_HEADERS =
  /^(connection|keep-alive|proxy-.*|te|trailer|transfer-encoding|upgrade|host|expect|via|forwarded|x-forwarded-.*|content-.*|accept|accept-.*|cookie2?|set-cookie2?|origin|referer|user-agent|range|if-.*|date|mcp-.*|last-event-id|sec-.*|access-control-.*|traceparent|tracestate|baggage|__proto__)$/;
const TOKEN = /^[!#$%&'*+.^_`|~0-9a-z-]+$/;

const value = Joi.string()
  .max(CREDENTIAL_LIMITS.value)
  .pattern(/^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/)
  .messages({ 'string.pattern.base': 'must be printable ASCII without blanks at its ends' })
  .required();

const headerName = Joi.string()
  .max(CREDENTIAL_LIMITS.name)
  .custom((name: string, helpers) => {
    const lower = name.toLowerCase();
    if (!TOKEN.test(lower)) return helpers.message({ custom: 'must be the name of an HTTP header' });
    return RESERVED_HEADERS.test(lower) ? helpers.message({ custom: `the header ${name} cannot carry a credential` }) : lower;
  });

const credential = Joi.object<{ type: 'bearer' | 'header'; name?: string; value: string }>({
  type: Joi.valid('bearer', 'header').required(),
  name: Joi.when('type', {
    is: 'header',
    // biome-ignore lint/suspicious/noThenProperty: joi's word for it
    then: headerName.required(),
    otherwise: Joi.forbidden().messages({ 'any.unknown': 'is for the type header alone' }),
  }),
  value,
}).required();

export type CredentialType = 'bearer' | 'header';

/** A bearer token goes in `Authorization`, spelled so; every other header name is in lower case. The spelling tells the two apart in the table. */
export const BEARER_HEADER = 'Authorization';

export function readCredential(body: unknown): UpstreamCredential {
  const read = validate(credential, body);
  if (read.type === 'header' && read.name !== undefined) return { header: read.name, value: read.value };
  return { header: BEARER_HEADER, value: `Bearer ${read.value}` };
}
