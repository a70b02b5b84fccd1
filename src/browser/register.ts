/** `/signin/register`: makes the first administrator, or an account where everybody may register. */
import { type Response, Router } from 'express';
import Joi from 'joi';
import type { Registration } from '../auth/sign-in/registration.ts';
import { AppError, type FieldError } from '../base/errors.ts';
import { validate } from '../base/validate.ts';
import { addressOf, addressSite } from '../http/limits/client-address.ts';
import type { RateLimits } from '../http/limits/rate-limit.ts';
import { newEmail, newPassword, USER_LIMITS } from '../users/document.ts';
import { emailKey } from '../users/user-store.ts';
import { html } from './html.ts';
import { fieldError, note, redirect, sendPage } from './page.ts';
import { REGISTER, readForm, requireSameOrigin, returnPath, signInPath } from './requests.ts';
import type { BrowserSessions } from './sessions.ts';
import { goOn } from './sign-in.ts';

export interface RegisterParts {
  readonly publicUrl: string;
  readonly trustProxy: boolean;
  readonly registration: Registration;
  readonly limits: RateLimits;
  readonly sessions: BrowserSessions;
}

const IS_MISSING = { 'any.required': 'is missing', 'string.empty': 'is missing' };

const newAccount = Joi.object<{ email: string; password: string }>({
  email: newEmail().required().messages(IS_MISSING),
  password: newPassword().required().messages(IS_MISSING),
});

const NAMES: Readonly<Record<string, string>> = { email: 'The e-mail', password: 'The password' };

interface Form {
  readonly email: string;
  readonly returnTo: string;
  readonly errors?: readonly FieldError[];
  readonly problem?: string;
}

export function registerRoutes({ publicUrl, trustProxy, registration, limits, sessions }: RegisterParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  async function show(res: Response, status: number, { email, returnTo, errors = [], problem }: Form): Promise<void> {
    const [isFirst, needsCode] = await Promise.all([registration.firstPending(), registration.setupCodePending()]);
    const field = (path: string, type: string, label: string, autocomplete: string, hint: string, value: string) => {
      const message = errors.find((error) => error.path === path)?.message;
      return html`<div class="field"><label for="${path}">${label}</label>
<input class="in" id="${path}" name="${path}" type="${type}" autocomplete="${autocomplete}" required value="${value}" aria-invalid="${message === undefined ? 'false' : 'true'}" aria-describedby="${path}-about">
${message === undefined ? html`<p class="xs muted" id="${path}-about">${hint}</p>` : fieldError(`${path}-about`, `${NAMES[path]} ${message}.`)}</div>`;
    };
    const title = isFirst ? 'Make the first administrator' : 'Make an account';
    sendPage(res, status, {
      title,
      narrow: true,
      inPopUp: returnTo.startsWith('/oauth'),
      body: html`<div class="panel"><h1>${title}</h1>
<p class="sm muted">${isFirst ? 'This gateway has no user yet. The first one may do everything, and lets others in.' : 'What you may use is decided by the policies of this gateway.'}</p>
${problem !== undefined && note('bad', problem)}
<form class="stack" method="post" action="${REGISTER}"><input type="hidden" name="return" value="${returnTo}">
${needsCode && field('code', 'text', 'Setup code', 'off', 'The gateway prints it when it starts. The command portcullis setup-code prints it again.', '')}
${field('email', 'email', 'E-mail', 'username', 'You sign in with it.', email)}
${field('password', 'password', 'Password', 'new-password', `At least ${USER_LIMITS.passwordMin} characters.`, '')}
<button class="btn cta wide">${isFirst ? 'Make the administrator' : 'Make the account'}</button></form>
<p class="xs muted"><a href="${signInPath(returnTo)}">Sign in</a> if you have an account.</p></div>`,
    });
  }

  router.get('/', async (req, res) => {
    const returnTo = returnPath(req.query['return']);
    if ((await sessions.currentUser(req, res)) !== null) return redirect(res, returnTo);
    if (!(await registration.isOpen())) return redirect(res, signInPath(returnTo));
    await show(res, 200, { email: '', returnTo });
  });

  router.post('/', async (req, res) => {
    requireSameOrigin(req, publicUrl);
    const { return: wanted, code, ...claimed } = await readForm(req);
    const returnTo = returnPath(wanted);
    try {
      const account = validate(newAccount, claimed);
      const address = addressOf(req, trustProxy);
      const refusal = limits.password(address, emailKey(account.email));
      if (refusal) throw refusal;
      const user = await registration.register({ ...account, from: addressSite(address) }, code);
      await sessions.signIn(req, res, user, { method: 'password', provedAt: 'now' });
    } catch (error) {
      if (!(error instanceof AppError) || error.status >= 500) throw error;
      if (error.retryAfter !== undefined) res.setHeader('Retry-After', String(error.retryAfter));
      const problem =
        error.code === 'setup_code_required'
          ? 'The setup code is missing or wrong. The gateway prints it when it starts.'
          : error.message;
      return await show(res, error.status, {
        ...{ email: claimed['email'] ?? '', returnTo },
        ...(error.errors ? { errors: error.errors } : { problem }),
      });
    }
    goOn(res, returnTo);
  });

  return router;
}
