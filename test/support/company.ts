/** The company's provider as a real OpenID provider, with people who sign in there, and browsers that keep cookies. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ExecutionContext } from 'ava';
import { Provider } from 'oidc-provider';

export const CLIENT_ID = 'the-gateway';
export const CLIENT_SECRET = 'a secret that only the gateway and the provider know';

type Answer = Record<string, unknown>;

export interface Company {
  readonly issuer: string;
  /** What the provider says of each person. A test may change it. */
  readonly people: Map<string, Record<string, unknown>>;
  readonly errors: string[];
  /** Changes each answer of the token endpoint. */
  tamper: ((answer: Answer) => Answer | Promise<Answer>) | null;
}

/** `redirectUris`: those of the gateways. The provider signs people in who have the cookie `who`, and asks all others. */
export async function startCompany(t: ExecutionContext, redirectUris: () => readonly string[]): Promise<Company> {
  let handle: (req: IncomingMessage, res: ServerResponse) => void = () => undefined;
  const server = createServer((req, res) => handle(req, res));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const people: Company['people'] = new Map();
  const company: Company = { issuer, people, errors: [], tamper: null };
  const client = {
    ...{ client_id: CLIENT_ID, client_secret: CLIENT_SECRET, redirect_uris: [...redirectUris()] },
    ...{ grant_types: ['authorization_code'], response_types: ['code'] as ['code'], application_type: 'native' as const },
  };
  const provider = new Provider(issuer, {
    clients: [client],
    cookies: { keys: ['a key for tests'] },
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['groups'] },
    scopes: ['openid', 'email', 'profile'],
    // The claims are in the ID token, as most providers have them.
    conformIdTokenClaims: false,
    pkce: { required: () => true },
    interactions: { url: (_ctx, { uid }) => `/interaction/${uid}` },
    features: { devInteractions: { enabled: false } },
    findAccount: (_ctx, id) => ({ accountId: id, claims: () => ({ ...people.get(id), sub: id }) }),
    loadExistingGrant: async (ctx) => {
      const grant = new ctx.oidc.provider.Grant({
        accountId: ctx.oidc.session?.accountId ?? '',
        clientId: ctx.oidc.client?.clientId ?? '',
      });
      grant.addOIDCScope('openid email profile');
      await grant.save();
      return grant;
    },
  });
  provider.on('server_error', ((_ctx: unknown, error: Error) => void company.errors.push(String(error))) as never);
  provider.use(async (ctx, next) => {
    await next();
    const body: unknown = ctx['body'];
    if (ctx.path === '/token' && company.tamper !== null) ctx['body'] = await company.tamper(body as Answer);
  });
  const callback = provider.callback();

  async function interact(req: IncomingMessage, res: ServerResponse): Promise<void> {
    const asked = /[?&]who=([a-z]+)/.exec(req.url ?? '')?.[1];
    const who = asked ?? /who=([a-z]+)/.exec(req.headers.cookie ?? '')?.[1];
    if (who === 'refuser') return provider.interactionFinished(req, res, { error: 'access_denied', error_description: 'no' });
    if (who !== undefined) return provider.interactionFinished(req, res, { login: { accountId: who }, consent: {} });
    res.setHeader('content-type', 'text/html');
    res.end('<form><label>Name <input name="who"></label><button>Log in at the company</button></form>');
  }

  handle = (req, res) => {
    void (async () => {
      if (req.url?.startsWith('/interaction/')) await interact(req, res);
      else await callback(req, res);
    })().catch((error: unknown) => {
      company.errors.push(String(error));
      if (!res.headersSent) res.writeHead(500).end();
    });
  };
  t.teardown(async () => {
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
  });
  return company;
}

export interface Arrived {
  readonly url: URL;
  readonly status: number;
  readonly text: string;
  readonly headers: Headers;
}

/** A browser without a screen that keeps cookies by origin and follows redirects. `who`: the person at the provider. */
export function walker(who: string) {
  const jars = new Map<string, Map<string, string>>();
  const jarOf = ({ origin }: URL): Map<string, string> => {
    const jar = jars.get(origin) ?? new Map([['who', who]]);
    jars.set(origin, jar);
    return jar;
  };
  async function step(url: URL, site: string): Promise<Arrived & { readonly location: string | null }> {
    const cookie = [...jarOf(url)].map(([name, value]) => `${name}=${value}`).join('; ');
    const answer = await fetch(url, { redirect: 'manual', headers: { cookie, 'sec-fetch-site': site } });
    const text = await answer.text();
    for (const line of answer.headers.getSetCookie()) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
      if (value === '' || /max-age=0/i.test(line)) jarOf(url).delete(name);
      else jarOf(url).set(name, value);
    }
    return { url, status: answer.status, text, headers: answer.headers, location: answer.headers.get('location') };
  }
  return {
    cookies: (origin: string): Map<string, string> => jarOf(new URL(origin)),
    /** Goes to the address and follows redirects, until `until` holds for the next address or no redirect is left. */
    async go(address: string, until: (next: URL) => boolean = () => false, from = 'same-origin'): Promise<Arrived> {
      let url = new URL(address);
      let site = from;
      for (let steps = 0; steps < 20; steps++) {
        const arrived = await step(url, site);
        if (arrived.location === null) return arrived;
        const next = new URL(arrived.location, url);
        if (until(next)) return { ...arrived, url: next };
        site = next.origin === url.origin ? site : 'cross-site';
        url = next;
      }
      throw new Error('too many redirects');
    },
  };
}
