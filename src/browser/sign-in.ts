/** `/signin`: with a local account, or in other ways that the gateway offers. */
import { type Response, Router } from 'express';
import Joi from 'joi';
import type { Login } from '../auth/sign-in/login.ts';
import type { Registration } from '../auth/sign-in/registration.ts';
import { AppError, type FieldError } from '../base/errors.ts';
import { validate } from '../base/validate.ts';
import { addressOf, addressSite } from '../http/limits/client-address.ts';
import type { RateLimits } from '../http/limits/rate-limit.ts';
import { email, password } from '../users/document.ts';
import { EVERYBODY, type LocalSignIn } from '../users/local-sign-in.ts';
import { emailKey, isLocal, labelOf } from '../users/user-store.ts';
import { type Content, html } from './html.ts';
import { fieldError, note, redirect, sendPage } from './page.ts';
import { REGISTER, readForm, requireSameOrigin, returnPath } from './requests.ts';
import type { BrowserSessions, SignedIn } from './sessions.ts';

/** A button of the sign-in page. It leads to a path of this gateway, which begins the sign-in. */
export interface OtherWay {
  readonly label: string;
  /** Returns a path that leads to `returnTo` after the sign-in. `again`: the user is signed in, and must prove it again. */
  readonly path: (returnTo: string, again: boolean) => string;
}

export interface SignInParts {
  readonly publicUrl: string;
  readonly trustProxy: boolean;
  readonly login: Login;
  readonly registration: Pick<Registration, 'isOpen' | 'firstPending'>;
  readonly limits: RateLimits;
  readonly sessions: BrowserSessions;
  readonly otherWays: () => Promise<readonly OtherWay[]>;
  /** If one administrator alone has a password, the page offers the other ways first. */
  readonly localSignIn: LocalSignIn;
}

interface Form {
  readonly email: string;
  readonly returnTo: string;
  readonly errors?: readonly FieldError[];
  readonly problem?: string;
  /** What the page says before anything is tried. */
  readonly hint?: Content;
  /** Whether the user is signed in, and must prove it again. */
  readonly again?: boolean;
  /** Whether to show the form for a password, if one administrator alone has one. */
  readonly asAdministrator?: boolean;
}

const credentials = Joi.object<{ email: string; password: string }>({
  email: email().required().messages({ 'any.required': 'is missing', 'string.empty': 'is missing' }),
  password: password().required().messages({ 'any.required': 'is missing', 'string.empty': 'is missing' }),
});

const NAMES: Readonly<Record<string, string>> = { email: 'The e-mail', password: 'The password' };

/** Goes on after a sign-in. */
export function goOn(res: Response, path: string): void {
  if (!path.startsWith('/oauth')) {
    redirect(res, path);
    return;
  }
  // The authorization may answer with a redirect to the client. Browsers would refuse it as a result of this form (form-action).
  sendPage(res, 200, {
    title: 'Signed in',
    narrow: true,
    goTo: path,
    inPopUp: true,
    body: html`<div class="panel"><h1>You are signed in</h1><p><a href="${path}">Continue</a></p></div>`,
  });
}

const registerPath = (returnTo: string): string => `${REGISTER}?${new URLSearchParams({ return: returnTo })}`;

const administratorPath = (returnTo: string, again: boolean): string =>
  `/signin?${new URLSearchParams({ administrator: 'yes', return: returnTo, ...(again ? { again: 'yes' } : {}) })}`;

/** Whether the person signed in with a password, and so must do that again. */
const isAdministrator = (current: SignedIn | null): boolean => current !== null && isLocal(current.user);

export function signInRoutes(parts: SignInParts): Router {
  const { publicUrl, trustProxy, login, registration, limits, sessions, otherWays, localSignIn } = parts;
  const router = Router({ caseSensitive: true, strict: true });

  async function show(
    res: Response,
    status: number,
    { email, returnTo, errors = [], problem, hint, again = false, asAdministrator = false }: Form,
  ): Promise<void> {
    const [ways, mayRegister] = await Promise.all([otherWays(), registration.isOpen()]);
    const errorOf = (path: string): string | null => {
      const message = errors.find((error) => error.path === path)?.message;
      return message === undefined ? null : `${NAMES[path]} ${message}.`;
    };
    const [emailError, passwordError] = [errorOf('email'), errorOf('password')];
    const hasForm = localSignIn === EVERYBODY || asAdministrator;
    const first = emailError !== null || email === '' ? 'email' : 'password';
    sendPage(res, status, {
      title: 'Sign in',
      narrow: true,
      inPopUp: returnTo.startsWith('/oauth'),
      body: html`<div class="panel"><h1>Sign in</h1>
${hint}
${problem !== undefined && note('bad', problem)}
${ways.length > 0 && html`<div class="stack tight">${ways.map((way) => html`<a class="btn wide" href="${way.path(returnTo, again)}">${way.label}</a>`)}</div>`}
${ways.length > 0 && hasForm && html`<p class="or">or</p>`}
${ways.length === 0 && !hasForm && html`<p>No provider of your company is registered or enabled. Ask an administrator.</p>`}
${
  hasForm
    ? html`<form class="stack" method="post" action="/signin">
<input type="hidden" name="return" value="${returnTo}">
<div class="field"><label for="email">E-mail</label>
<input class="in" id="email" name="email" type="email" autocomplete="username" required value="${email}" ?autofocus="${first === 'email'}" aria-invalid="${emailError === null ? 'false' : 'true'}" aria-describedby="email-error">
${emailError !== null && fieldError('email-error', emailError)}</div>
<div class="field"><label for="password">Password</label>
<input class="in" id="password" name="password" type="password" autocomplete="current-password" required ?autofocus="${first === 'password'}" aria-invalid="${passwordError === null ? 'false' : 'true'}" aria-describedby="password-error">
${passwordError !== null && fieldError('password-error', passwordError)}</div>
<button class="btn cta wide">Sign in</button>
</form>
<p class="xs muted">${
        mayRegister
          ? html`You have no account? <a href="${registerPath(returnTo)}">Make one</a>.`
          : localSignIn === EVERYBODY
            ? 'You have no account? Ask an administrator of this gateway.'
            : 'Only the administrator whom LOCAL_SIGN_IN names has a password.'
      }</p>`
    : html`<p class="xs muted"><a href="${administratorPath(returnTo, again)}">Sign in as administrator</a></p>`
}</div>`,
    });
  }

  router.get('/', async (req, res) => {
    const returnTo = returnPath(req.query['return']);
    const current = await sessions.currentUser(req, res);
    if (current !== null && req.query['again'] === undefined) return redirect(res, returnTo);
    if (current === null && (await registration.firstPending()) && (await registration.isOpen()))
      return redirect(res, registerPath(returnTo));
    const hint =
      current !== null
        ? html`<p class="sm muted">This needs a sign-in within the last 10 minutes. Sign in again as ${labelOf(current.user)} to continue.</p>`
        : req.query['left'] !== undefined && note('done', 'You are signed out.');
    await show(res, 200, {
      ...{ email: current?.user.email ?? '', returnTo, hint, again: req.query['again'] !== undefined },
      asAdministrator: req.query['administrator'] !== undefined || isAdministrator(current),
    });
  });

  router.post('/', async (req, res) => {
    requireSameOrigin(req, publicUrl);
    const { return: wanted, ...claimed } = await readForm(req);
    const returnTo = returnPath(wanted);
    try {
      const account = validate(credentials, claimed);
      const address = addressOf(req, trustProxy);
      const refusal = limits.password(address, emailKey(account.email));
      if (refusal) throw refusal;
      const value = await login.signIn({ ...account, from: addressSite(address) }, (trx, user) =>
        sessions.open(trx, req, user, { method: 'password', provedAt: 'now' }),
      );
      sessions.setCookie(res, value);
    } catch (error) {
      if (!(error instanceof AppError) || error.status >= 500) throw error;
      if (error.retryAfter !== undefined) res.setHeader('Retry-After', String(error.retryAfter));
      // 401 would need a challenge, and this page takes no Authorization header.
      const status = error.status === 401 ? 403 : error.status;
      const { errors } = error;
      return await show(res, status, {
        ...{ email: claimed['email'] ?? '', returnTo, asAdministrator: true },
        ...(errors ? { errors } : { problem: error.message }),
      });
    }
    goOn(res, returnTo);
  });

  return router;
}
