/** A person at a browser without a screen, and an OAuth client that is written out, so that tests can deviate at each step. */
import { createHash, randomBytes } from 'node:crypto';
import type { Person, TestGateway } from '../support/gateway.ts';
import { send } from '../support/rest.ts';

export interface Visit {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  /** Where the answer redirects, as an absolute address; null: it does not. */
  readonly to: string | null;
  readonly url: string;
}

export type Tab = ReturnType<typeof openTab>;

/**
 * A browser with a cookie jar that respects paths. It sends what browsers send with navigations and forms. `portOf`: the port of the replica
 * that a load balancer chooses for the next request.
 */
export function openTab(url: string, portOf: () => number = () => Number(new URL(url).port)) {
  const jar = new Map<string, { value: string; path: string }>();

  function cookiesFor(path: string): string {
    const sent = [...jar].filter(
      ([, cookie]) => path === cookie.path || path.startsWith(cookie.path.replace(/\/?$/, '/')) || cookie.path === '/',
    );
    return sent.map(([name, { value }]) => `${name.split('|')[0]}=${value}`).join('; ');
  }

  async function ask(method: string, to: string, headers: Record<string, string>, body?: string): Promise<Visit> {
    const target = new URL(to, url);
    const cookie = cookiesFor(target.pathname);
    const answer = await send(portOf(), method, target.pathname + target.search, {
      headers: { accept: 'text/html', host: target.host, ...(cookie === '' ? {} : { cookie }), ...headers },
      ...(body === undefined ? {} : { body }),
    });
    for (const line of answer.headers['set-cookie'] ?? []) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
      // The library of the authorization server has a session of its own, which has no authority and never reaches a browser.
      if (/session/.test(name)) throw new Error(`${target.pathname} sets the cookie ${name}`);
      const path = /;\s*path=([^;]+)/i.exec(line)?.[1] ?? '/';
      const gone = value === '' || /expires=Thu, 01 Jan 1970|max-age=0/i.test(line);
      if (gone) jar.delete(`${name}|${path}`);
      else jar.set(`${name}|${path}`, { value, path });
    }
    const { location } = answer.headers;
    return {
      status: answer.status,
      headers: new Headers(Object.entries(answer.headers).map(([name, value]) => [name, String(value)])),
      text: answer.text,
      to: location === undefined ? null : new URL(location, target).href,
      url: target.href,
    };
  }

  const get = (to: string, headers: Record<string, string> = {}): Promise<Visit> => ask('GET', to, headers);
  const post = (to: string, fields: Record<string, string>, headers: Record<string, string> = {}): Promise<Visit> =>
    ask(
      'POST',
      to,
      { 'content-type': 'application/x-www-form-urlencoded', origin: url, 'sec-fetch-site': 'same-origin', ...headers },
      new URLSearchParams(fields).toString(),
    );

  return {
    jar,
    get,
    post,
    /** Follows redirects within the gateway. Returns the first answer that is a page, or that leads elsewhere. */
    async follow(to: string): Promise<Visit> {
      let visit = await get(to);
      for (let steps = 0; visit.to?.startsWith(`${url}/`) && steps < 10; steps++) visit = await get(visit.to);
      return visit;
    },
    async signIn(who: Pick<Person, 'email' | 'password'>): Promise<void> {
      const visit = await post('/signin', { email: who.email, password: who.password, return: '/account' });
      if (visit.status >= 400) throw new Error(`not signed in: ${visit.text}`);
    },
    /** Answers the consent page that `page` is, unless the user allowed the same before. Returns the answer that leads to the client. */
    async answer(page: Visit, answer: 'allow' | 'deny' = 'allow'): Promise<Visit> {
      if (page.to !== null && answer === 'allow') return page;
      const user = /name="user" value="([^"]+)"/.exec(page.text)?.[1];
      if (user === undefined) throw new Error(`not a consent page: ${page.status} ${page.url} ${page.text}`);
      let visit = await post(page.url, { user, answer });
      for (let steps = 0; visit.to?.startsWith(`${url}/`) && steps < 10; steps++) visit = await get(visit.to);
      return visit;
    },
  };
}

export interface Tokens {
  readonly access_token: string;
  readonly refresh_token?: string;
  readonly token_type: string;
  readonly expires_in: number;
  readonly scope?: string;
  readonly id_token?: string;
}

export interface Answered<T> {
  readonly status: number;
  readonly body: T;
  readonly headers: Headers;
}

export async function form<T = Record<string, string>>(
  url: string,
  path: string,
  fields: Record<string, string>,
  headers: Record<string, string> = {},
): Promise<Answered<T>> {
  const answer = await fetch(url + path, { method: 'POST', body: new URLSearchParams(fields), headers, redirect: 'manual' });
  const text = await answer.text();
  return { status: answer.status, body: (text === '' ? {} : JSON.parse(text)) as T, headers: answer.headers };
}

export const CALLBACK = 'https://client.example/callback';

export async function register(
  url: string,
  metadata: Record<string, unknown> = {},
): Promise<Answered<{ client_id: string; client_secret?: string; error?: string; error_description?: string }>> {
  const answer = await fetch(`${url}/oauth/register`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ client_name: 'A client', redirect_uris: [CALLBACK], ...metadata }),
  });
  return { status: answer.status, body: (await answer.json()) as { client_id: string }, headers: answer.headers };
}

export interface Flow {
  readonly clientId: string;
  readonly verifier: string;
  readonly state: string;
  readonly redirectUri: string;
  readonly resource: string;
  readonly authorizeUrl: string;
}

export function begin(
  url: string,
  clientId: string,
  {
    resource = `${url}/mcp/everything`,
    redirectUri = CALLBACK,
    more = {},
  }: { resource?: string; redirectUri?: string; more?: Record<string, string> } = {},
): Flow {
  const verifier = randomBytes(32).toString('base64url');
  const state = randomBytes(8).toString('base64url');
  const query = new URLSearchParams({
    response_type: 'code',
    client_id: clientId,
    redirect_uri: redirectUri,
    code_challenge: createHash('sha256').update(verifier).digest('base64url'),
    code_challenge_method: 'S256',
    state,
    scope: 'mcp',
    resource,
    ...more,
  });
  return { clientId, verifier, state, redirectUri, resource, authorizeUrl: `${url}/oauth/authorize?${query}` };
}

/** Takes the code from the answer that leads to the client. */
export function codeOf(visit: Visit): string {
  const code = visit.to === null ? null : new URL(visit.to).searchParams.get('code');
  if (code === null) throw new Error(`no code: ${visit.status} ${visit.to} ${visit.text}`);
  return code;
}

export const redeem = (
  url: string,
  { clientId, verifier, redirectUri, resource }: Flow,
  code: string,
  more: Record<string, string> = {},
) =>
  form<Tokens & { error?: string; error_description?: string }>(url, '/oauth/token', {
    ...{
      grant_type: 'authorization_code',
      client_id: clientId,
      code,
      redirect_uri: redirectUri,
      code_verifier: verifier,
      resource,
    },
    ...more,
  });

export const refresh = (url: string, clientId: string, token: string, more: Record<string, string> = {}) =>
  form<Tokens & { error?: string; error_description?: string }>(url, '/oauth/token', {
    ...{ grant_type: 'refresh_token', client_id: clientId, refresh_token: token },
    ...more,
  });

/** A client with tokens, by registration, sign-in, consent and redemption. */
export async function connected(gateway: Pick<TestGateway, 'url'>, who: Person, resource?: string) {
  const { url } = gateway;
  const { body: client } = await register(url);
  const flow = begin(url, client.client_id, resource === undefined ? {} : { resource });
  const tab = openTab(url);
  await tab.signIn(who);
  const code = codeOf(await tab.answer(await tab.follow(flow.authorizeUrl)));
  const { status, body: tokens } = await redeem(url, flow, code);
  if (status !== 200) throw new Error(`no tokens: ${JSON.stringify(tokens)}`);
  return { clientId: client.client_id, flow, tab, code, tokens };
}

export const payloadOf = (token: string): Record<string, unknown> =>
  JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString());

/** Sends an `initialize` to an MCP endpoint. */
export async function initialize(address: string, token: string | null): Promise<Answered<Record<string, unknown>>> {
  const answer = await fetch(address, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      ...(token === null ? {} : { authorization: `Bearer ${token}` }),
    },
    body: JSON.stringify({
      jsonrpc: '2.0',
      id: 1,
      method: 'initialize',
      params: { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 'test', version: '1' } },
    }),
  });
  const text = await answer.text();
  const json = /^\s*\{/.test(text) ? text : (/data: (\{.*)/.exec(text)?.[1] ?? '{}');
  return { status: answer.status, body: JSON.parse(json), headers: answer.headers };
}

/** What an SDK needs to sign its user in. Both SDKs take the same. `kept.url`: where it sends the user. */
export function sdkProvider(redirectUrl: string) {
  const kept: Record<string, unknown> = {};
  const memory = <T>(name: string) => {
    const read = (): T => kept[name] as T;
    const write = (value: T): void => {
      kept[name] = value;
    };
    return [read, write] as const;
  };
  const [clientInformation, saveClientInformation] = memory<never>('client');
  const [tokens, saveTokens] = memory<never>('tokens');
  const [codeVerifier, saveCodeVerifier] = memory<string>('verifier');
  const provider = {
    redirectUrl,
    clientMetadata: {
      client_name: 'An SDK',
      redirect_uris: [redirectUrl],
      grant_types: ['authorization_code', 'refresh_token'],
      response_types: ['code'],
      token_endpoint_auth_method: 'none',
      scope: 'mcp',
    },
    state: () => 'a-state',
    clientInformation,
    saveClientInformation,
    tokens,
    saveTokens,
    codeVerifier,
    saveCodeVerifier,
    redirectToAuthorization: (url: URL) => {
      kept['url'] = url.href;
    },
  };
  return { provider, kept };
}
