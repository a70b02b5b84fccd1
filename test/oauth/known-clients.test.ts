/**
 * Registrations as published clients send them, each with the redirect address that it then uses. The facts are from their sources and
 * bug reports: VS Code and `mcp-remote` listen on a port that they did not register, Cursor and VS Code have a scheme of their own.
 */
import test from 'ava';
import { person, startGateway } from '../support/gateway.ts';
import { begin, codeOf, initialize, openTab, redeem, refresh, register } from './support.ts';

interface Known {
  readonly registration: Record<string, unknown>;
  /** The redirect address of the authorization request. */
  readonly redirectUri: string;
  readonly scope?: string;
  readonly secret?: true;
}

const GRANTS = { grant_types: ['authorization_code', 'refresh_token'], response_types: ['code'] };
const PUBLIC = { ...GRANTS, token_endpoint_auth_method: 'none' };

const KNOWN: Readonly<Record<string, Known>> = {
  'VS Code, whose port is taken': {
    registration: {
      ...{ client_name: 'Visual Studio Code', client_uri: 'https://code.visualstudio.com' },
      ...{ ...PUBLIC, grant_types: [...GRANTS.grant_types, 'urn:ietf:params:oauth:grant-type:device_code'] },
      redirect_uris: [
        'https://insiders.vscode.dev/redirect',
        'https://vscode.dev/redirect',
        'http://127.0.0.1/',
        'http://127.0.0.1:33418/',
      ],
      application_type: 'native',
    },
    redirectUri: 'http://127.0.0.1:59656/',
  },
  'VS Code in the browser': {
    registration: {
      ...PUBLIC,
      client_name: 'Visual Studio Code',
      redirect_uris: ['https://insiders.vscode.dev/redirect', 'https://vscode.dev/redirect', 'http://127.0.0.1/'],
    },
    redirectUri: 'https://vscode.dev/redirect',
  },
  Cursor: {
    registration: {
      ...PUBLIC,
      client_name: 'Cursor',
      redirect_uris: ['cursor://anysphere.cursor-mcp/oauth/callback', 'https://www.cursor.com/agents/mcp/oauth/callback'],
    },
    redirectUri: 'cursor://anysphere.cursor-mcp/oauth/callback',
  },
  'claude.ai with a secret': {
    registration: {
      ...{ ...GRANTS, token_endpoint_auth_method: 'client_secret_post', scope: 'mcp', client_name: 'Claude' },
      redirect_uris: ['https://claude.ai/api/mcp/auth_callback'],
    },
    redirectUri: 'https://claude.ai/api/mcp/auth_callback',
    secret: true,
  },
  'mcp-remote, with the scopes of an OpenID client': {
    registration: {
      ...{ ...PUBLIC, scope: 'openid email profile', client_name: 'MCP CLI Proxy', software_version: '0.15.0' },
      ...{ redirect_uris: ['http://localhost:3334/oauth/callback'], software_id: '2e6dc280-f3c3-4e01-99a7-8181dbd1d23d' },
    },
    redirectUri: 'http://localhost:16021/oauth/callback',
    scope: 'openid email profile',
  },
  'a client that asks for all scopes of the metadata': {
    registration: { ...PUBLIC, client_name: 'opencode', redirect_uris: ['http://127.0.0.1:19876/mcp/oauth/callback'] },
    redirectUri: 'http://127.0.0.1:19876/mcp/oauth/callback',
    scope: 'mcp offline_access openid',
  },
};

test('published clients register, sign their user in and refresh', async (t) => {
  const gateway = await startGateway(t);
  const { url } = gateway;
  const user = await person(gateway, 'user@example.com');
  const tab = openTab(url);
  await tab.signIn(user);
  for (const [name, { registration, redirectUri, scope, secret }] of Object.entries(KNOWN)) {
    const { status, body: client } = await register(url, registration);
    t.is(status, 201, `${name}: ${JSON.stringify(client)}`);
    const more = { prompt: 'consent', ...(scope === undefined ? {} : { scope }) };
    const flow = begin(url, client.client_id, { redirectUri, more });
    const visit = await tab.answer(await tab.follow(flow.authorizeUrl));
    t.true(visit.to?.startsWith(redirectUri), `${name}: ${visit.to ?? visit.text}`);
    const proof: Record<string, string> = secret ? { client_secret: client.client_secret ?? '' } : {};
    const { body: tokens, status: redeemed } = await redeem(url, flow, codeOf(visit), proof);
    t.is(redeemed, 200, `${name}: ${JSON.stringify(tokens)}`);
    // No target has this name, which a caller is told only when the token is accepted.
    t.not((await initialize(flow.resource, tokens.access_token)).status, 401, name);
    t.is((await refresh(url, client.client_id, tokens.refresh_token ?? '', proof)).status, 200, name);
  }
});
