/** `/console`: pages for administrators and reviewers. They read through the operations of REST. */
import { type Request, type RequestHandler, type Response, Router } from 'express';
import { AppError } from '../base/errors.ts';
import { pathId } from '../base/validate.ts';
import { type Content, html, type Markup } from '../browser/html.ts';
import { GATE, redirect, sendFragment, sendPage } from '../browser/page.ts';
import { THEME_COOKIE, THEMES, type Theme, themeOf } from '../browser/reader.ts';
import { readForm, requireSameOrigin, returnPath, signInPath, urlOf } from '../browser/requests.ts';
import type { BrowserSessions, SignedIn } from '../browser/sessions.ts';
import { readInTurn } from '../db/turns.ts';
import { contextOf } from '../http/context.ts';
import { takeTurn } from '../http/limits/turn.ts';
import { DRAFT_NAME } from '../policies/sets/draft.ts';
import { authorize } from '../rest/authorize.ts';
import { TARGET_NAME } from '../targets/target.ts';
import { labelOf } from '../users/user-store.ts';
import type { Ask, Pass } from './ask.ts';
import { FINDINGS, findingsPage } from './findings.ts';
import { type Form, hasSecret, keepingPage, ProofNeeded } from './form.ts';
import { CHANGES, changesPage, replicasPage } from './gateway.ts';
import { comparePage, HISTORY, historyPage, revisionPage } from './history.ts';
import { changeKeys, KEYS, keysPage } from './keys.ts';
import { decisionPage, draftDecision } from './log/decision.ts';
import { DEMAND, demandPage } from './log/demand.ts';
import { EXPORT, LOG, logPage, logRows } from './log/log.ts';
import { OVERVIEW, overviewPage } from './overview.ts';
import { ACCESS, accessPage } from './people/access.ts';
import { CONNECT, connectPage, MINE, minePage, ownTargetPage } from './people/mine.ts';
import { changeTokens, DENIED, deniedPage, TOKENS, tokensPage } from './people/own.ts';
import { CLIENTS_PATH, changeClient, changeRights, clientsPage, RIGHTS_PATH, rightsPage } from './people/rights.ts';
import { editUser, editUserPage, endHolding, holdingsPage, makeUser, newUserPage, operateUser } from './people/user-forms.ts';
import { USERS, userPage, usersPage } from './people/users.ts';
import { whyPage } from './people/why.ts';
import { POLICIES, policiesPage, policyPage } from './policies.ts';
import { changeDraft, DRAFTS, draftPage, draftsPage } from './policy-changes/drafts.ts';
import {
  deletePolicy,
  deletePolicyPage,
  editPolicyPage,
  makePolicy,
  newPolicyPage,
  PATTERN,
  savePolicy,
} from './policy-changes/edit.ts';
import { movePage, movePolicy } from './policy-changes/move.ts';
import { patternBeside } from './policy-changes/pattern.ts';
import { rollBack, rollbackPage } from './policy-changes/rollback.ts';
import { foundBeside, SEARCH, searchPage } from './search.ts';
import { CONSOLE_SCRIPT_PATH, CONSOLE_STYLE_PATH } from './style.ts';
import {
  allowPage,
  allowTools,
  changeCredentials,
  credentialsPage,
  deleteTarget,
  deleteTargetPage,
  editTarget,
  editTargetPage,
  makeTarget,
  newTargetPage,
  operateTarget,
} from './targets/forms.ts';
import { changeSessions, SESSIONS, sessionsPage } from './targets/sessions.ts';
import { changeSettings, settingsPage } from './targets/settings.ts';
import { TARGETS, targetPage, targetsPage } from './targets/targets.ts';
import { type Act, type Download, queryOf, type Shown, type View, withQuery } from './view.ts';

export const CONSOLE_PATH = '/console';

export interface ConsoleParts {
  readonly ask: Ask;
  readonly pass: Pass;
  readonly publicUrl: string;
  readonly sessions: Pick<BrowserSessions, 'currentUser'>;
}

interface Entry {
  readonly path: string;
  readonly label: string;
  /** The operation without which the page shows nothing. */
  readonly operation: string;
}

const MENU: readonly { readonly title: string | null; readonly entries: readonly Entry[] }[] = [
  { title: null, entries: [{ path: OVERVIEW, label: 'Overview', operation: 'countDecisions' }] },
  {
    title: 'Policy',
    entries: [
      { path: POLICIES, label: 'Policies', operation: 'listPoliciesInOrder' },
      { path: FINDINGS, label: 'Findings', operation: 'lintPolicies' },
      { path: DRAFTS, label: 'Drafts', operation: 'listDrafts' },
      { path: HISTORY, label: 'History', operation: 'listRevisions' },
    ],
  },
  {
    title: 'Gateway',
    entries: [
      { path: TARGETS, label: 'Targets', operation: 'listTargets' },
      { path: SESSIONS, label: 'Sessions', operation: 'listSessions' },
      { path: '/console/replicas', label: 'Replicas', operation: 'getStatus' },
      { path: KEYS, label: 'Keys', operation: 'listSigningKeys' },
    ],
  },
  {
    title: 'People',
    entries: [
      { path: USERS, label: 'Users', operation: 'listUsers' },
      { path: ACCESS, label: 'Access', operation: 'getAccessMatrix' },
      { path: RIGHTS_PATH, label: 'Rights', operation: 'listRights' },
      { path: CLIENTS_PATH, label: 'Clients', operation: 'listClients' },
    ],
  },
  {
    title: 'Record',
    entries: [
      { path: LOG, label: 'Audit log', operation: 'listDecisions' },
      { path: DEMAND, label: 'Denied requests', operation: 'listDeniedDemand' },
      { path: CHANGES, label: 'Changes', operation: 'listChanges' },
    ],
  },
  {
    title: 'Yours',
    entries: [
      { path: MINE, label: 'What you may use', operation: 'listOwnTargets' },
      { path: CONNECT, label: 'Connect a client', operation: 'listOwnTargets' },
      { path: TOKENS, label: 'Tokens', operation: 'listApiTokens' },
      { path: DENIED, label: 'What you were denied', operation: 'listOwnDenials' },
      { path: '/account/connections', label: 'Connections', operation: 'listOwnTargets' },
      { path: '/account', label: 'Account', operation: 'listOwnTargets' },
    ],
  },
];

/** Returns the parts of the menu that the user may open. */
function menuFor({ principal, snapshot }: SignedIn['admission']) {
  return MENU.map(({ title, entries }) => ({
    title,
    entries: entries.filter(({ operation }) => 'held' in authorize(principal, operation, snapshot.rights)),
  })).filter(({ entries }) => entries.length > 0);
}

export function consoleRoutes({ ask, pass, publicUrl, sessions }: ConsoleParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  type IdOf = (value: unknown) => string;

  /** Signs in the browser, if it must, and waits for the turn of its session. null: the answer is sent. */
  async function enter(req: Request, res: Response, at: string, isActivity = true): Promise<SignedIn | null> {
    const current = await sessions.currentUser(req, res, isActivity);
    if (current === null) {
      redirect(res, signInPath(at));
      return null;
    }
    const context = contextOf(res);
    context.admission = current.admission;
    context.admit = async () => {
      const again = await sessions.currentUser(req, res, false);
      if (again === null) throw new AppError('unauthenticated', 'The browser session has ended.');
      return again.admission;
    };
    await turnOf(current, req, res);
    return current;
  }

  const answer = (
    res: Response,
    current: SignedIn,
    path: string,
    { status, title, body, againIn, scripts = [] }: Shown & { readonly status: number },
  ) =>
    sendPage(res, status, {
      ...{ title, body, style: CONSOLE_STYLE_PATH, scripts: [CONSOLE_SCRIPT_PATH, ...scripts], againIn },
      frame: frame(current, path, themeOf(res.req)),
    });

  const viewOf = (req: Request, res: Response, current: SignedIn, idOf: IdOf): View => {
    const { done = '', ...query } = queryOf(req);
    return {
      ...{ query, done, publicUrl, refused: null, isRecent: current.isRecent, userId: current.user.id },
      id: idOf(req.params['id']),
      pages: menuFor(current.admission).flatMap(({ entries }) => entries),
      provePath: signInPath(urlOf(req), true),
      may: (operation) => 'held' in authorize(current.admission.principal, operation, current.admission.snapshot.rights),
      get: (path) => ask(res, 'GET', path),
      post: (path, body) => ask(res, 'POST', path, body),
      send: (method, path, body, headers) => ask(res, method, path, body, headers),
      inTurn: (work) => readInTurn(current.admission.principal.sub, work),
    };
  };

  const page =
    (show: (view: View) => Promise<Shown>, idOf: IdOf): RequestHandler =>
    async (req, res) => {
      const current = await enter(req, res, urlOf(req));
      if (current === null) return;
      const shown = await shownOrRefused(async () => show(viewOf(req, res, current, idOf)), res);
      answer(res, current, pathOf(req), shown);
    };

  /** A piece of a page. `isActivity` false: a script asks for it on its own. */
  const fragment =
    (show: (view: View) => Promise<Content>, isActivity: boolean): RequestHandler =>
    async (req, res) => {
      const current = await enter(req, res, urlOf(req), isActivity);
      if (current === null) return;
      const made = async (): Promise<Shown> => ({ title: '', body: await show(viewOf(req, res, current, () => '')) });
      const { status, body } = await shownOrRefused(made, res);
      sendFragment(res, status, body);
    };

  /** Takes the form of a page. If the operation refuses it, the page shows it again, with the reason. */
  const change =
    (show: (view: View) => Promise<Shown>, act: Act, idOf: IdOf): RequestHandler =>
    async (req, res) => {
      requireSameOrigin(req, publicUrl);
      const form = await readForm(req);
      const current = await sessions.currentUser(req, res);
      if (current === null) return leftPage(res, pathOf(req), form);
      contextOf(res).admission = current.admission;
      await turnOf(current, req, res);
      const view = viewOf(req, res, current, idOf);
      const prove = (kept: Form | null = null): void => {
        if (!current.isRecent) throw new ProofNeeded(kept);
      };
      try {
        const done = await act({ ...view, form, prove });
        if (typeof done === 'string') return redirect(res, done);
        if ('fileName' in done) return sendDownload(res, done);
        answer(res, current, pathOf(req), { status: 200, ...done });
      } catch (error) {
        if (error instanceof ProofNeeded) {
          const { kept } = error;
          if (kept === null) return redirect(res, view.provePath);
          const signIn = signInPath(`${CONSOLE_PATH}/proved`, true);
          return answer(res, current, pathOf(req), { status: 403, ...keepingPage(pathOf(req), kept, signIn, RECENT) });
        }
        if (!(error instanceof AppError) || error.status >= 500) throw error;
        if (error.retryAfter !== undefined) res.setHeader('Retry-After', String(error.retryAfter));
        const shown = await shownOrRefused(async () => show({ ...view, refused: { form, error } }), res);
        // 401 would need a challenge, and a page takes no Authorization header.
        const status = error.status === 401 ? 403 : error.status;
        answer(res, current, pathOf(req), { ...shown, status });
      }
    };

  router.get('/', async (req, res) => {
    const current = await sessions.currentUser(req, res);
    if (current === null) return redirect(res, signInPath(CONSOLE_PATH));
    redirect(res, menuFor(current.admission)[0]?.entries[0]?.path ?? MINE);
  });
  for (const [path, show] of [
    ['/overview', overviewPage],
    ['/findings', findingsPage],
    ['/search', searchPage],
    ['/policies', policiesPage],
    ['/history', historyPage],
    ['/history/compare', comparePage],
    ['/drafts', draftsPage],
    ['/proved', provedPage],
    ['/targets', targetsPage],
    ['/users', usersPage],
    ['/access', accessPage],
    ['/access/why', whyPage],
    ['/mine', minePage],
    ['/connect', connectPage],
    ['/denied', deniedPage],
    ['/log', logPage],
    ['/demand', demandPage],
    ['/changes', changesPage],
    ['/replicas', replicasPage],
  ] as const) {
    router.get(
      path,
      page(show, () => ''),
    );
  }
  router.get(EXPORT.slice(CONSOLE_PATH.length), async (req, res) => {
    const current = await enter(req, res, urlOf(req));
    if (current === null) return;
    const shown = await shownOrRefused(async () => {
      res.set(DOWNLOAD_HEADERS);
      await pass(res, withQuery('/logs/export', queryOf(req)));
      return { title: '', body: null };
    }, res);
    if (!res.headersSent) answer(res, current, LOG, shown);
  });
  router.get('/log/rows', fragment(logRows, false));
  router.get('/search/found', fragment(foundBeside, true));
  router.get(PATTERN.slice(CONSOLE_PATH.length), fragment(patternBeside, true));
  router.post('/theme', async (req, res) => {
    requireSameOrigin(req, publicUrl);
    const form = await readForm(req);
    const theme = THEMES.find((each) => each === form['theme']);
    const kept = theme === undefined ? 'Max-Age=0' : `Max-Age=${THEME_SECONDS}`;
    res.appendHeader('Set-Cookie', `${THEME_COOKIE}=${theme ?? ''}; ${kept}; Path=/; Secure; HttpOnly; SameSite=Lax`);
    redirect(res, returnPath(form['return']));
  });
  // Before the pages with ids, which would take `new` for one.
  for (const [path, show, act] of [
    ['/targets/new', newTargetPage, makeTarget],
    ['/users/new', newUserPage, makeUser],
    ['/rights', rightsPage, changeRights],
    ['/tokens', tokensPage, changeTokens],
    ['/clients', clientsPage, changeClient],
    ['/policies/new', newPolicyPage, makePolicy],
    ['/sessions', sessionsPage, changeSessions],
    ['/keys', keysPage, changeKeys],
  ] as const) {
    router.get(
      path,
      page(show, () => ''),
    );
    router.post(
      path,
      change(show, act, () => ''),
    );
  }
  for (const [path, show] of [
    ['/policies/:id', policyPage],
    ['/targets/:id', targetPage],
    ['/users/:id', userPage],
    ['/log/:id', decisionPage],
  ] as const) {
    router.get(path, page(show, pathId));
  }
  router.post('/log/:id', change(decisionPage, draftDecision, pathId));
  router.get('/drafts/:id', page(draftPage, draftName));
  router.post('/drafts/:id', change(draftPage, changeDraft, draftName));
  router.post('/targets/:id', change(targetPage, operateTarget, pathId));
  router.post('/users/:id', change(userPage, operateUser, pathId));
  for (const [path, show, act] of [
    ['/targets/:id/edit', editTargetPage, editTarget],
    ['/targets/:id/settings', settingsPage, changeSettings],
    ['/targets/:id/delete', deleteTargetPage, deleteTarget],
    ['/targets/:id/credentials', credentialsPage, changeCredentials],
    ['/targets/:id/allow', allowPage, allowTools],
    ['/users/:id/edit', editUserPage, editUser],
    ['/users/:id/tokens', holdingsPage, endHolding],
    ['/policies/:id/edit', editPolicyPage, savePolicy],
    ['/policies/:id/delete', deletePolicyPage, deletePolicy],
    ['/policies/:id/move', movePage, movePolicy],
  ] as const) {
    router.get(path, page(show, pathId));
    router.post(path, change(show, act, pathId));
  }
  router.get('/history/:id', page(revisionPage, revisionId));
  router.get('/history/:id/rollback', page(rollbackPage, revisionId));
  router.post('/history/:id/rollback', change(rollbackPage, rollBack, revisionId));
  router.get('/mine/:id', page(ownTargetPage, targetName));
  return router;
}

const RECENT = 'This change needs a sign-in within the last 10 minutes.';

/** The session has ended. What was entered is kept, except secrets: a page that has them would show them to the next user of the browser. */
function leftPage(res: Response, path: string, form: Form): void {
  if (hasSecret(form)) redirect(res, signInPath(path));
  else {
    const { body, title } = keepingPage(path, form, signInPath(`${CONSOLE_PATH}/proved`, true), 'Your session has ended.');
    sendPage(res, 403, { title, body, style: CONSOLE_STYLE_PATH });
  }
}

const provedPage = async (): Promise<Shown> => ({
  title: 'Signed in again',
  body: html`<h1>You are signed in again</h1><p>Close this tab, and go on in the one that keeps your change. You have 10 minutes.</p>`,
});

const DOWNLOAD_HEADERS = {
  'X-Content-Type-Options': 'nosniff',
  'Cross-Origin-Resource-Policy': 'same-origin',
  'Cache-Control': 'no-store',
};

function sendDownload(res: Response, { fileName, text }: Download): void {
  const headers = { ...DOWNLOAD_HEADERS, 'Content-Type': 'text/plain; charset=utf-8' };
  res.set({ ...headers, 'Content-Disposition': `attachment; filename="${fileName}"` }).end(text);
}

const pathOf = (req: Request): string => urlOf(req).replace(/\?.*/, '');

/** An id of a different form could be the path of a different operation, such as `order`. Throws AppError `not_found`. */
function revisionId(value: unknown): string {
  if (typeof value === 'string' && /^[1-9][0-9]{0,14}$/.test(value)) return value;
  throw new AppError('not_found', 'A revision is a number from 1.');
}

function draftName(value: unknown): string {
  if (typeof value === 'string' && DRAFT_NAME.test(value)) return value;
  throw new AppError('not_found', 'No draft can have this name.');
}

function targetName(value: unknown): string {
  if (typeof value === 'string' && TARGET_NAME.test(value)) return value;
  throw new AppError('not_found', 'No target can have this name.');
}

const THEME_SECONDS = 31_536_000;

/** Resolves when it is the turn of the session's request. */
const turnOf = ({ session, user }: SignedIn, req: Request, res: Response): Promise<void> =>
  new Promise((resolve) => takeTurn({ sender: `console ${session.id}`, user: user.id }, req, res, resolve));

/** A refusal is shown inside of the frame, so that the menu stays. A fault is thrown. */
async function shownOrRefused(work: () => Promise<Shown>, res: Response): Promise<Shown & { readonly status: number }> {
  try {
    return { status: 200, ...(await work()) };
  } catch (error) {
    if (!(error instanceof AppError) || error.status >= 500) throw error;
    if (error.retryAfter !== undefined) res.setHeader('Retry-After', String(error.retryAfter));
    const { requestId } = contextOf(res);
    const { retryAfter } = error;
    const title = error.status === 404 ? 'Not found' : error.status === 403 ? 'You may not see this' : 'This does not work';
    const fields = error.errors?.map(({ path, message }) => html`<li><code>${path}</code> ${message}</li>`);
    const body = html`<h1>${title}</h1><p>${error.message}</p>${fields !== undefined && html`<ul>${fields}</ul>`}
${retryAfter !== undefined && html`<again-in data-seconds="${retryAfter}"><p>You can try again in <b>${retryAfter}</b> seconds. <a href="${urlOf(res.req)}">Try again</a></p></again-in>`}
<p><a href="${CONSOLE_PATH}">Go to the start</a></p>
<p class="xs muted">Request <code>${requestId}</code></p>`;
    return { status: error.status, title, body };
  }
}

const LOOKS: readonly (readonly [Theme | null, string])[] = [
  ['light', 'Light'],
  ['dark', 'Dark'],
  [null, 'System'],
];

const frame =
  ({ user, admission }: SignedIn, path: string, theme: Theme | null) =>
  (body: Content): Markup => {
    const isCurrent = (entry: Entry): boolean => path === entry.path || path.startsWith(`${entry.path}/`);
    const link = (entry: Entry): Markup =>
      isCurrent(entry)
        ? html`<li><a href="${entry.path}" aria-current="page">${entry.label}</a></li>`
        : html`<li><a href="${entry.path}">${entry.label}</a></li>`;
    return html`<a class="skip" href="#main">Skip to content</a><div class="app">
<nav class="side" aria-label="Console"><a class="brand" href="/console">${GATE}Portcullis</a><button class="btn" type="button" popovertarget="menu">Menu</button>
<search-box data-found="${`${SEARCH}/found`}"><form role="search" aria-label="Console" action="${SEARCH}"><label class="hidden" for="q">Search</label><input class="in" id="q" name="q" placeholder="Policy, user, tool or id" spellcheck="false" autocomplete="off" aria-keyshortcuts="/ Control+K"><kbd aria-hidden="true">/</kbd></form>
<div class="found" hidden></div><p class="hidden" role="status"></p></search-box>
<div class="menu" id="menu" popover>${menuFor(admission).map(({ title, entries }) => html`<div>${title !== null && html`<h2>${title}</h2>`}<ul>${entries.map(link)}</ul></div>`)}
<div class="foot">${labelOf(user)}<br>${user.role}<form class="looks" method="post" action="/console/theme" aria-label="Colours"><input type="hidden" name="return" value="${path}">${LOOKS.map(
      ([value, label]) =>
        html`<button class="btn plain" name="theme" value="${value ?? 'system'}" aria-pressed="${String(value === theme)}">${label}</button>`,
    )}</form><form method="post" action="/account/sign-out"><button class="btn plain">Sign out</button></form></div></div></nav>
<main id="main" tabindex="-1">
${body}
</main></div>`;
  };
