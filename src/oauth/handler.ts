/** The endpoints of the authorization server that programs use, and the one that browsers are sent to. The pages are in `consent.ts`. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { type Request, type RequestHandler, Router } from 'express';
import type { KoaContextWithOIDC } from 'oidc-provider';
import { AppError } from '../base/errors.ts';
import { html } from '../browser/html.ts';
import { redirect, sendPage } from '../browser/page.ts';
import { misplaced } from '../browser/requests.ts';
import type { SignedIn } from '../browser/sessions.ts';
import { readBytes } from '../http/body.ts';
import { bodyLength } from '../http/body-length.ts';
import { contextOf } from '../http/context.ts';
import { beforeRefusal, type RateLimits, refuseLater } from '../http/limits/rate-limit.ts';
import { turnOfStranger } from '../http/limits/strangers.ts';
import { problemOf } from '../http/problem.ts';
import { endAnswer } from '../http/refused-body.ts';
import { destinationOf } from './client-rules.ts';
import { createProviders, type ProviderParts, type Providers, ROUTES } from './provider.ts';
import { CLI_CLIENT } from './resources.ts';

export interface AuthorizationParts extends Omit<ProviderParts, 'signedIn' | 'showError' | 'refused' | 'failed' | 'mayFetch'> {
  readonly currentUser: (req: IncomingMessage, res: ServerResponse) => Promise<SignedIn | null>;
  readonly limits: RateLimits;
}

export interface AuthorizationServer {
  readonly providers: Providers;
  /** Routes under `/oauth`, which read their bodies themselves. */
  readonly router: Router;
}

/** A refusal. The page that says so is sent when the library has finished with the answer. */
interface ErrorPage {
  readonly error: string;
  readonly description: string;
  /** Where the browser was not sent, in words. */
  readonly keptFrom?: string;
}

export function createAuthorizationServer(parts: AuthorizationParts): AuthorizationServer {
  const { publicUrl, currentUser, limits, addressOf, grants, log } = parts;
  const { host, protocol } = new URL(publicUrl);
  const pages = new WeakMap<object, ErrorPage>();
  const refusals = new WeakMap<object, ErrorPage>();
  const providers = createProviders({
    ...parts,
    // Strangers share a limit with everybody at their address. They must not use it up for clients that a user has approved.
    mayFetch: async (req, clientId) =>
      ((await grants.findClient(clientId))?.used_at ?? null) !== null || limits.registration(addressOf(req)) === null,
    signedIn: async (ctx) => (await currentUser(ctx.req, ctx.res))?.user.id ?? null,
    showError: (ctx, error, description) => void pages.set(ctx.req, { error, description }),
    refused: (ctx, error, description) => void refusals.set(ctx.req, { error, description }),
    failed(ctx, error) {
      const { status, headers, body } = problemOf(error, {
        requestId: String(ctx.res.getHeader('X-Request-Id')),
        publicUrl,
        log,
      });
      ctx.status = status;
      const retryAfter = headers['Retry-After'];
      if (retryAfter !== undefined) ctx.set('Retry-After', retryAfter);
      if (ctx.body) ctx.body = { error: 'server_error', error_description: body.detail };
    },
  });
  const prepared = new WeakSet<object>();

  /** Hands the request to the library, at the address that `PUBLIC_URL` names. */
  const serve =
    (isPage: boolean): RequestHandler =>
    async (req, res) => {
      await turnOfStranger(res, addressOf(req));
      if (res.closed) return;
      const provider = await providers.current();
      if (!prepared.has(provider)) {
        prepared.add(provider);
        provider.use(async (ctx, next) => {
          await next();
          await finish(ctx as KoaContextWithOIDC);
        });
      }
      // Express has removed the prefix.
      req.url = req.originalUrl;
      req.baseUrl = '';
      req.headers['x-forwarded-host'] = host;
      req.headers['x-forwarded-proto'] = protocol.slice(0, -1);
      // Programs get errors as JSON, whatever they accept.
      if (!isPage) req.headers.accept = 'application/json';
      // The library keeps each chunk that it reads, which takes far more memory than the bytes of short chunks.
      Object.assign(req, { iterator: () => inOneChunk(req, res, addressOf(req)) });
      await provider.callback()(req, res);
    };

  /** Whether the user who is signed in at this browser has approved the client. */
  async function isApproved({ req, res }: KoaContextWithOIDC, clientId: string): Promise<boolean> {
    const current = await currentUser(req, res);
    if (current === null) return false;
    return (await grants.ofUser(current.user.id)).some(({ client }) => client?.client_id === clientId);
  }

  /**
   * Keeps the browser from going to a client with an error, if its user has not approved the client: a stranger could have registered it, and
   * approved it, for this redirect. A user who denies has seen where the browser goes. Returns the page to show instead; null: the answer
   * stays.
   */
  async function keptBack(ctx: KoaContextWithOIDC): Promise<ErrorPage | null> {
    const refusal = refusals.get(ctx.req);
    if (refusal === undefined || !ctx.response.get('Location')) return null;
    const { client, params } = ctx.oidc;
    if (client?.clientId === CLI_CLIENT) return null;
    const known = client === undefined ? null : await grants.findClient(client.clientId);
    const isDenial = refusal.error === 'access_denied' && known?.used_at !== null;
    if (known?.enabled && (isDenial || (await isApproved(ctx, known.client_id)))) return null;
    ctx.remove('Location');
    // The body, and the header with its length, belong to the redirect that is not sent.
    ctx.body = null;
    ctx.status = 400;
    const uri = params?.['redirect_uri'];
    return { ...refusal, keptFrom: typeof uri === 'string' && URL.canParse(uri) ? destinationOf(uri) : 'the application' };
  }

  async function finish(ctx: KoaContextWithOIDC): Promise<void> {
    const page = (await keptBack(ctx)) ?? pages.get(ctx.req);
    dropSessionCookie(ctx.res, ctx.oidc?.provider.cookieName('session'));
    if (ctx.path === ROUTES.device_authorization && ctx.status === 200) {
      const { verification_uri_complete: complete, ...answer } = ctx.body as Record<string, unknown>;
      // A click on a link of an attacker must not give the attacker's command line the rights of the user.
      ctx.body = {
        ...answer,
        ...(ctx.oidc.client?.clientId === CLI_CLIENT ? {} : { verification_uri_complete: complete }),
        interval: 5,
      };
    }
    if (page === undefined) return;
    ctx.respond = false;
    const { requestId } = contextOf(ctx.res as never);
    const isRefused = page.error === 'access_denied';
    const title = isRefused ? 'No access was given' : 'The sign-in cannot continue';
    sendPage(ctx.res, ctx.status, {
      title,
      narrow: true,
      inPopUp: true,
      body: html`<div class="panel"><h1>${title}</h1>
<p>${explained(page)}</p>
${
  page.keptFrom !== undefined &&
  html`<p>No user has allowed this application here before. So your browser was not sent on to <strong>${page.keptFrom}</strong>, and the
application does not know the answer. You can close this page.</p>`
}
${
  !isRefused &&
  page.error !== 'server_error' &&
  html`<p class="sm muted">Go back to the application and connect again. If that does not help, tell its maker: <code>${page.error}</code>, ${page.description}</p>`
}
<p class="xs muted">Request <code>${requestId}</code></p></div>`,
    });
  }

  const authorize = serve(true);
  const begin: RequestHandler = async (req, res, next) => {
    if (bodyLength(req) !== 0) {
      res.setHeader('Connection', 'close');
      throw new AppError('invalid_request', `${req.method} takes no body.`);
    }
    const wrong = misplaced(req, publicUrl);
    // Cookies belong to the one origin of PUBLIC_URL. At other addresses, the next page says so.
    if (wrong?.kind === 'moved') return redirect(res, wrong.to);
    const refusal = problemOfQuery(req);
    if (refusal) throw refusal;
    return authorize(req, res, next);
  };

  const router = Router({ caseSensitive: true, strict: true });
  router.use(async (req, res, next) => {
    const address = addressOf(req);
    await refuseLater(req, address, limits.oauth(address));
    if ((bodyLength(req) ?? 0) > MOST_BYTES) {
      await beforeRefusal(req, address);
      res.status(413).type('json').setHeader('Cache-Control', 'no-store');
      const description = `The body must have at most ${MOST_BYTES} bytes.`;
      endAnswer(res, JSON.stringify({ error: 'invalid_request', error_description: description }));
      return;
    }
    // The library looks for each parameter among all, so thousands of them would hold the thread for a quarter of a second.
    if (req.originalUrl.split('&', MOST_PARAMETERS + 1).length > MOST_PARAMETERS)
      throw new AppError('invalid_request', `An address may have at most ${MOST_PARAMETERS} parameters.`);
    next();
  });
  router.get('/authorize', begin);
  router.get('/authorize/:uid', begin);
  router.post('/token', serve(false));
  router.post('/revoke', serve(false));
  router.post('/device_authorization', limited(addressOf, limits.device), serve(false));
  if (parts.registration) router.post('/register', limited(addressOf, limits.registration), serve(false));
  return { providers, router };
}

/** The library refuses more, but does not end the connection. */
const MOST_BYTES = 56 * 1024;

async function* inOneChunk(req: IncomingMessage, res: ServerResponse, address: string): AsyncGenerator<Buffer> {
  try {
    yield await readBytes(req, MOST_BYTES);
  } catch (error) {
    // Otherwise node would discard the rest of the body at full speed.
    if (!req.complete) res.setHeader('Connection', 'close');
    await beforeRefusal(req, address);
    throw error;
  }
}

/** Registrations, and devices that ask for a code, leave rows behind. */
const limited =
  (addressOf: AuthorizationParts['addressOf'], limit: (address: string) => AppError | null): RequestHandler =>
  (req, _res, next) => {
    const refusal = limit(addressOf(req));
    if (refusal) throw refusal;
    next();
  };

/** No request of OAuth has more than twenty. */
const MOST_PARAMETERS = 50;

/** The gateway stores the `state` of strangers until they sign in. */
const MAX_STATE = 2_048;

/** Answers of other response modes are pages with scripts, or end in the history of the browser. */
function problemOfQuery(req: Request): AppError | null {
  const { response_mode: mode, state } = req.query;
  if (typeof state === 'string' && state.length > MAX_STATE) {
    return new AppError('invalid_request', `state may have at most ${MAX_STATE} characters.`);
  }
  if (mode === undefined || mode === 'query') return null;
  return new AppError('invalid_request', 'The only response_mode is query.');
}

function explained({ error }: ErrorPage): string {
  switch (error) {
    case 'access_denied':
      return 'The application gets no access: it was refused, or a different user has signed in.';
    case 'invalid_client':
      return 'The gateway does not know the application that sent you here. It may have to register again.';
    case 'invalid_redirect_uri':
      return 'The application wants you to return to an address that it has not registered, so the gateway did not send you there.';
    case 'invalid_client_metadata':
      return 'The description of the application that sent you here is not valid.';
    case 'server_error':
      return 'The gateway cannot answer at the moment. Go back to the application and connect again in a moment.';
    default:
      return 'The application that sent you here made a request that the gateway does not accept.';
  }
}

/** The library sets a cookie for its own session, which is never stored. */
function dropSessionCookie(res: ServerResponse, name: string | undefined): void {
  const cookies = res.getHeader('Set-Cookie');
  if (name === undefined || !Array.isArray(cookies)) return;
  const kept = cookies.filter((cookie) => !cookie.startsWith(`${name}=`) && !cookie.startsWith(`${name}.sig=`));
  if (kept.length === 0) res.removeHeader('Set-Cookie');
  else res.setHeader('Set-Cookie', kept);
}
