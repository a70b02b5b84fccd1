/** Why tokens and sign-ins of a provider are refused: one text for the user, another with the facts for administrators. */

/** By kind, what the user reads. */
const FOR_USERS = {
  provider_disabled: 'The provider of the token is disabled. Ask an administrator.',
  tokens_not_accepted: 'Access tokens of this provider are not accepted here. Sign in instead, or ask an administrator.',
  token_malformed: 'The token is not a signed JWT that the gateway can read.',
  token_type: 'This is not an access token. Send an access token of the provider, not an ID token.',
  token_algorithm: 'The token is signed with an algorithm that is not accepted for this provider.',
  token_key: 'The provider does not publish the key that signed the token. Get a new token and try again.',
  token_signature: 'The signature of the token is wrong.',
  token_audience: 'The token was issued for a different service. Request a token for this gateway.',
  token_claim: 'The token lacks a claim that this gateway requires. Ask an administrator.',
  token_expired: 'The token has expired. Get a new one.',
  token_early: 'The token is not valid yet. The clocks of the provider and the gateway may differ.',
  token_bound: 'The token is bound to a key of its client, which is not supported. Request a plain bearer token.',
  tokens_ended: 'It was issued before your tokens were ended. Get a new one.',
  assertions_not_accepted:
    'Assertions of this issuer are not accepted here. Ask an administrator to set id_jag for the provider.',
  assertion_type: 'This is not an ID-JAG (`typ` oauth-id-jag+jwt). Exchange the ID token for one at the provider.',
  assertion_audience:
    'The assertion was issued for a different authorization server. Its audience must be the issuer of this one.',
  assertion_client: 'The assertion was issued for a different client. Its client_id must be that of the client that presents it.',
  assertion_resource: 'The claim resource of the assertion must be the address of one MCP endpoint of this gateway.',
  assertion_scope: 'The scope of the assertion does not contain mcp.',
  assertion_lifetime: 'The assertion is valid for more than an hour. Ask an administrator to shorten it at the provider.',
  assertion_used: 'The assertion has no jti, or was used before. Get a new one from the provider.',
  subject_missing: 'The token does not say who you are. Ask an administrator.',
  claim_malformed: 'A claim of the token has a form that the gateway does not accept. Ask an administrator.',
  app_only:
    'The token belongs to an application and not to a person. Sign in, or ask an administrator to accept tokens of applications (tokens.app_only).',
  role_missing: 'The token does not say which role you have. Ask an administrator to have the provider add it.',
  groups_missing: 'The token does not contain your groups. Ask an administrator to have the provider add them.',
  groups_overage:
    'You are in more groups than the provider puts into a token. Ask an administrator to limit the groups in the token to those that this gateway needs.',
  facts_too_large:
    'Your role and groups are too large. Ask an administrator to set a group filter at the provider, so that the token has fewer groups.',
  no_role: 'You have no role here. Ask an administrator for access.',
  email_domain: 'Your e-mail address is missing, or not in a domain that may use this gateway.',
  email_unverified:
    'Your e-mail address has not been verified by the provider, so this gateway does not accept it. Verify it there, and sign in again.',
  directory_inactive: "Your company's directory has deactivated your account. Ask an administrator.",
  not_in_directory: "Your company's directory has not sent your account to this gateway yet. Ask an administrator to assign you.",
  too_many_groups: 'You are in more groups than this gateway can take. Ask an administrator to assign fewer groups to it.',
  not_provisioned: 'You have no account here. Ask an administrator to create one.',
  sign_in_failed: 'The sign-in was not completed. Start again.',
  provider_changed: 'An administrator has just changed the settings of the provider. Try again.',
  provider_unreachable: 'The provider cannot be reached at the moment. Try again later.',
} as const;

export type FaultKind = keyof typeof FOR_USERS;
export const FAULT_KINDS = Object.keys(FOR_USERS) as readonly FaultKind[];

/** `reason` is for administrators. It never contains a token. */
export interface ProviderFault {
  readonly fault: FaultKind;
  readonly reason: string;
}

export const faulty = (fault: FaultKind, reason: string): ProviderFault => ({ fault, reason });
export const isFault = (value: object): value is ProviderFault => 'fault' in value;
/** Whether the token is not at fault: the client must keep it and try again. */
export const isPassing = ({ fault }: ProviderFault): boolean => fault === 'provider_unreachable' || fault === 'provider_changed';
export const forUser = ({ fault }: ProviderFault): string => FOR_USERS[fault];

/** A fault that happened, possibly several times in a row. */
export interface SeenFault {
  readonly kind: FaultKind;
  readonly message: string;
  readonly count: number;
  readonly at: number;
}

const KEPT = 20;
const MAX_REASON = 1_000;

export type FaultLog = ReturnType<typeof createFaultLog>;

/** Keeps the last faults of each provider in the memory of this replica. */
export function createFaultLog(now: () => number) {
  const byProvider = new Map<string, SeenFault[]>();
  return {
    note(providerId: string, { fault: kind, reason }: ProviderFault): void {
      const message = reason.slice(0, MAX_REASON);
      const seen = byProvider.get(providerId) ?? [];
      const before = seen.find((one) => one.kind === kind && one.message === message);
      const others = seen.filter((one) => one !== before);
      const next = [{ kind, message, count: (before?.count ?? 0) + 1, at: now() }, ...others].slice(0, KEPT);
      byProvider.set(providerId, next);
    },
    /** Newest first. */
    of: (providerId: string): readonly SeenFault[] => byProvider.get(providerId) ?? [],
    forget: (providerId: string): void => void byProvider.delete(providerId),
  };
}
