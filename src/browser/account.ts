/** `/account`: what belongs to the signed-in user. Here, browser sessions, applications and the sign-out. */
import { type Request, type RequestHandler, type Response, Router } from 'express';
import Joi from 'joi';
import type { BrowserSession } from '../auth/browser-store.ts';
import type { Caller } from '../auth/caller.ts';
import type { BrowserSessionList } from '../auth/sign-in/browser-sessions.ts';
import type { Login } from '../auth/sign-in/login.ts';
import { AppError } from '../base/errors.ts';
import { pathId, validate } from '../base/validate.ts';
import { callerOf } from '../http/caller.ts';
import { contextOf } from '../http/context.ts';
import { addressOf, addressSite } from '../http/limits/client-address.ts';
import type { RateLimits } from '../http/limits/rate-limit.ts';
import { newPassword, password, USER_LIMITS } from '../users/document.ts';
import { emailKey, labelOf } from '../users/user-store.ts';
import { agentName } from './agent.ts';
import { type Content, html, type Markup } from './html.ts';
import { fieldError, note, redirect, sendPage, timeOf } from './page.ts';
import { HOME, readForm, requireSameOrigin, signInPath } from './requests.ts';
import type { BrowserSessions, SignedIn } from './sessions.ts';

/** An application that may act for the user, because the user has allowed it. */
export interface Application {
  readonly id: string;
  readonly name: string;
  /** What tells applications of the same name apart. */
  readonly origin: string;
  readonly since: number;
  /** When the application last got access. */
  readonly usedAt: number;
}

export interface Applications {
  ofUser(userId: string): Promise<readonly Application[]>;
  /** Throws AppError `not_found`. */
  end(caller: Caller, id: string): Promise<void>;
}

export interface AccountParts {
  readonly applications: Applications;
  readonly publicUrl: string;
  readonly trustProxy: boolean;
  readonly login: Login;
  readonly limits: RateLimits;
  readonly sessions: BrowserSessions;
  readonly sessionList: BrowserSessionList;
}

/** How users sign in who have a password of the gateway. */
const PASSWORD = 'password';

const FIELDS: Readonly<Record<string, string>> = {
  current_password: 'The current password',
  new_password: 'The new password',
};

type Form = Readonly<Record<string, string>>;

/** What the page says after an action, by the value of `done`. */
const DONE: Readonly<Record<string, string>> = {
  session: 'The session is ended.',
  sessions: 'All your other sessions are ended.',
  application: 'The access of the application is ended.',
  'command-line': 'The command line is signed in. You can close this page.',
  password: 'The password is changed. Your other sessions and logins, and the access of applications, are ended.',
};

const IS_MISSING = { 'any.required': 'is missing', 'string.empty': 'is missing' };
const passwordChange = Joi.object<{ current_password: string; new_password: string }>({
  current_password: password().required().messages(IS_MISSING),
  new_password: newPassword().required().messages(IS_MISSING),
});

interface Said {
  readonly status?: number;
  readonly done?: Content;
  /** What is wrong with the change of the password, by its field. */
  readonly passwordErrors?: ReadonlyMap<string, string>;
}

export function accountRoutes({
  publicUrl,
  trustProxy,
  login,
  limits,
  sessions,
  sessionList,
  applications,
}: AccountParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  /** Runs `act` for a form that a page of this gateway sent for the signed-in user. Without one, the browser goes to the sign-in page. */
  const onForm =
    (act: (req: Request, res: Response, current: SignedIn, form: Form) => Promise<void>): RequestHandler =>
    async (req, res) => {
      requireSameOrigin(req, publicUrl);
      const form = await readForm(req);
      const current = await sessions.currentUser(req, res);
      if (current === null) return redirect(res, signInPath(HOME));
      contextOf(res).admission = current.admission;
      await act(req, res, current, form);
    };

  async function show(res: Response, { user, session }: SignedIn, said: Said = {}): Promise<void> {
    const [open, allowed] = await Promise.all([sessionList.listOf(user.id), applications.ofUser(user.id)]);
    sendPage(res, said.status ?? 200, {
      title: 'Account',
      user,
      body: html`<h1>Account</h1>
${said.done && note('done', said.done)}
<dl class="dl"><dt>E-mail</dt><dd>${user.email ?? 'none'}</dd><dt>Role</dt><dd>${user.role}</dd>
<dt>Groups</dt><dd>${user.groups.length === 0 ? html`<span class="muted">none</span>` : user.groups.join(', ')}</dd></dl>
${sessionsSection(open, session)}
${allowed.length > 0 && applicationsSection(allowed)}
<p><a href="/console/tokens">Your API tokens</a> · <a href="/account/connections">Your accounts at targets</a></p>
${session.method === PASSWORD && passwordSection(labelOf(user), said.passwordErrors)}`,
    });
  }

  router.get('/', async (req, res) => {
    const current = await sessions.currentUser(req, res);
    if (current === null) return redirect(res, signInPath(HOME));
    const { done } = req.query;
    await show(res, current, { done: typeof done === 'string' && Object.hasOwn(DONE, done) ? DONE[done] : undefined });
  });

  router.post('/sign-out', async (req, res) => {
    requireSameOrigin(req, publicUrl);
    await readForm(req);
    const current = await sessions.currentUser(req, res);
    if (current !== null) {
      contextOf(res).admission = current.admission;
      // A request with the same cookie may have ended the session meanwhile.
      await sessionList.end(callerOf(res), current.session.id).catch(unlessGone);
    }
    sessions.clear(res);
    redirect(res, '/signin?left=yes');
  });

  router.post(
    '/sessions/:id/end',
    onForm(async (req, res, { user }) => {
      const id = pathId(req.params['id']);
      // Administrators end sessions of others elsewhere. A form of this page is about the user's own.
      if (!(await sessionList.listOf(user.id)).some((session) => session.id === id))
        throw new AppError('not_found', 'You have no browser session with this id.');
      await sessionList.end(callerOf(res), id);
      redirect(res, `${HOME}?done=session`);
    }),
  );

  router.post(
    '/sessions/end-others',
    onForm(async (_req, res, { user, session }) => {
      await sessionList.endAllOf(callerOf(res), user.id, session.id);
      redirect(res, `${HOME}?done=sessions`);
    }),
  );

  router.post(
    '/applications/:id/end',
    onForm(async (req, res, { user }) => {
      const id = pathId(req.params['id']);
      // Administrators end the access of others elsewhere. A form of this page is about the user's own.
      if (!(await applications.ofUser(user.id)).some((allowed) => allowed.id === id))
        throw new AppError('not_found', 'You have allowed no application with this id.');
      await applications.end(callerOf(res), id);
      redirect(res, `${HOME}?done=application`);
    }),
  );

  router.post(
    '/password',
    onForm(async (req, res, current, form) => {
      const { user } = current;
      try {
        const { username: _, ...given } = form;
        const { current_password, new_password } = validate(passwordChange, given);
        const address = addressOf(req, trustProxy);
        const refusal = limits.password(address, emailKey(labelOf(user)));
        if (refusal) throw refusal;
        await login.changePassword(callerOf(res), current_password, new_password, addressSite(address));
      } catch (error) {
        if (!(error instanceof AppError) || error.status >= 500 || error.status === 401) throw error;
        if (error.retryAfter !== undefined) res.setHeader('Retry-After', String(error.retryAfter));
        const named = error.errors?.map(({ path, message }) => [path, `${FIELDS[path] ?? path} ${message}.`] as const);
        const passwordErrors = new Map(named ?? [['new_password', error.message]]);
        return await show(res, current, { status: error.status, passwordErrors });
      }
      // A new session: a thief who knows the old value of the cookie must not stay signed in.
      await sessions.signIn(req, res, user, { method: PASSWORD, provedAt: 'now' });
      redirect(res, `${HOME}?done=password`);
    }),
  );

  return router;
}

function unlessGone(error: unknown): void {
  if (!(error instanceof AppError) || (error.code !== 'not_found' && error.code !== 'invalid_token')) throw error;
}

function sessionsSection(open: readonly BrowserSession[], own: BrowserSession): Markup {
  const row = ({ id, agent, address, method, signed_in_at, seen_at }: BrowserSession): Markup => html`<tr>
<th scope="row">${agentName(agent)}<span class="sub">${address}, signed in with ${method === PASSWORD ? 'a password' : method}</span></th>
<td data-label="Signed in">${timeOf(signed_in_at)}</td><td data-label="Last used">${timeOf(seen_at)}</td>
<td class="end">${
    id === own.id
      ? html`<span class="tag">this browser</span>`
      : html`<form method="post" action="/account/sessions/${id}/end"><button class="btn">End<span class="hidden"> the session of ${agentName(agent)}</span></button></form>`
  }</td></tr>`;
  return html`<section class="stack tight" aria-labelledby="sessions"><div class="head"><div><h2 id="sessions">Where you are signed in</h2>
<p class="sm muted">A session ends after 30 minutes without a request, and 12 hours after the sign-in.</p></div>
${open.length > 1 && html`<form method="post" action="/account/sessions/end-others"><button class="btn danger">End all other sessions</button></form>`}</div>
<div class="table" role="region" aria-labelledby="sessions" tabindex="0"><table>
<thead><tr><th scope="col">Browser</th><th scope="col">Signed in</th><th scope="col">Last used</th><th scope="col"><span class="hidden">Action</span></th></tr></thead>
<tbody>${open.map(row)}</tbody></table></div></section>`;
}

function applicationsSection(allowed: readonly Application[]): Markup {
  const row = ({ id, name, origin, since, usedAt }: Application): Markup => html`<tr>
<th scope="row">${name}<span class="sub">${origin}</span></th><td data-label="Allowed">${timeOf(since)}</td><td data-label="Last used">${timeOf(usedAt)}</td>
<td class="end"><form method="post" action="/account/applications/${id}/end"><button class="btn danger">End<span class="hidden"> the access of ${name}</span></button></form></td></tr>`;
  return html`<section class="stack tight" aria-labelledby="applications"><div><h2 id="applications">Applications</h2>
<p class="sm muted">These applications can act for you at this gateway, because you have allowed it.</p></div>
<div class="table" role="region" aria-labelledby="applications" tabindex="0"><table>
<thead><tr><th scope="col">Application</th><th scope="col">Allowed</th><th scope="col">Last used</th><th scope="col"><span class="hidden">Action</span></th></tr></thead>
<tbody>${allowed.map(row)}</tbody></table></div></section>`;
}

function passwordSection(email: string, errors: ReadonlyMap<string, string> = new Map()): Markup {
  const field = (name: string, label: string, autocomplete: string, hint: string): Markup => {
    const error = errors.get(name);
    return html`<div class="field"><label for="${name}">${label}</label>
<input class="in" id="${name}" name="${name}" type="password" required autocomplete="${autocomplete}" maxlength="${USER_LIMITS.password}" aria-invalid="${error === undefined ? 'false' : 'true'}" ?autofocus="${error !== undefined}" aria-describedby="${name}-hint">
${error === undefined ? hint !== '' && html`<p class="hint" id="${name}-hint">${hint}</p>` : fieldError(`${name}-hint`, error)}</div>`;
  };
  return html`<section class="stack tight" aria-labelledby="password"><div><h2 id="password">Password</h2>
<p class="sm muted">A new password ends your other sessions and logins, and the access of applications. API tokens stay valid.</p></div>
<form class="stack form" method="post" action="/account/password"><input class="hidden" type="text" name="username" autocomplete="username" value="${email}" readonly tabindex="-1" aria-hidden="true">
${field('current_password', 'Current password', 'current-password', '')}
${field('new_password', 'New password', 'new-password', `At least ${USER_LIMITS.passwordMin} characters.`)}
<div><button class="btn">Change password</button></div></form></section>`;
}
