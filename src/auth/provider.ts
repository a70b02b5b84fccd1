/** A company's OpenID provider, whose accounts may use the gateway. This file has only types. The code that uses them is in `src/providers`. */

/** The path of a claim in the payload: one name for each level, such as `['realm_access', 'roles']`. */
export type ClaimPath = readonly string[];

/** Gives a role, groups or both to users whom the provider puts into a group, or to whom it gives a role. */
export interface ProviderRule {
  readonly if_group: string | null;
  readonly if_role: string | null;
  readonly role: string | null;
  readonly groups: readonly string[];
}

/** `absent`: the header has no `typ`. */
export const TOKEN_TYPES = ['at+jwt', 'JWT', 'absent'] as const;
export type TokenType = (typeof TOKEN_TYPES)[number];

/** Which access tokens of the provider programs may present. */
export interface ProviderTokens {
  readonly audiences: readonly string[];
  /** Accepted values of `typ` in the header. */
  readonly types: readonly TokenType[];
  /** The claim of the subject in access tokens; null: the same as at sign-in. */
  readonly subject_claim: ClaimPath | null;
  /** Whether tokens that an application of Entra got for itself are accepted, without a person. */
  readonly app_only: boolean;
}

export const PRESETS = ['entra', 'okta', 'google', 'auth0', 'keycloak', 'openid'] as const;

export interface Provider {
  readonly id: string;
  readonly name: string;
  /** What people see on the sign-in page. */
  readonly title: string;
  readonly preset: (typeof PRESETS)[number];
  /** Compared byte for byte. It never changes, because users are identified by it. */
  readonly issuer: string;
  readonly enabled: boolean;
  readonly client_id: string;
  readonly scopes: readonly string[];
  readonly algorithms: readonly string[];
  /** Claims that every token must have, with one of these values. */
  readonly required_claims: Readonly<Record<string, readonly string[]>>;
  /** null: programs may not present access tokens of the provider. */
  readonly tokens: ProviderTokens | null;
  /** Whether OAuth clients may exchange an identity assertion of the provider (ID-JAG) for an access token, without asking the user. */
  readonly id_jag: boolean;
  readonly subject_claim: ClaimPath;
  readonly email_claim: ClaimPath | null;
  readonly role_claim: ClaimPath | null;
  readonly groups_claim: ClaimPath | null;
  /** Whether a token without the claim of the role is refused. Otherwise the claim gives its user no role. */
  readonly role_required: boolean;
  /** Whether a token without the claim of the groups is refused. Otherwise its user has no groups. */
  readonly groups_required: boolean;
  /** `directory`: groups come from the company's directory over SCIM, and those of tokens do not count. */
  readonly groups_from: 'token' | 'directory';
  readonly rules: readonly ProviderRule[];
  /** The role of users to whom no rule and no claim gives one; null: they are refused. */
  readonly default_role: string | null;
  /** In lower case. Empty: any e-mail, or none. */
  readonly email_domains: readonly string[];
  /** Whether users are created when they are first seen. */
  readonly provisioning: boolean;
  readonly clock_skew_seconds: number;
  /** How long the keys that were read last may be used while the provider cannot be reached. */
  readonly outage_minutes: number;
  readonly created_at: number;
  readonly updated_at: number;
}

/** Enabled providers by issuer. */
export type Providers = ReadonlyMap<string, Provider>;
