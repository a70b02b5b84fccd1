/** What presets set, and which members of a provider are stored as one JSON text. */
import type { Provider, TokenType } from '../auth/provider.ts';

/** The members of a provider that have no column of their own. */
export const SETTINGS = [
  ...(['title', 'preset', 'client_id', 'scopes', 'algorithms', 'required_claims', 'tokens', 'id_jag'] as const),
  ...(['subject_claim', 'email_claim', 'role_claim', 'role_required', 'groups_claim', 'groups_required'] as const),
  ...(['groups_from', 'rules', 'default_role', 'email_domains', 'provisioning', 'clock_skew_seconds', 'outage_minutes'] as const),
] as const satisfies readonly (keyof Provider)[];

export type Settings = Pick<Provider, (typeof SETTINGS)[number]>;

/** Settings that a new provider has if its description leaves them out. */
export type Preset = Omit<Settings, 'title' | 'preset' | 'client_id' | 'tokens'>;

/** Algorithms with a private key at the provider. `none` and those with a shared secret are not among them. */
export const ALGORITHMS = [
  ...['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512'],
  ...['ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519'],
] as const;

/** What OpenID Connect says without extensions: no claim of roles or groups is standard. */
const OPENID: Preset = {
  scopes: ['openid', 'profile', 'email'],
  algorithms: ['RS256'],
  required_claims: {},
  id_jag: false,
  subject_claim: ['sub'],
  email_claim: ['email'],
  role_claim: null,
  role_required: true,
  groups_claim: null,
  groups_required: true,
  groups_from: 'token',
  rules: [],
  default_role: 'user',
  email_domains: [],
  provisioning: true,
  clock_skew_seconds: 30,
  outage_minutes: 60,
};

export const PRESET_SETTINGS: Readonly<Record<Provider['preset'], Preset>> = {
  openid: OPENID,
  // `sub` differs between applications of a tenant, `oid` does not. Entra leaves a claim out if it would be empty.
  entra: {
    ...OPENID,
    subject_claim: ['oid'],
    role_claim: ['roles'],
    role_required: false,
    groups_claim: ['groups'],
    groups_required: false,
  },
  okta: { ...OPENID, scopes: [...OPENID.scopes, 'groups'], groups_claim: ['groups'] },
  google: OPENID,
  // Auth0 gives claims of its own only under names that are URLs.
  auth0: OPENID,
  keycloak: { ...OPENID, groups_claim: ['groups'] },
};

/** How access tokens of these providers are marked. */
export const PRESET_TOKEN_TYPES: Readonly<Record<Provider['preset'], readonly TokenType[]>> = {
  openid: ['at+jwt'],
  entra: ['JWT'],
  okta: ['JWT', 'absent'],
  // Access tokens of Google are not JWTs.
  google: ['at+jwt'],
  auth0: ['JWT', 'at+jwt'],
  keycloak: ['JWT'],
};
