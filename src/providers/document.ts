/** Providers in the REST API: what a request may contain, and the JSON of an answer. */
import Joi from 'joi';
import {
  type ClaimPath,
  PRESETS,
  type Provider,
  type ProviderRule,
  type ProviderTokens,
  TOKEN_TYPES,
  type TokenType,
} from '../auth/provider.ts';
import { type FieldError, invalidRequest } from '../base/errors.ts';
import { isLoopbackName } from '../base/network/network-address.ts';
import { asTimestamp, checked, model, readOnly, readOnlyErrors, text, uuid, validate } from '../base/validate.ts';
import { USER_LIMITS } from '../users/document.ts';
import { ADMIN, AUDITOR, LOCAL_ISSUER } from '../users/user-store.ts';
import { ALGORITHMS, PRESET_SETTINGS, PRESET_TOKEN_TYPES, type Settings } from './settings.ts';

const LIMITS = {
  issuer: 255,
  text: 512,
  secret: 4096,
  list: 64,
  rules: 512,
  path: 8,
  skew: 300,
  outage: 24 * 60,
} as const;

/** The name is part of addresses. */
export const PROVIDER_NAME = /^[a-z][a-z0-9-]{0,62}$/;
const DOMAIN = /^[a-z0-9-]+(\.[a-z0-9-]+)+$/;
const ASCII = /^[\x21-\x7e]+$/;

/** Returns why an address of a provider is not usable; null: it is. */
export function addressProblem(value: string): string | null {
  if (!ASCII.test(value) || !URL.canParse(value)) return 'must be an absolute URL in ASCII';
  const { protocol, hostname, username, password } = new URL(value);
  if (username !== '' || password !== '') return 'must not contain a user or password';
  if (protocol === 'https:' || (protocol === 'http:' && isLoopbackName(hostname))) return null;
  return 'must begin with https://';
}

function issuerProblem(value: string): string | null {
  if (value.length > LIMITS.issuer) return `must have at most ${LIMITS.issuer} characters`;
  if (value === LOCAL_ISSUER) return 'is the issuer of local accounts';
  return /[?#]/.test(value) ? 'must have no query and no fragment' : addressProblem(value);
}

type NewTokens = Pick<ProviderTokens, 'audiences'> & Partial<ProviderTokens>;

const claimPath = () =>
  Joi.array<ClaimPath>()
    .items(text(LIMITS.text))
    .min(1)
    .max(LIMITS.path)
    .description('The path of a claim in the payload, one name for each level: `["realm_access", "roles"]`.');

const optionalPath = () => claimPath().allow(null);

const names = () => Joi.array<readonly string[]>().items(text(USER_LIMITS.name)).unique().max(LIMITS.list);

const rule = checked<Joi.ObjectSchema<ProviderRule>, ProviderRule>(
  model<ProviderRule>('ProviderRule', {
    if_group: text(USER_LIMITS.name).allow(null).default(null).description('A group in the claim of the groups.'),
    if_role: text(USER_LIMITS.name).allow(null).default(null).description('A value of the claim of the role.'),
    role: text(USER_LIMITS.name).allow(null).default(null).description('The role that the user gets. The first rule decides.'),
    groups: names().default([]).description('Groups that the user gets. All matching rules count.'),
  }),
  ({ if_group, if_role, role, groups }) => {
    if ((if_group === null) === (if_role === null)) return 'must have either `if_group` or `if_role`';
    return role === null && groups.length === 0 ? 'must give a role or groups' : null;
  },
);

const tokenMembers = {
  audiences: Joi.array()
    .items(text(LIMITS.text))
    .min(1)
    .max(LIMITS.list)
    .unique()
    .required()
    .description('The claim `aud` must contain one of these.'),
  types: Joi.array<readonly TokenType[]>()
    .items(Joi.valid(...TOKEN_TYPES))
    .min(1)
    .unique()
    .description('Accepted values of `typ` in the header; `absent`: the header has none.'),
  subject_claim: optionalPath().default(null).description('Where access tokens have the subject; null: like ID tokens.'),
  app_only: Joi.boolean()
    .default(false)
    .description('Whether tokens are accepted that an application of Entra got for itself, without a person.'),
};
const tokens = model<ProviderTokens>('ProviderTokens', { ...tokenMembers, types: tokenMembers.types.required() });
const newTokens = model<NewTokens>('NewProviderTokens', {
  ...tokenMembers,
  types: tokenMembers.types.description('Accepted values of `typ` in the header. Absent: those of the preset.'),
});

/** The members that may change. */
const members = {
  title: text(128).description('What the button on the sign-in page says.'),
  enabled: Joi.boolean().description('If false, the provider and all of its users are refused at once.'),
  client_id: text(LIMITS.text),
  scopes: Joi.array()
    .items(
      Joi.string()
        .max(LIMITS.text)
        .pattern(/^[\x21\x23-\x5b\x5d-\x7e]+$/),
    )
    .has(Joi.valid('openid'))
    .max(LIMITS.list)
    .unique()
    .messages({ 'array.hasUnknown': 'must contain `openid`' }),
  algorithms: Joi.array()
    .items(Joi.valid(...ALGORITHMS))
    .min(1)
    .unique()
    .description('The algorithms with which the provider may sign.'),
  required_claims: Joi.object<Record<string, readonly string[]>>()
    .pattern(/^.{1,256}$/, Joi.array().items(text(LIMITS.text)).min(1).max(LIMITS.list))
    .max(LIMITS.list)
    .description('Claims that every token must have, each with one of these values.'),
  tokens: tokens
    .allow(null)
    .description('Which access tokens programs may present; null: none. ID tokens are never accepted as access tokens.'),
  id_jag: Joi.boolean().description(
    'Whether OAuth clients may exchange an ID-JAG of the provider for an access token (enterprise-managed authorization).',
  ),
  subject_claim: claimPath(),
  email_claim: optionalPath(),
  role_claim: optionalPath(),
  groups_claim: optionalPath(),
  role_required: Joi.boolean().description('Whether a token without the claim of the role is refused.'),
  groups_required: Joi.boolean().description('Whether a token without the claim of the groups is refused.'),
  groups_from: Joi.valid('token', 'directory').description(
    'Where groups come from. `directory`: from the directory over SCIM alone; users whom it has not sent are refused.',
  ),
  rules: Joi.array<readonly ProviderRule[]>().items(rule).max(LIMITS.rules),
  default_role: checked(text(USER_LIMITS.name), (role) =>
    role === ADMIN || role === AUDITOR ? 'must not carry rights of administration: use a rule' : null,
  )
    .allow(null)
    .description('The role of users to whom neither a rule nor a claim gives one; null: they are refused.'),
  email_domains: Joi.array()
    .items(Joi.string().max(253).pattern(DOMAIN))
    .max(LIMITS.list)
    .unique()
    .description('Domains that e-mails must have, in lower case. Empty: any e-mail, or none.'),
  provisioning: Joi.boolean().description('Whether users are created when they are first seen.'),
  clock_skew_seconds: Joi.number().integer().min(0).max(LIMITS.skew).strict(),
  outage_minutes: Joi.number()
    .integer()
    .min(1)
    .max(LIMITS.outage)
    .strict()
    .description('How long the keys that were read last may be used while the provider cannot be reached.'),
} satisfies Record<Exclude<keyof Settings, 'preset'> | 'enabled', Joi.Schema>;

const fixed = {
  name: Joi.string().pattern(PROVIDER_NAME).messages({
    'string.pattern.base': 'must begin with a letter a-z, contain only a-z, 0-9 and -, and have at most 63 characters',
  }),
  preset: Joi.valid(...PRESETS).description('The kind of provider. It sets the members that the request leaves out.'),
  issuer: checked(Joi.string(), issuerProblem)
    .meta({ maxLength: LIMITS.issuer })
    .description('The issuer exactly as the provider writes it in tokens. It never changes.'),
};
const secret = text(LIMITS.secret).allow(null).description('Stored encrypted, and never shown.');

export const providerMembers = { ...fixed, ...members };

type Kept = 'id' | 'created_at' | 'updated_at';
type Document = Omit<Provider, Kept>;

export type NewProvider = Partial<Omit<Document, 'tokens'>> &
  Pick<Document, 'name' | 'preset' | 'issuer' | 'client_id'> & {
    readonly tokens?: NewTokens | null;
    readonly client_secret?: string | null;
  };

export const newProvider = model<NewProvider>('NewProvider', {
  ...members,
  name: fixed.name.required(),
  preset: fixed.preset.required(),
  issuer: fixed.issuer.required(),
  client_id: members.client_id.required(),
  client_secret: secret,
  tokens: newTokens.allow(null),
}).required();

export interface ProviderUpdate extends Partial<Omit<Document, 'name' | 'preset' | 'issuer'>> {
  readonly id?: string;
  readonly name?: string;
  readonly preset?: string;
  readonly issuer?: string;
  readonly client_secret?: string | null;
  readonly client_secret_set?: boolean;
  readonly created_at?: string;
  readonly updated_at?: string;
}

export const providerUpdate = model<ProviderUpdate>('ProviderUpdate', {
  id: readOnly(uuid()),
  name: readOnly(fixed.name),
  preset: readOnly(fixed.preset),
  issuer: readOnly(Joi.string()),
  ...members,
  client_secret: secret,
  client_secret_set: readOnly(Joi.boolean()),
  created_at: readOnly(asTimestamp(Joi.string())),
  updated_at: readOnly(asTimestamp(Joi.string())),
}).required();

export const identity = model<{ issuer: string; subject: string }>('ProviderIdentity', {
  issuer: Joi.string().required().description('The issuer of a provider.'),
  subject: text(LIMITS.issuer).required().description('The subject that the provider gives to the account.'),
}).required();

export type ProviderJson = ReturnType<typeof providerJson>;

/** The members are in the order of the API. */
export function providerJson(provider: Provider, client_secret_set: boolean) {
  const { id, name, title, preset, issuer, enabled, client_id, created_at, updated_at, ...settings } = provider;
  return {
    ...{ id, name, title, preset, issuer, enabled, client_id, client_secret_set },
    ...settings,
    created_at: new Date(created_at).toISOString(),
    updated_at: new Date(updated_at).toISOString(),
  };
}

/** Returns the new provider, with what its preset sets. Throws AppError `invalid_request`, like the other functions here. */
export function readProvider(value: unknown, kept: Pick<Provider, Kept>) {
  const { client_secret = null, tokens: given = null, ...document } = validate(newProvider, value);
  const types = given?.types ?? PRESET_TOKEN_TYPES[document.preset];
  const provider: Provider = {
    ...kept,
    title: document.name,
    enabled: true,
    ...PRESET_SETTINGS[document.preset],
    ...document,
    tokens: given && { subject_claim: null, app_only: false, ...given, types },
  };
  checkTogether(provider);
  return { provider, client_secret };
}

/** `client_secret` undefined: it stays. */
export function readProviderUpdate(value: unknown, before: Provider, client_secret_set: boolean, now: number) {
  const update = validate(providerUpdate, value);
  const shown = providerJson(before, client_secret_set);
  const errors = readOnlyErrors(
    ['id', 'name', 'preset', 'issuer', 'client_secret_set', 'created_at', 'updated_at'],
    update,
    shown,
  );
  if (errors.length > 0) throw invalidRequest(errors);
  const { client_secret, client_secret_set: _, created_at: __, updated_at: ___, id: ____, ...given } = update;
  const { name, preset, issuer } = before;
  const provider: Provider = { ...before, ...given, name, preset, issuer, updated_at: now };
  checkTogether(provider);
  const isSame =
    JSON.stringify(providerJson({ ...provider, updated_at: before.updated_at }, true)) ===
    JSON.stringify(providerJson(before, true));
  return { provider: isSame ? before : provider, client_secret };
}

/** Checks what several members say together. */
function checkTogether({ client_id, tokens, rules, role_claim, groups_claim, groups_from }: Provider): void {
  const errors: FieldError[] = [];
  const onlyMarked = tokens?.types.every((type) => type === 'at+jwt');
  if (tokens?.audiences.includes(client_id) && !onlyMarked) {
    const message =
      'must not contain the client id, which is the audience of ID tokens: register the gateway as an API of its own at the provider, or accept only the type `at+jwt`';
    errors.push({ path: 'tokens.audiences', message });
  }
  for (const [index, { if_group, if_role }] of rules.entries()) {
    if (if_group !== null && groups_claim === null && groups_from === 'token')
      errors.push({
        path: `rules.${index}.if_group`,
        message: 'needs `groups_claim`, or `groups_from` with the value `directory`',
      });
    if (if_role !== null && role_claim === null) errors.push({ path: `rules.${index}.if_role`, message: 'needs `role_claim`' });
  }
  if (errors.length > 0) throw invalidRequest(errors);
}
