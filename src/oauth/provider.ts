/**
 * The authorization server's protocol: oidc-provider, configured. It is loaded soon after the start, and made again when the signing key
 * has changed, because its keys cannot be replaced.
 */
import type { IncomingMessage } from 'node:http';
import type Provider from 'oidc-provider';
import type { Client, Configuration, KoaContextWithOIDC } from 'oidc-provider';
import type { KeyRing } from '../auth/keys.ts';
import type { Vault } from '../auth/vault.ts';
import { uuidv7 } from '../base/ids.ts';
import type { Log } from '../base/log.ts';
import type { OutboundFetch } from '../base/network/outbound.ts';
import type { Database } from '../db/database.ts';
import { addressSite } from '../http/limits/client-address.ts';
import { type User, userStore } from '../users/user-store.ts';
import { createAdapters } from './adapter.ts';
import { normalize } from './client-rules.ts';
import { isClientSecret } from './client-secrets.ts';
import { GRANT_MS, type Grants } from './grants.ts';
import { type IdJagParts, registerIdJag } from './id-jag.ts';
import type { Records } from './record-store.ts';
import {
  ACCESS_TOKEN_SECONDS,
  CLI_CLIENT,
  defaultResource,
  MOST_RESOURCES,
  OPENID_SCOPES,
  resourceOf,
  resourceServer,
  withNeededScope,
} from './resources.ts';

/** If a client is not used for this time, it asks its user again. */
const REFRESH_TOKEN_SECONDS = 30 * 24 * 3_600;
const CODE_SECONDS = 60;
const DEVICE_SECONDS = 10 * 60;
/** How long a person may take to sign in and to answer. */
const INTERACTION_SECONDS = 30 * 60;

export const ROUTES = {
  authorization: '/oauth/authorize',
  token: '/oauth/token',
  registration: '/oauth/register',
  revocation: '/oauth/revoke',
  device_authorization: '/oauth/device_authorization',
} as const;
export const CONSENT_PATH = '/oauth/consent';
export const DEVICE_PATH = '/oauth/device';

export interface ProviderParts {
  readonly publicUrl: string;
  readonly database: Database;
  readonly vault: Vault;
  readonly keys: KeyRing;
  readonly records: Records;
  readonly grants: Grants;
  readonly registration: boolean;
  /** Reads the metadata document of a client. */
  readonly fetchDocument: OutboundFetch;
  /** Whether the gateway may read the document of this client for this request. */
  readonly mayFetch: (req: IncomingMessage, clientId: string) => Promise<boolean>;
  readonly addressOf: (req: IncomingMessage) => string;
  /** Whether the user may get tokens now, by the record and by the provider of the user. */
  readonly admits: (user: User) => Promise<boolean>;
  /** The companies' providers, whose assertions clients may exchange. */
  readonly companies: IdJagParts['companies'];
  /** The id of the user who is signed in at this browser now. */
  readonly signedIn: (ctx: KoaContextWithOIDC) => Promise<string | null>;
  /** Shows a refusal on a page, if the gateway does not know an address of the client to which it could send the browser. */
  readonly showError: (ctx: KoaContextWithOIDC, error: string, description: string) => void;
  /** Called with refusals for which the library is about to send the browser to the client. */
  readonly refused: (ctx: KoaContextWithOIDC, error: string, description: string) => void;
  /** Called with faults of the gateway during a request. */
  readonly failed: (ctx: KoaContextWithOIDC, error: unknown) => void;
  readonly log: Log;
  readonly now: () => number;
}

/** An error of the library. */
interface Refusal extends Error {
  readonly error_description?: string;
  readonly error_detail?: string;
}

type Library = typeof import('oidc-provider');

export type Providers = ReturnType<typeof createProviders>;

export function createProviders(parts: ProviderParts) {
  let library: Promise<Library> | null = null;
  let made: { readonly kid: string; readonly provider: Provider } | null = null;

  return {
    /** Returns the provider that signs with the current key. */
    async current(): Promise<Provider> {
      library ??= load(parts.log);
      const [loaded, signer] = await Promise.all([library, parts.keys.signer()]);
      if (made?.kid !== signer.kid) made = { kid: signer.kid, provider: makeProvider(loaded, parts, signer.privateJwk()) };
      return made.provider;
    },
    /** Loads the library. */
    async load(): Promise<void> {
      library ??= load(parts.log);
      await library;
    },
  };
}

/** Imports the library. On Node 20, it prints a warning of several lines about the version. */
async function load(log: Log): Promise<Library> {
  const { warn } = console;
  console.warn = (...texts: unknown[]) => {
    if (String(texts[0]).includes('oidc-provider')) log.debug({ warning: String(texts[0]) }, 'authorization server loaded');
    else warn.apply(console, texts);
  };
  try {
    return await import('oidc-provider');
  } finally {
    console.warn = warn;
  }
}

const requestIdOf = (ctx: { readonly res: { getHeader(name: string): unknown } } | undefined): string =>
  String(ctx?.res.getHeader('X-Request-Id') ?? uuidv7());

function makeProvider(library: Library, parts: ProviderParts, jwk: object): Provider {
  const { Provider, errors } = library;
  const { publicUrl, addressOf, refused, failed, log } = parts;
  const adapter = createAdapters({
    ...parts,
    errors: {
      invalidGrant: (detail) => new errors.InvalidGrant(detail),
      sessionNotFound: (detail) => new errors.SessionNotFound(detail),
      slowDown: () => new errors.SlowDown(),
      tooMany: (detail) => new errors.TemporarilyUnavailable(detail),
    },
    current: () => {
      const ctx = Provider.ctx as KoaContextWithOIDC | undefined;
      const site = ctx === undefined ? '' : addressSite(addressOf(ctx.req));
      return { route: ctx?.oidc.route ?? null, requestId: requestIdOf(ctx), site };
    },
  });
  const provider = new Provider(publicUrl, configurationOf(library, parts, adapter, jwk));
  // Addresses in answers come from the request. The handler sets these headers from PUBLIC_URL.
  provider.proxy = true;
  provider.silent = true;
  registerIdJag(provider, {
    ...parts,
    refusal: (error, description) => new errors.CustomOIDCProviderError(error, description),
  });
  provider.Client.prototype.compareClientSecret = function compare(this: Client, given: string): boolean {
    return isClientSecret(this.clientSecret, given);
  };
  const events: NodeJS.EventEmitter = provider;
  events.on('error', (error: unknown) => log.error({ err: error }, 'authorization server failed'));
  events.on('server_error', (ctx: KoaContextWithOIDC, error: unknown) => {
    failed(ctx, error);
    refused(ctx, 'server_error', '');
  });
  for (const event of ['authorization.error', 'grant.error', 'registration_create.error', 'revocation.error']) {
    events.on(event, (ctx: KoaContextWithOIDC, error: Refusal) => {
      const { message: code, error_description: why, error_detail: detail } = error;
      const client = ctx.oidc?.params?.['client_id'];
      log.info({ request_id: requestIdOf(ctx), error: code, why, detail, client }, 'authorization refused');
      if (event === 'authorization.error') refused(ctx, code, why ?? '');
    });
  }
  return provider;
}

function configurationOf(
  { errors }: Library,
  parts: ProviderParts,
  adapter: Configuration['adapter'],
  jwk: object,
): Configuration {
  const { publicUrl, database, grants, registration, fetchDocument, mayFetch, addressOf, signedIn, showError } = parts;
  const isHttps = publicUrl.startsWith('https:');
  const cookie = (name: string): string => `${isHttps ? '__Secure-' : ''}portcullis_${name}`;
  const cookieOptions = { httpOnly: true, sameSite: 'lax', secure: isHttps, signed: false, overwrite: true } as const;
  return {
    adapter: (name: string) => (adapter as (kind: string) => ReturnType<ReturnType<typeof createAdapters>>)(name),
    allowOmittingSingleRegisteredRedirectUri: false,
    // The gateway has checked the Origin of the request before, for all clients alike.
    clientBasedCORS: () => true,
    clientAuthMethods: ['none', 'client_secret_basic', 'client_secret_post'],
    clientDefaults: {
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
      id_token_signed_response_alg: 'ES256',
    },
    clients: [
      {
        client_id: CLI_CLIENT,
        client_name: 'Portcullis command line',
        application_type: 'native',
        token_endpoint_auth_method: 'none',
        grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
        response_types: ['code'],
        redirect_uris: ['http://127.0.0.1/callback', 'http://[::1]/callback', 'http://localhost/callback'],
      },
    ],
    cookies: {
      names: { session: cookie('session'), interaction: cookie('interaction'), resume: cookie('resume') },
      long: cookieOptions,
      short: cookieOptions,
    },
    enabledJWA: { idTokenSigningAlgValues: ['ES256'] },
    expiresWithSession: () => false,
    extraClientMetadata: {
      // Only its validator matters: it sees the whole metadata, before the library checks it.
      properties: ['portcullis'],
      validator(_ctx, _key, _value, metadata) {
        const problem = normalize(metadata);
        if (problem !== null) throw new errors.InvalidClientMetadata(problem);
      },
    },
    extraParams: {
      portcullis(ctx, _value, client) {
        const { params } = ctx.oidc;
        if (params !== undefined) params['scope'] = withNeededScope(params['scope'] as string | undefined, client.clientId);
      },
    },
    async extraTokenClaims(_ctx, token) {
      const { grantId } = token as { grantId?: string };
      if (grantId === undefined) throw new Error('An access token needs a grant');
      await grants.used(grantId);
      return { grant: grantId };
    },
    features: {
      devInteractions: { enabled: false },
      dPoP: { enabled: false },
      pushedAuthorizationRequests: { enabled: false },
      rpInitiatedLogout: { enabled: false },
      userinfo: { enabled: false },
      clientIdMetadataDocument: {
        enabled: true,
        ack: 'draft-02',
        // The pages read a client outside of a request of the library. Their users are signed in.
        allowFetch: (ctx: { readonly req: IncomingMessage } | undefined, clientId: string) =>
          ctx === undefined || mayFetch(ctx.req, clientId),
        cacheDuration: { min: 60, max: 3_600 },
      },
      deviceFlow: {
        enabled: true,
        mask: '****-****',
        deviceInfo: (ctx) => ({ address: addressOf(ctx.req), startedAt: parts.now() }),
      },
      registration: { enabled: registration, idFactory: () => uuidv7(), issueRegistrationAccessToken: false },
      resourceIndicators: {
        enabled: true,
        defaultResource: (_ctx, client, oneOf) => oneOf ?? defaultResource(client.clientId, publicUrl),
        useGrantedResource: () => true,
        getResourceServerInfo(ctx, indicator, client) {
          if ([ctx.oidc.params?.['resource']].flat().length > MOST_RESOURCES)
            throw new errors.InvalidTarget(`name at most ${MOST_RESOURCES} resources`);
          const resource = resourceOf(indicator, client.clientId, publicUrl);
          if (resource === null)
            throw new errors.InvalidTarget('use the address of this gateway with the path /mcp or /mcp/<target>');
          return resourceServer(resource, publicUrl);
        },
      },
      revocation: { enabled: true, allowedPolicy: (_ctx, client, token) => token.clientId === client.clientId },
    },
    fetch: (url) => fetchDocument(url instanceof Request ? url.url : url, { headers: { accept: 'application/json' } }),
    async findAccount(ctx, sub) {
      const user = await userStore(database.knex).find(sub);
      if (user !== null && (await parts.admits(user))) return { accountId: sub, claims: () => ({ sub }) };
      if (ctx.oidc.route === 'resume') throw new errors.AccessDenied('the account or its provider is disabled');
      return undefined;
    },
    interactions: { url: (_ctx, { uid }) => `${CONSENT_PATH}/${uid}` },
    issueRefreshToken: (_ctx, client) => client.grantTypeAllowed('refresh_token'),
    jwks: { keys: [jwk as never] },
    async loadExistingGrant(ctx) {
      const { result } = ctx.oidc;
      const grantId = result?.consent?.grantId;
      if (grantId === undefined) return undefined;
      // The person at the browser may have changed since the answer.
      if ((await signedIn(ctx)) !== result?.login?.accountId) throw new errors.AccessDenied('a different user has signed in');
      return ctx.oidc.provider.Grant.find(grantId);
    },
    pkce: { required: () => true },
    renderError(ctx, { error, error_description }) {
      showError(ctx, error, error_description ?? '');
    },
    responseTypes: ['code'],
    rotateRefreshToken: true,
    routes: { ...ROUTES, code_verification: DEVICE_PATH, jwks: '/oauth/jwks', end_session: '/oauth/end_session' },
    scopes: [...OPENID_SCOPES],
    ttl: {
      AccessToken: ACCESS_TOKEN_SECONDS,
      AuthorizationCode: CODE_SECONDS,
      DeviceCode: DEVICE_SECONDS,
      Grant: GRANT_MS / 1_000,
      IdToken: ACCESS_TOKEN_SECONDS,
      Interaction: INTERACTION_SECONDS,
      RefreshToken: REFRESH_TOKEN_SECONDS,
      Session: INTERACTION_SECONDS,
    },
  };
}
