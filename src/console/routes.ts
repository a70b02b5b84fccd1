/** `/console`: pages for administrators and reviewers. They read through the operations of REST. */
import { type RequestHandler, type Response, Router } from 'express';
import { AppError } from '../base/errors.ts';
import { starts } from '../base/turns/caller-turns.ts';
import { pathId } from '../base/validate.ts';
import { type Content, html, type Markup } from '../browser/html.ts';
import { GATE, redirect, sendPage } from '../browser/page.ts';
import { signInPath, urlOf } from '../browser/requests.ts';
import type { BrowserSessions, SignedIn } from '../browser/sessions.ts';
import { contextOf } from '../http/context.ts';
import { authorize } from '../rest/authorize.ts';
import { TARGET_NAME } from '../targets/target.ts';
import { labelOf } from '../users/user-store.ts';
import { ACCESS, accessPage } from './access.ts';
import type { Ask } from './ask.ts';
import { CHANGES, changesPage, replicasPage } from './gateway.ts';
import { HISTORY, historyPage, revisionPage } from './history.ts';
import { decisionPage, LOG, logPage } from './log.ts';
import { CONNECT, connectPage, MINE, minePage, ownTargetPage } from './mine.ts';
import { POLICIES, policiesPage, policyPage } from './policies.ts';
import { CONSOLE_STYLE_PATH } from './style.ts';
import { TARGETS, targetPage, targetsPage } from './targets.ts';
import { USERS, userPage, usersPage } from './users.ts';
import { queryOf, type Shown, type View } from './view.ts';

export const CONSOLE_PATH = '/console';

export interface ConsoleParts {
  readonly ask: Ask;
  readonly publicUrl: string;
  readonly sessions: Pick<BrowserSessions, 'currentUser'>;
}

interface Entry {
  readonly path: string;
  readonly label: string;
  /** The operation without which the page shows nothing. */
  readonly operation: string;
}

const MENU: readonly { readonly title: string; readonly entries: readonly Entry[] }[] = [
  {
    title: 'Policy',
    entries: [
      { path: POLICIES, label: 'Policies', operation: 'listPoliciesInOrder' },
      { path: HISTORY, label: 'History', operation: 'listRevisions' },
    ],
  },
  {
    title: 'Gateway',
    entries: [
      { path: TARGETS, label: 'Targets', operation: 'listTargets' },
      { path: '/console/replicas', label: 'Replicas', operation: 'getStatus' },
    ],
  },
  {
    title: 'People',
    entries: [
      { path: USERS, label: 'Users', operation: 'listUsers' },
      { path: ACCESS, label: 'Access', operation: 'getAccessMatrix' },
    ],
  },
  {
    title: 'Record',
    entries: [
      { path: LOG, label: 'Audit log', operation: 'listDecisions' },
      { path: CHANGES, label: 'Changes', operation: 'listChanges' },
    ],
  },
  {
    title: 'Yours',
    entries: [
      { path: MINE, label: 'What you may use', operation: 'listOwnTargets' },
      { path: CONNECT, label: 'Connect a client', operation: 'listOwnTargets' },
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

export function consoleRoutes({ ask, publicUrl, sessions }: ConsoleParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  const page =
    (show: (view: View) => Promise<Shown>, idOf: (value: unknown) => string): RequestHandler =>
    async (req, res) => {
      const current = await sessions.currentUser(req, res);
      if (current === null) return redirect(res, signInPath(urlOf(req)));
      contextOf(res).admission = current.admission;
      await turnOf(current, res);
      const path = urlOf(req).replace(/\?.*/, '');
      const { status, title, body } = await shownOrRefused(
        async () => show(viewOf(idOf(req.params['id']), queryOf(req), res)),
        res,
      );
      sendPage(res, status, { title, body, style: CONSOLE_STYLE_PATH, frame: frame(current, path) });
    };

  const viewOf = (id: string, query: View['query'], res: Response): View => ({
    ...{ query, id, publicUrl },
    get: (path) => ask(res, 'GET', path),
    post: (path, body) => ask(res, 'POST', path, body),
  });

  router.get('/', async (req, res) => {
    const current = await sessions.currentUser(req, res);
    if (current === null) return redirect(res, signInPath(CONSOLE_PATH));
    redirect(res, menuFor(current.admission)[0]?.entries[0]?.path ?? MINE);
  });
  for (const [path, show] of [
    ['/policies', policiesPage],
    ['/history', historyPage],
    ['/targets', targetsPage],
    ['/users', usersPage],
    ['/access', accessPage],
    ['/mine', minePage],
    ['/connect', connectPage],
    ['/log', logPage],
    ['/changes', changesPage],
    ['/replicas', replicasPage],
  ] as const) {
    router.get(
      path,
      page(show, () => ''),
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
  router.get('/history/:id', page(revisionPage, revisionId));
  router.get('/mine/:id', page(ownTargetPage, targetName));
  return router;
}

/** An id of a different form could be the path of a different operation, such as `order`. Throws AppError `not_found`. */
function revisionId(value: unknown): string {
  if (typeof value === 'string' && /^[1-9][0-9]{0,14}$/.test(value)) return value;
  throw new AppError('not_found', 'A revision is a number from 1.');
}

function targetName(value: unknown): string {
  if (typeof value === 'string' && TARGET_NAME.test(value)) return value;
  throw new AppError('not_found', 'No target can have this name.');
}

/** The pages that one session gets at once, like the requests with one token. */
const AT_ONCE = 4;

/** Resolves when the session has fewer than four other pages under way; never, if the browser has left. */
const turnOf = ({ session }: SignedIn, res: Response): Promise<void> =>
  new Promise((resolve) => {
    const work = (end: () => void): void => {
      if (res.closed) {
        end();
        return;
      }
      res.once('close', end);
      resolve();
    };
    starts.run(`console ${session.id}`, work, AT_ONCE);
  });

/** A refusal is shown inside of the frame, so that the menu stays. A fault is thrown. */
async function shownOrRefused(work: () => Promise<Shown>, res: Response): Promise<Shown & { readonly status: number }> {
  try {
    return { status: 200, ...(await work()) };
  } catch (error) {
    if (!(error instanceof AppError) || error.status >= 500) throw error;
    if (error.retryAfter !== undefined) res.setHeader('Retry-After', String(error.retryAfter));
    const { requestId } = contextOf(res);
    const title = error.status === 404 ? 'Not found' : error.status === 403 ? 'You may not see this' : 'This does not work';
    const fields = error.errors?.map(({ path, message }) => html`<li><code>${path}</code> ${message}</li>`);
    const body = html`<h1>${title}</h1><p>${error.message}</p>${fields !== undefined && html`<ul>${fields}</ul>`}
<p class="xs muted">Request <code>${requestId}</code></p>`;
    return { status: error.status, title, body };
  }
}

const frame =
  ({ user, admission }: SignedIn, path: string) =>
  (body: Content): Markup => {
    const isCurrent = (entry: Entry): boolean => path === entry.path || path.startsWith(`${entry.path}/`);
    const link = (entry: Entry): Markup =>
      isCurrent(entry)
        ? html`<li><a href="${entry.path}" aria-current="page">${entry.label}</a></li>`
        : html`<li><a href="${entry.path}">${entry.label}</a></li>`;
    return html`<a class="skip" href="#main">Skip to content</a><div class="app">
<nav class="side" aria-label="Console"><a class="brand" href="/console">${GATE}Portcullis</a>
${menuFor(admission).map(({ title, entries }) => html`<div><h2>${title}</h2><ul>${entries.map(link)}</ul></div>`)}
<div class="foot">${labelOf(user)}<br>${user.role}<form method="post" action="/account/sign-out"><button class="btn plain">Sign out</button></form></div></nav>
<main id="main" tabindex="-1">
${body}
</main></div>`;
  };
