/**
 * Enterprise-managed authorization: a client presents an identity assertion of the company's provider (ID-JAG) and gets an access token for
 * the endpoint that the assertion names, without asking the user. The provider has decided whether the client may act for the user. Clients
 * get no refresh token: they ask the provider for the next assertion (draft-ietf-oauth-identity-assertion-authz-grant).
 */
import type Provider from 'oidc-provider';
import type { TokenEndpointGrantContext } from 'oidc-provider';
import { type Principal, userKey } from '../auth/principal.ts';
import type { Providers as Companies, Provider as Company } from '../auth/provider.ts';
import { AppError } from '../base/errors.ts';
import { type FaultLog, faulty, forUser, isFault, isPassing, type ProviderFault } from '../providers/faults.ts';
import { type IdJag, judgeIdJag } from '../providers/judge.ts';
import type { ProviderKeys } from '../providers/keys.ts';
import { type People, refusalOf } from '../providers/people.ts';
import { issuerOf, verified } from '../providers/tokens.ts';
import { principalOf } from '../state/admission.ts';
import type { User } from '../users/user-store.ts';
import { factsOf, isDocument } from './client-rules.ts';
import { type Grants, MOST_GRANTS } from './grants.ts';
import { resourceOf, resourceServer } from './resources.ts';

export const ID_JAG_GRANT_TYPE = 'urn:ietf:params:oauth:grant-type:jwt-bearer';
const SCOPE = 'mcp';

export interface IdJagParts {
  readonly publicUrl: string;
  readonly grants: Grants;
  readonly companies: {
    readonly keys: Pick<ProviderKeys, 'find'>;
    readonly people: People;
    readonly faults: FaultLog;
    /** The enabled providers in a state at least as new as the call. */
    readonly fresh: () => Promise<Companies>;
  };
  /** Whether the user may get tokens now. */
  readonly admits: (user: User) => Promise<boolean>;
  /** Makes the error that the client gets. */
  readonly refusal: (error: string, description: string) => Error;
  readonly now: () => number;
}

interface Params {
  readonly assertion?: string;
  readonly scope?: string;
  readonly resource?: string | readonly string[];
}

type Context = TokenEndpointGrantContext<Params>;

/** Adds the grant type to the authorization server. */
export function registerIdJag(provider: Provider, parts: IdJagParts): void {
  const handler = createHandler(provider, parts);
  provider.registerGrantType<Params>(ID_JAG_GRANT_TYPE, handler, ['assertion', 'scope', 'resource']);
}

function createHandler(provider: Provider, { publicUrl, grants, companies, admits, refusal, now }: IdJagParts) {
  const { keys, people, faults, fresh } = companies;

  function refuse(company: Company, fault: ProviderFault): Error {
    faults.note(company.id, fault);
    if (isPassing(fault)) return new AppError('unavailable', forUser(fault), { retryAfter: 10 });
    return refusal('invalid_grant', forUser(fault));
  }

  /** Returns the user of the assertion, and first writes what the assertion says into the user's record. */
  async function userOf(company: Company, { subject, iat, presented, isPartial }: IdJag): Promise<User | ProviderFault> {
    // Most providers leave role and groups out of assertions. That does not mean that the user has none: the record tells.
    const known = isPartial ? await people.known(company, subject) : null;
    const user = known ?? (isFault(presented) ? presented : await people.settle(company, presented, 'an ID-JAG'));
    if (isFault(user)) return user;
    if (user.valid_after !== null && iat * 1_000 <= user.valid_after)
      return faulty(
        'tokens_ended',
        `the assertion of the subject ${subject} was issued before the tokens of the user were ended`,
      );
    return refusalOf(user, company, isFault(presented) ? null : presented) ?? user;
  }

  /** Refuses clients that have neither a secret nor a metadata document: any program can pretend to be them. Throws what the client gets. */
  async function requireClient({ oidc: { client } }: Context): Promise<void> {
    if (client.clientAuthMethod === 'none' && !isDocument(client.clientId))
      throw refusal('unauthorized_client', 'Only clients with a secret or a metadata document may present assertions.');
    if ((await grants.findClient(client.clientId))?.enabled === false)
      throw refusal('unauthorized_client', 'The client is disabled. Ask an administrator.');
  }

  return async (ctx: Context): Promise<void> => {
    const { client, params } = ctx.oidc;
    const { assertion, scope, resource: asked } = params;
    if (typeof assertion !== 'string' || assertion === '')
      throw refusal('invalid_request', 'The parameter assertion is missing.');
    await requireClient(ctx);
    if (scope !== undefined && !scope.split(' ').includes(SCOPE))
      throw refusal('invalid_scope', `The parameter scope must contain ${SCOPE}, or be absent.`);
    const issuer = issuerOf(assertion);
    const company = issuer === null ? undefined : (await fresh()).get(issuer);
    if (company === undefined) throw refusal('invalid_grant', forUser(faulty('assertions_not_accepted', '')));
    const signed = await verified(keys, company, assertion);
    if (isFault(signed)) throw refuse(company, signed);
    const idJag = judgeIdJag(company, signed, { audience: publicUrl, clientId: client.clientId, now: now() });
    if (isFault(idJag)) throw refuse(company, idJag);
    const resource = resourceOf(idJag.resource, client.clientId, publicUrl);
    if (resource === null)
      throw refuse(
        company,
        faulty('assertion_resource', `the claim resource is ${JSON.stringify(idJag.resource).slice(0, 200)}`),
      );
    if (asked !== undefined && [asked].flat().some((one) => resourceOf(one, client.clientId, publicUrl)?.path !== resource.path))
      throw refusal('invalid_target', 'The parameter resource must be that of the assertion, or be absent.');

    const user = await userOf(company, idJag);
    if (isFault(user)) throw refuse(company, user);
    if (!(await admits(user))) throw refusal('invalid_grant', 'The user is disabled. Ask an administrator.');
    const address = `${publicUrl}${resource.path}`;
    const made = await grants.createByAssertion({
      principal: principalFor(user, idJag),
      clientId: client.clientId,
      clientKind: isDocument(client.clientId) ? 'document' : 'registered',
      clientName: factsOf(client.clientId, client.clientName).name,
      resource: address,
      assertion: { key: JSON.stringify([company.issuer, idJag.jti]), exp: idJag.exp },
    });
    if (made === 'answered') throw refuse(company, faulty('assertion_used', `the jti ${idJag.jti} was used before`));
    if (made === 'client') throw refusal('unauthorized_client', 'The client is disabled, or its registration has ended.');
    if (made === 'full')
      throw refusal('invalid_grant', `The user has ${MOST_GRANTS} grants. End some of them on the account page of the gateway.`);
    if (made === 'ended')
      throw refusal('invalid_grant', 'The user or the provider was disabled meanwhile, or the provider no longer has id_jag.');

    const token = new provider.AccessToken({
      ...{ accountId: user.id, client, grantId: made.grantId, gty: ID_JAG_GRANT_TYPE, expiresWithSession: false },
    } as ConstructorParameters<typeof provider.AccessToken>[0]);
    token.resourceServer = new provider.ResourceServer(address, resourceServer(resource, publicUrl));
    token.scope = SCOPE;
    ctx.oidc.entity('AccessToken', token);
    const value = await token.save();
    ctx.body = { access_token: value, token_type: token.tokenType, expires_in: token.expiration, scope: SCOPE };
  };
}

/** The user, with the assertion as the proof of who it is. */
const principalFor = (user: User, { iat }: IdJag): Principal => ({
  ...principalOf(user),
  ...{ token_id: userKey(user.id), token_kind: 'provider', issued_at: iat, limits: null },
});
