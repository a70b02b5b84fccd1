/** API tokens in the REST API: what a request for one may contain, and the JSON of an answer. */
import Joi from 'joi';
import type { TokenLimits } from '../../auth/principal.ts';
import { type Held, has, isOwned, OWNED_RIGHTS, RIGHTS, type Right } from '../../auth/rights.ts';
import type { NewApiToken } from '../../auth/sign-in/issue.ts';
import { TOKEN_NAME_MAX, type TokenRecord } from '../../auth/token-store.ts';
import { type FieldError, invalidRequest } from '../../base/errors.ts';
import { instant, model, text, validate } from '../../base/validate.ts';
import { ownerName } from '../../policies/sets/bodies.ts';
import { type Admission, mayUseTarget } from '../../state/admission.ts';
import * as s from '../openapi/schema.ts';

/** Stands for every target in `endpoints`. No target has this name. */
const EVERY = '*';
const ENDPOINTS_MAX = 100;

interface LimitsBody {
  readonly rights?: readonly Right[];
  readonly owner?: string;
  readonly endpoints?: readonly string[];
}

interface TokenBody {
  readonly name: string;
  readonly expires_at?: number | null;
  readonly limits?: LimitsBody | null;
}

const limitsBody = model<LimitsBody>('NewTokenLimits', {
  rights: Joi.array()
    .items(Joi.valid(...RIGHTS))
    .unique()
    .description('The rights of the user that the token has. Absent: none.'),
  owner: ownerName.description(
    `${OWNED_RIGHTS.join(' and ')} cover only policies of this owner. Absent: every owner that the user has.`,
  ),
  endpoints: Joi.array()
    .items(
      Joi.string()
        .pattern(/^(\*|[a-z][a-z0-9-]{0,62})$/)
        .messages({ 'string.pattern.base': 'must be the name of a target, or *' }),
    )
    .unique()
    .max(ENDPOINTS_MAX)
    .description('The names of the targets that the token may use, or only `*` for every target. Absent: none.'),
})
  .or('rights', 'endpoints')
  .messages({ 'object.missing': 'must have `rights`, `endpoints` or both: a token with limits has only what they name' });

export const newApiToken = model<TokenBody>('NewApiToken', {
  name: text(TOKEN_NAME_MAX).required(),
  expires_at: instant().allow(null).description('When the token ends. Absent or null: never.'),
  limits: limitsBody
    .allow(null)
    .description(
      'The token has what the limits name, if its user has it, and nothing else. Absent or null: the token has no limits.',
    ),
}).required();

const shownLimits = s.model<NonNullable<ApiTokenJson['limits']>>('TokenLimits', {
  rights: s.listOf(s.oneOf(RIGHTS)),
  owner: s.orNull(s.string),
  endpoints: s.described('The names that the targets had when the token was made; only `*`: every target.', s.listOf(s.string)),
});

export const ApiToken = s.model<ApiTokenJson>('ApiToken', {
  id: s.uuid,
  name: s.string,
  created_at: s.time,
  expires_at: s.described('null: the token does not expire.', s.orNull(s.time)),
  limits: s.described('null: the token has no limits.', s.orNull(shownLimits)),
});

type ApiTokenJson = ReturnType<typeof apiTokenJson>;

export const apiTokenJson = ({ id, name, created_at, expires_at, limits }: TokenRecord) => ({
  id,
  // Only login tokens have no name.
  name: name ?? '',
  created_at: new Date(created_at).toISOString(),
  expires_at: expires_at === null ? null : new Date(expires_at).toISOString(),
  limits: limits && limitsJson(limits),
});

export const endpointNames = ({ endpoints }: TokenLimits): string[] =>
  endpoints === null ? [EVERY] : endpoints.map(({ name }) => name);

const limitsJson = (limits: TokenLimits) => ({
  rights: [...limits.rights],
  owner: limits.owner,
  endpoints: endpointNames(limits),
});

/** Reads the body of a request for a token. Throws AppError `invalid_request` if it asks for more than the caller has. */
export function readApiToken(body: unknown, admission: Admission, held: Held, now: number): NewApiToken {
  const { name, expires_at = null, limits = null } = validate(newApiToken, body);
  const errors: FieldError[] = [];
  if (expires_at !== null && expires_at <= now) errors.push({ path: 'expires_at', message: 'must be in the future' });
  const read = limits && readLimits(limits, admission, held, errors);
  if (errors.length > 0) throw invalidRequest(errors);
  return { name, expires_at, limits: read };
}

function readLimits(
  { rights = [], owner, endpoints = [] }: LimitsBody,
  admission: Admission,
  held: Held,
  errors: FieldError[],
): TokenLimits {
  const refuse = (path: string, message: string): number => errors.push({ path: `limits.${path}`, message });
  for (const [at, right] of rights.entries()) {
    if (!has(held, right)) refuse(`rights.${at}`, `you do not have the right ${right}`);
  }
  if (owner !== undefined && !rights.some(isOwned)) {
    refuse('owner', `needs ${OWNED_RIGHTS.join(' or ')} in \`rights\`: other rights have no owner`);
  }
  const every = endpoints.includes(EVERY);
  if (every && endpoints.length > 1) refuse('endpoints', `must have no other names together with ${EVERY}`);
  const named = every
    ? null
    : endpoints.map((name, at) => {
        const target = admission.snapshot.targets.get(name);
        if (target !== undefined && mayUseTarget(admission, target)) return { id: target.id, name };
        refuse(`endpoints.${at}`, `no target ${name}, or no policy lets you use it`);
        return { id: '', name };
      });
  return { rights, owner: owner ?? null, endpoints: named };
}
