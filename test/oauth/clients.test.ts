/** Real clients that know only the address of an endpoint: the official SDKs, and a library that checks every answer strictly. */
import {
  Client as ModernClient,
  StreamableHTTPClientTransport as ModernTransport,
  UnauthorizedError as ModernUnauthorized,
} from '@modelcontextprotocol/client';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import test, { type ExecutionContext } from 'ava';
import * as oauth from 'oauth4webapi';
import { type World, world } from '../support/world.ts';
import { codeOf, openTab, sdkProvider } from './support.ts';

let w: World;
const ended: (() => unknown)[] = [];

test.before(async (t) => {
  const until = { ...t, teardown: (end: () => unknown) => void ended.unshift(end) } as unknown as ExecutionContext;
  w = await world(until);
  await w.allow({ name: 'echo', resource_type: 'tool', resource_pattern: '^echo$' });
});

test.after.always(async () => {
  for (const end of ended) await end();
});

const REDIRECT = 'http://localhost:4711/oauth/callback';

/** Returns code and issuer, as the client reads them from its redirect address. */
async function signIn(authorizeUrl: string): Promise<readonly [code: string, iss: string]> {
  const tab = openTab(w.gateway.url);
  await tab.signIn(w.user);
  const visit = await tab.answer(await tab.follow(authorizeUrl));
  return [codeOf(visit), new URL(visit.to ?? '').searchParams.get('iss') ?? ''];
}

type AnyTransport = { finishAuth(code: string, iss: string): Promise<void> };
interface AnyClient {
  connect(transport: never): Promise<void>;
  callTool(params: { name: string; arguments: object }): Promise<unknown>;
  listTools(): Promise<{ tools: { name: string }[] }>;
  close(): Promise<void>;
}

const SDKS: readonly (readonly [
  name: string,
  client: () => unknown,
  transport: (url: URL, options: object) => unknown,
  error: unknown,
])[] = [
  [
    'SDK 1.x',
    () => new Client({ name: 'sdk1', version: '1' }),
    (url, options) => new StreamableHTTPClientTransport(url, options),
    UnauthorizedError,
  ],
  [
    'SDK 2.x',
    () => new ModernClient({ name: 'sdk2', version: '1' }),
    (url, options) => new ModernTransport(url, options),
    ModernUnauthorized,
  ],
];

for (const [name, makeClient, makeTransport, error] of SDKS) {
  test(`${name} signs in, calls, and refreshes by itself`, async (t) => {
    for (const address of [w.mcp, `${w.gateway.url}/mcp`]) {
      const { provider, kept } = sdkProvider(REDIRECT);
      const transport = (): AnyTransport => makeTransport(new URL(address), { authProvider: provider }) as AnyTransport;
      const first = transport();
      const client = makeClient() as AnyClient;
      await t.throwsAsync(client.connect(first as never), { instanceOf: error as ErrorConstructor });
      const url = String(kept['url']);
      t.is(new URL(url).searchParams.get('resource'), address);
      await first.finishAuth(...(await signIn(url)));

      const connected = makeClient() as AnyClient;
      await connected.connect(transport() as never);
      t.teardown(() => connected.close());
      const echo = address === w.mcp ? 'echo' : 'everything__echo';
      t.deepEqual(
        (await connected.listTools()).tools.map((tool) => tool.name),
        [echo],
      );
      await connected.callTool({ name: echo, arguments: { message: 'x' } });

      // The access token has ended. The client refreshes without its user.
      const before = kept['tokens'] as { access_token: string; refresh_token: string };
      kept['tokens'] = { ...before, access_token: `${before.access_token.slice(0, -8)}AAAAAAAA` };
      await connected.callTool({ name: echo, arguments: { message: 'y' } });
      const after = kept['tokens'] as typeof before;
      t.not(after.refresh_token, before.refresh_token);
    }
  });
}

test('a strict client finds nothing wrong in discovery, registration, sign-in, refresh and revocation', async (t) => {
  const { url } = w.gateway;
  const loose = { [oauth.allowInsecureRequests]: true } as const;
  const resource = new URL(w.mcp);
  const metadata = await oauth.processResourceDiscoveryResponse(resource, await oauth.resourceDiscoveryRequest(resource, loose));
  const issuer = new URL(metadata.authorization_servers?.[0] ?? '');
  t.is(metadata.authorization_servers?.[0], url, 'without a slash at the end');
  for (const algorithm of ['oauth2', 'oidc'] as const) {
    const found = await oauth.processDiscoveryResponse(issuer, await oauth.discoveryRequest(issuer, { ...loose, algorithm }));
    t.true(found.code_challenge_methods_supported?.includes('S256'));
    t.true(found['client_id_metadata_document_supported']);
    t.true(found.token_endpoint_auth_methods_supported?.includes('none'));
  }
  const as = await oauth.processDiscoveryResponse(
    issuer,
    await oauth.discoveryRequest(issuer, { ...loose, algorithm: 'oauth2' }),
  );
  const registration = await oauth.dynamicClientRegistrationRequest(
    as,
    { redirect_uris: ['https://client.example/cb'], client_name: 'strict', token_endpoint_auth_method: 'none' },
    loose,
  );
  const client = await oauth.processDynamicClientRegistrationResponse(registration);
  const verifier = oauth.generateRandomCodeVerifier();
  const state = oauth.generateRandomState();
  const nonce = oauth.generateRandomNonce();
  const authorize = new URL(as.authorization_endpoint ?? '');
  authorize.search = new URLSearchParams({
    ...{ client_id: client.client_id, response_type: 'code', redirect_uri: 'https://client.example/cb', state, nonce },
    ...{ scope: 'openid mcp', resource: w.mcp, code_challenge_method: 'S256' },
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
  }).toString();
  const tab = openTab(url);
  await tab.signIn(w.user);
  const back = await tab.answer(await tab.follow(authorize.href));
  const params = oauth.validateAuthResponse(as, client, new URL(back.to ?? ''), state);
  const exchange = await oauth.authorizationCodeGrantRequest(
    ...[as, client, oauth.None(), params, 'https://client.example/cb', verifier],
    { ...loose, additionalParameters: { resource: w.mcp } },
  );
  const tokens = await oauth.processAuthorizationCodeResponse(as, client, exchange, { expectedNonce: nonce });
  t.is(oauth.getValidatedIdTokenClaims(tokens)?.sub, w.user.id);
  const request = new Request(w.mcp, { headers: { authorization: `Bearer ${tokens.access_token}` } });
  const claims = await oauth.validateJwtAccessToken(as, request, w.mcp, loose);
  t.is(claims.sub, w.user.id);
  t.is(claims.client_id, client.client_id);
  const refreshed = await oauth.processRefreshTokenResponse(
    as,
    client,
    await oauth.refreshTokenGrantRequest(as, client, oauth.None(), tokens.refresh_token ?? '', loose),
  );
  await oauth.validateJwtAccessToken(
    as,
    new Request(w.mcp, { headers: { authorization: `Bearer ${refreshed.access_token}` } }),
    w.mcp,
    loose,
  );
  await oauth.processRevocationResponse(
    await oauth.revocationRequest(as, client, oauth.None(), refreshed.refresh_token ?? '', loose),
  );
  const device = await oauth.processDeviceAuthorizationResponse(
    as,
    { client_id: 'portcullis-cli' },
    await oauth.deviceAuthorizationRequest(as, { client_id: 'portcullis-cli' }, oauth.None(), {}, loose),
  );
  t.is(device.interval, 5);
});
