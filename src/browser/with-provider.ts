/** `/signin/with/<provider>`: sends the browser to a provider, and takes it back. */
import { type Request, type Response, Router } from 'express';
import type { Provider, Providers } from '../auth/provider.ts';
import { AppError } from '../base/errors.ts';
import { addressOf } from '../http/limits/client-address.ts';
import type { RateLimits } from '../http/limits/rate-limit.ts';
import { turnOfStranger } from '../http/limits/strangers.ts';
import { type FaultLog, forUser, isFault, isPassing, type ProviderFault } from '../providers/faults.ts';
import type { ProviderSignIn } from '../providers/sign-in.ts';
import { html } from './html.ts';
import { note, redirect, sendPage } from './page.ts';
import { cookieOf, returnPath, signInPath, urlOf } from './requests.ts';
import type { BrowserSessions } from './sessions.ts';
import { goOn, type OtherWay } from './sign-in.ts';

export const WITH_PROVIDER = '/signin/with';
/** Lax: the provider sends the browser back from a different site. */
const PENDING_COOKIE = '__Host-portcullis-signin';
const ATTRIBUTES = 'Path=/; Secure; HttpOnly; SameSite=Lax';

export interface WithProviderParts {
  readonly trustProxy: boolean;
  readonly limits: RateLimits;
  readonly sessions: BrowserSessions;
  readonly signIn: ProviderSignIn;
  readonly faults: FaultLog;
  /** The enabled providers in a state at least as new as the call. */
  readonly providers: () => Promise<Providers>;
}

const pathOf = ({ name }: Provider): string => `${WITH_PROVIDER}/${name}`;

export const callbackOf = (publicUrl: string, provider: Provider): string => `${publicUrl}${pathOf(provider)}/callback`;

/** The buttons of the sign-in page. */
export const waysWith = (providers: Providers): OtherWay[] =>
  [...providers.values()].map((provider) => ({
    label: `Sign in with ${provider.title}`,
    path: (returnTo, again) =>
      `${pathOf(provider)}?${new URLSearchParams({ return: returnTo, ...(again ? { again: 'yes' } : {}) })}`,
  }));

export function withProviderRoutes({ trustProxy, limits, sessions, signIn, faults, providers }: WithProviderParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  async function providerOf(req: Request): Promise<Provider> {
    const found = [...(await providers()).values()].find(({ name }) => name === req.params['name']);
    if (found === undefined) throw new AppError('not_found', 'There is no provider with this name.');
    return found;
  }

  async function takeTurn(req: Request, res: Response): Promise<void> {
    const address = addressOf(req, trustProxy);
    const refusal = limits.password(address, null);
    if (refusal) throw refusal;
    await turnOfStranger(res, address);
  }

  const setPending = (res: Response, value: string, age = ''): void =>
    void res.appendHeader('Set-Cookie', `${PENDING_COOKIE}=${value}; ${age}${ATTRIBUTES}`);

  function refuse(res: Response, provider: Provider, fault: ProviderFault): void {
    faults.note(provider.id, fault);
    showRefusal(res, isPassing(fault) ? 503 : 403, provider, forUser(fault));
  }

  router.get('/:name', async (req, res) => {
    // A page of a different site must not begin a sign-in: the browser would come back signed in although the user did not ask for it.
    const site = req.headersDistinct['sec-fetch-site']?.join() ?? '';
    if (!['same-origin', 'none'].includes(site)) return redirect(res, signInPath(returnPath(req.query['return'])));
    await takeTurn(req, res);
    const provider = await providerOf(req);
    const begun = await signIn.begin(provider, returnPath(req.query['return']), req.query['again'] !== undefined);
    if (isFault(begun)) return refuse(res, provider, begun);
    setPending(res, begun.pending, 'Max-Age=600; ');
    redirect(res, begun.url);
  });

  router.get('/:name/callback', async (req, res) => {
    await takeTurn(req, res);
    const provider = await providerOf(req);
    const pending = cookieOf(req, PENDING_COOKIE);
    // A sign-in can be finished once, also if it fails.
    setPending(res, '', 'Max-Age=0; ');
    const finished = await signIn.finish(provider, urlOf(req).replace(/^[^?]*\??/, ''), pending);
    if (isFault(finished)) return refuse(res, provider, finished);
    try {
      const { user, iat, provedAt } = finished;
      await sessions.signIn(req, res, user, { method: provider.name, provedAt }, iat);
    } catch (error) {
      if (!(error instanceof AppError) || error.code !== 'forbidden') throw error;
      return showRefusal(res, 403, provider, error.message);
    }
    goOn(res, returnPath(finished.returnTo));
  });

  return router;
}

function showRefusal(res: Response, status: number, { title }: Provider, message: string): void {
  sendPage(res, status, {
    title: 'Not signed in',
    narrow: true,
    inPopUp: true,
    body: html`<div class="panel"><h1>You are not signed in</h1>${note('bad', message)}
<p class="sm muted">You came from ${title}. An administrator of this gateway can see the reason.</p>
<p><a class="btn wide" href="/signin">Back to the sign-in</a></p></div>`,
  });
}
