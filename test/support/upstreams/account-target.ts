/** A real OpenID provider, a target that accepts its tokens alone, and a person who signs in at the provider. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { toNodeHandler } from '@modelcontextprotocol/node';
import { createMcpHandler, fromJsonSchema, McpServer } from '@modelcontextprotocol/server';
import { Provider } from 'oidc-provider';

export interface AccountProvider {
  /** Seconds, for access tokens from now on. */
  accessTokenTtl: number;
  readonly issuer: string;
  readonly provider: Provider;
  /** How often each refresh token was sent to the token endpoint, by the token. */
  readonly refreshed: Map<string, number>;
  /** Whose each access token is, also after it has expired. */
  readonly issued: Map<string, string>;
  readonly errors: string[];
  /** Called with each request before it is handled; true: it has been answered. */
  intercept: ((req: IncomingMessage, res: ServerResponse) => boolean | Promise<boolean>) | null;
  stop(): Promise<void>;
  /** Accepts connections again at the same port. */
  start(): Promise<void>;
}

export interface ProviderOptions {
  /** Seconds. */
  readonly accessTokenTtl?: number;
  readonly registration?: boolean;
  readonly clients?: readonly object[];
}

export async function startProvider({
  accessTokenTtl = 3600,
  registration = true,
  clients = [],
}: ProviderOptions = {}): Promise<AccountProvider> {
  let handle: (req: IncomingMessage, res: ServerResponse) => void = () => undefined;
  let server: Server = createServer((req, res) => handle(req, res));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const issuer = `http://127.0.0.1:${port}`;
  const refreshed = new Map<string, number>();
  const issued = new Map<string, string>();
  const errors: string[] = [];
  const provider = new Provider(issuer, {
    clients: clients as never,
    clientAuthMethods: ['client_secret_basic', 'client_secret_post', 'none'],
    cookies: { keys: ['a key for tests'] },
    scopes: ['tools', 'more', 'offline_access'],
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async () => true,
    interactions: { url: (_ctx, { uid }) => `/interaction/${uid}` },
    features: {
      devInteractions: { enabled: false },
      registration: { enabled: registration },
      revocation: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => `${issuer}/default`,
        useGrantedResource: () => true,
        getResourceServerInfo: (_ctx, resource) => ({
          scope: 'tools more',
          audience: resource,
          accessTokenTTL: own.accessTokenTtl,
          accessTokenFormat: 'opaque',
        }),
      },
    },
    ttl: { AccessToken: () => own.accessTokenTtl, RefreshToken: 3600, Session: 3600, Interaction: 600, Grant: 3600 },
    findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
  });
  const sent = (ctx: { oidc: { params?: Record<string, unknown> } }): void => {
    const { grant_type, refresh_token } = ctx.oidc.params ?? {};
    if (grant_type === 'refresh_token') refreshed.set(String(refresh_token), (refreshed.get(String(refresh_token)) ?? 0) + 1);
  };
  provider.on('grant.success', sent as never);
  provider.on('grant.error', ((ctx: never, error: Error) => {
    errors.push(`${error.message} ${(error as { error_detail?: string }).error_detail ?? ''}`);
    sent(ctx);
  }) as never);
  provider.on('access_token.saved', ((token: { jti: string; accountId?: string }) => {
    issued.set(token.jti, token.accountId ?? '');
  }) as never);
  const callback = provider.callback();

  async function interact(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const { prompt, params, session, grantId } = await provider.interactionDetails(req, res);
    const who = /who=([a-z0-9]+)/.exec(req.headers.cookie ?? '')?.[1] ?? '';
    if (who === 'refuser') {
      return provider.interactionFinished(req, res, { error: 'access_denied', error_description: 'no' });
    }
    if (prompt.name === 'login') return provider.interactionFinished(req, res, { login: { accountId: who } });
    const grant =
      (grantId === undefined ? undefined : await provider.Grant.find(grantId)) ??
      new provider.Grant({ accountId: session?.accountId ?? '', clientId: String(params['client_id']) });
    const { missingOIDCScope, missingResourceScopes = {} } = prompt.details as {
      missingOIDCScope?: string[];
      missingResourceScopes?: Record<string, string[]>;
    };
    if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
    for (const [resource, scopes] of Object.entries(missingResourceScopes)) grant.addResourceScope(resource, scopes.join(' '));
    await provider.interactionFinished(req, res, { consent: { grantId: await grant.save() } }, { mergeWithLastSubmission: true });
  }

  const own: AccountProvider = {
    issuer,
    accessTokenTtl,
    provider,
    refreshed,
    issued,
    errors,
    intercept: null,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
    async start() {
      server = createServer((req, res) => handle(req, res));
      server.listen(port, '127.0.0.1');
      await once(server, 'listening');
    },
  };
  handle = (req, res) => {
    void (async () => {
      if (own.intercept !== null && (await own.intercept(req, res))) return;
      if (req.url?.startsWith('/interaction/')) await interact(req, res);
      else await callback(req, res);
    })().catch((error: unknown) => {
      errors.push(String(error));
      if (!res.headersSent) res.writeHead(500).end();
    });
  };
  return own;
}

/** Signs in as `who` at the address, and returns the address to which the provider sends the browser back. */
export async function signInAt(address: string | URL, who: string, backTo: string): Promise<URL> {
  const cookies = new Map([['who', who]]);
  let url = new URL(address);
  for (let steps = 0; steps < 20; steps++) {
    if (url.href.startsWith(backTo)) return url;
    const cookie = [...cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const answer = await fetch(url, { redirect: 'manual', headers: { cookie } });
    await answer.arrayBuffer();
    for (const line of answer.headers.getSetCookie()) {
      const [name = '', value = ''] = line.split(';')[0]?.split('=') ?? [];
      cookies.set(name, value);
    }
    const location = answer.headers.get('location');
    if (location === null) throw new Error(`${url.href} answered HTTP ${answer.status} and leads nowhere`);
    url = new URL(location, url);
  }
  throw new Error('too many redirects');
}

export interface AccountTargetServer {
  readonly url: string;
  /** The accounts whose tokens came, in order of arrival. */
  readonly accounts: string[];
  /** The tokens that came. */
  readonly tokens: Set<string>;
  /** The argument `ticket` of the calls that came. */
  readonly tickets: Set<string>;
  /** The `inputResponses` of the tool calls that came, in order of arrival; undefined for a call without them. */
  readonly replies: unknown[];
  /** Requests with a token that is not valid here. */
  refused: number;
  /** The metadata of the resource; changed by tests. */
  metadata: Record<string, unknown>;
  /** The scope that calls of the tool `more` need. */
  needs: string | null;
  /** Answers every request with its token: in an address with this status, or in the message of an error. */
  leaks: number | 'error' | null;
  /** Called before the tool `slow` answers. */
  slow: () => Promise<void>;
  stop(): Promise<void>;
}

/** A server of both modes whose tools say whose token they were called with. `legacy` false: only 2026-07-28. */
export async function startAccountTarget(
  { provider, issuer }: Pick<AccountProvider, 'provider' | 'issuer'>,
  legacy = true,
): Promise<AccountTargetServer> {
  const server = createServer((req, res) => void answer(req, res).catch(() => res.destroy()));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const url = `${origin}/mcp`;
  const own: AccountTargetServer = {
    url,
    accounts: [],
    tokens: new Set(),
    tickets: new Set(),
    replies: [],
    refused: 0,
    metadata: { resource: url, authorization_servers: [issuer], scopes_supported: ['tools'] },
    needs: null,
    leaks: null,
    slow: async () => undefined,
    async stop() {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
  const text = (value: string) => ({ content: [{ type: 'text' as const, text: value }] });
  const nothing = fromJsonSchema<Record<string, unknown>>({ type: 'object', properties: {} } as never);

  function build(account: string): McpServer {
    const mcp = new McpServer({ name: 'accounts', version: '1' }, { capabilities: { tools: { listChanged: true } } });
    mcp.registerTool('whoami', { inputSchema: nothing }, () => text(account));
    mcp.registerTool('more', { inputSchema: nothing }, () => text(`more for ${account}`));
    mcp.registerTool('slow', { inputSchema: nothing }, async () => {
      await own.slow();
      return text(account);
    });
    return mcp;
  }

  async function answer(req: IncomingMessage, res: ServerResponse): Promise<void> {
    if (req.url?.startsWith('/.well-known/oauth-protected-resource')) {
      res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(own.metadata));
      return;
    }
    const chunks: Buffer[] = [];
    for await (const chunk of req) chunks.push(chunk as Buffer);
    const value = /^Bearer (.+)$/.exec(req.headers.authorization ?? '')?.[1];
    const token = value === undefined ? undefined : await provider.AccessToken.find(value);
    const challenge = `Bearer resource_metadata="${origin}/.well-known/oauth-protected-resource/mcp"`;
    if (token === undefined || token.isExpired || token.aud !== url) {
      own.refused += value === undefined ? 0 : 1;
      res.writeHead(401, { 'www-authenticate': value === undefined ? challenge : `${challenge}, error="invalid_token"` }).end();
      return;
    }
    own.tokens.add(value ?? '');
    if (own.leaks === 'error') {
      const error = { code: -32000, message: `wrong token ${value}` };
      res.writeHead(200, { 'content-type': 'application/json' });
      res.end(JSON.stringify({ jsonrpc: '2.0', id: 'portcullis', error }));
      return;
    }
    if (own.leaks !== null) {
      res.writeHead(own.leaks, { location: `https://elsewhere.example/${value}` }).end();
      return;
    }
    const account = token.accountId ?? '';
    own.accounts.push(account);
    const body = Buffer.concat(chunks).toString('utf8');
    const message =
      body === ''
        ? undefined
        : (JSON.parse(body) as {
            method?: string;
            params?: { name?: string; arguments?: { ticket?: unknown }; inputResponses?: unknown };
          });
    if (message?.method === 'tools/call') own.replies.push(message.params?.inputResponses);
    const ticket = message?.params?.arguments?.ticket;
    if (typeof ticket === 'string') own.tickets.add(ticket);
    const scopes = (token.scope ?? '').split(' ');
    if (own.needs !== null && message?.params?.name === 'more' && !scopes.includes(own.needs)) {
      res.writeHead(403, { 'www-authenticate': `${challenge}, error="insufficient_scope", scope="${own.needs}"` }).end();
      return;
    }
    const handler = createMcpHandler(() => build(account), legacy ? {} : { legacy: 'reject' });
    res.once('close', () => void handler.close());
    await toNodeHandler(handler)(req, res, message);
  }
  return own;
}

/** The member of a target whose users have their own accounts there, found through the target's metadata. */
export const OWN = { issuer: null, client_id: null, scopes: [], send_resource: true };

export const linkIn = (text: string): string => /href="(http[^"]*)"/.exec(text)?.[1]?.replaceAll('&#38;', '&') ?? '';
