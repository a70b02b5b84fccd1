/** `/account/connections`: where users connect and disconnect their own accounts at targets. */
import { type Request, type Response, Router } from 'express';
import { AppError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { UUID } from '../base/validate.ts';
import { type Content, html, type Markup } from '../browser/html.ts';
import { note, redirect, sendPage, timeOf } from '../browser/page.ts';
import { readForm, requireSameOrigin, signInPath, urlOf } from '../browser/requests.ts';
import type { BrowserSessions, SignedIn } from '../browser/sessions.ts';
import type { Database } from '../db/database.ts';
import { contextOf } from '../http/context.ts';
import type { RateLimits } from '../http/limits/rate-limit.ts';
import { mayUseTarget } from '../state/admission.ts';
import { type ConnectionRow, connectionStore } from '../targets/connection-store.ts';
import { type AccountTarget, hasOwnAccounts } from '../targets/connections.ts';
import type { RoutedTarget } from '../targets/target.ts';
import { clientDocument } from './clients.ts';
import { ConnectionFault } from './fault.ts';
import type { Connecting, Visitor } from './flows.ts';

export interface ConnectionPageParts {
  readonly publicUrl: string;
  readonly database: Database;
  readonly sessions: BrowserSessions;
  readonly connecting: Connecting;
  readonly limits: Pick<RateLimits, 'own'>;
  readonly log: Log;
}

export const CONNECTIONS_PATH = '/account/connections';

type Usable = RoutedTarget & AccountTarget;

const PROBLEMS: Readonly<Record<NonNullable<ConnectionRow['problem']>, string>> = {
  refused: 'The target or its authorization server no longer accepts this account. Connect it again.',
  interrupted:
    'The gateway was interrupted while it renewed the access, and could not renew it again. Connect the account again.',
  scope: 'The target asks for rights that this account has not given. Connect it again to give them.',
};

export function connectionPages({ publicUrl, database, sessions, connecting, limits, log }: ConnectionPageParts): Router {
  const router = Router({ caseSensitive: true, strict: true });

  const usableTargets = ({ admission }: SignedIn): Usable[] =>
    [...admission.snapshot.targets.values()]
      .filter((target): target is Usable => hasOwnAccounts(target) && mayUseTarget(admission, target))
      .sort((a, b) => (a.name < b.name ? -1 : 1));
  /** Throws the same error for a target that does not exist and one that the user may not use. */
  function targetOf(current: SignedIn, id: unknown): Usable {
    const target = usableTargets(current).find((one) => one.id === id);
    if (target === undefined) throw new AppError('not_found', 'No target that you may use has accounts of its users.');
    return target;
  }
  const visitorOf = (res: Response, { admission, session }: SignedIn): Visitor => ({
    caller: { principal: admission.principal, requestId: contextOf(res).requestId },
    browserSessionId: session.id,
  });

  async function show(
    res: Response,
    current: SignedIn,
    said: { readonly status?: number; readonly about?: Content } = {},
  ): Promise<void> {
    const rows = await connectionStore(database.knex).ofUser(current.user.id);
    const targets = usableTargets(current);
    const others = rows.filter(({ target_id }) => !targets.some(({ id }) => id === target_id));
    const listed = targets.map((target) => targetRow(target, rows.find(({ target_id }) => target_id === target.id) ?? null));
    sendPage(res, said.status ?? 200, {
      title: 'Your accounts at targets',
      user: current.user,
      body: html`<h1>Your accounts at targets</h1>
${said.about}
<p class="sm muted">With a connected account, the gateway calls the target as you. Other users cannot use the account, and no user can read its tokens.</p>
${
  listed.length + others.length === 0
    ? html`<p>No target that you may use asks for an account of yours.</p>`
    : html`<div class="table" role="region" aria-label="Accounts" tabindex="0"><table>
<thead><tr><th scope="col">Target</th><th scope="col">Account</th><th scope="col"><span class="hidden">Action</span></th></tr></thead>
<tbody>${listed}${others.map(otherRow)}</tbody></table></div>`
}
<p><a href="/account">Back to your account</a></p>`,
    });
  }

  /** Shows why something could not be done. */
  async function refuse(res: Response, current: SignedIn, fault: ConnectionFault): Promise<void> {
    log.warn({ err: fault, reason: fault.reason, user_id: current.user.id }, 'account could not be connected');
    const status = fault.reason === 'foreign' || fault.reason === 'refused' ? 400 : 502;
    await show(res, current, { status, about: note('bad', fault.message) });
  }

  /** Returns the user of a form that a page of this gateway sent; null: no user is signed in, and the browser goes to the sign-in page. */
  async function userOfForm(req: Request, res: Response): Promise<SignedIn | null> {
    requireSameOrigin(req, publicUrl);
    await readForm(req);
    const current = await sessions.currentUser(req, res);
    if (current === null) redirect(res, signInPath(CONNECTIONS_PATH));
    else contextOf(res).admission = current.admission;
    return current;
  }

  router.get('/', async (req, res) => {
    const current = await sessions.currentUser(req, res);
    if (current === null) return redirect(res, signInPath(urlOf(req)));
    const { connected, ended, target: name, for: mark } = req.query;
    const target = usableTargets(current).find((one) => one.name === (name ?? connected));
    if (connected !== undefined) {
      return show(
        res,
        current,
        target && { about: note('done', `Your account at ${target.name} is connected. You can go back to your program.`) },
      );
    }
    if (ended !== undefined)
      return show(res, current, { about: note('done', 'The account is disconnected. Its tokens are being revoked.') });
    if (name === undefined) return show(res, current);
    if (target === undefined)
      return show(res, current, { about: note('warn', 'There is no such target, or no policy lets you use it.') });
    if (typeof mark === 'string' && !connecting.isFor(target, current.user.id, mark)) {
      const text = `This link was made for a different user. You are signed in as ${current.user.email ?? current.user.id}: an account that you connect here is used for you alone.`;
      return show(res, current, { about: note('warn', text) });
    }
    await show(res, current, { about: note('warn', `A program that you use asks for your account at ${target.name}.`) });
  });

  router.post('/:id/connect', async (req, res) => {
    const current = await userOfForm(req, res);
    if (current === null) return;
    const target = targetOf(current, req.params.id);
    const refusal = limits.own(current.user.id);
    if (refusal) throw refusal;
    try {
      const { url, issuer, scopes } = await connecting.begin(visitorOf(res, current), target);
      sendPage(res, 200, {
        title: 'Connect your account',
        user: current.user,
        narrow: true,
        // The browser follows a link here, and no form, so the address of the server needs no place in the security policy.
        body: html`<div class="panel"><h1>Connect your account at ${target.name}</h1>
<p>You sign in at <strong>${issuerName(issuer)}</strong>, which then lets the gateway act for you at <code>${new URL(target.url).host}</code>.
${url.host !== new URL(issuer).host && html`The sign-in page is at <strong>${url.host}</strong>. `}Go on only if you know these addresses, and if you want to connect the account for yourself, <strong>${current.user.email ?? current.user.id}</strong>.</p>
${scopes.length > 0 && html`<p class="sm">The gateway asks for: ${scopes.map((scope) => html`<code>${scope}</code> `)}</p>`}
<p><a class="btn" href="${url.href}">Go to ${url.host}</a></p><p class="sm"><a href="${CONNECTIONS_PATH}">Cancel</a></p></div>`,
      });
    } catch (error) {
      if (!(error instanceof ConnectionFault)) throw error;
      await refuse(res, current, error);
    }
  });

  router.get('/:id/callback', async (req, res) => {
    const current = await sessions.currentUser(req, res);
    // The answer of the server is not kept for later: the next user who signs in must not finish what a different user began.
    if (current === null) return redirect(res, signInPath(CONNECTIONS_PATH));
    contextOf(res).admission = current.admission;
    try {
      const target = targetOf(current, req.params.id);
      await connecting.finish(visitorOf(res, current), target, new URL(urlOf(req), publicUrl));
      redirect(res, `${CONNECTIONS_PATH}?connected=${target.name}`);
    } catch (error) {
      if (!(error instanceof ConnectionFault)) throw error;
      await refuse(res, current, error);
    }
  });

  router.post('/:id/disconnect', async (req, res) => {
    const current = await userOfForm(req, res);
    if (current === null) return;
    await connecting.end(visitorOf(res, current).caller, 'own', { id: String(req.params.id) });
    redirect(res, `${CONNECTIONS_PATH}?ended=yes`);
  });

  /** The client ID metadata document, which authorization servers read. */
  router.get('/:id/client', (req, res) => {
    const { id } = req.params;
    if (!UUID.test(id)) throw new AppError('not_found', 'There is no resource at this path.');
    res.setHeader('Cache-Control', 'public, max-age=3600');
    res.json(clientDocument(publicUrl, id));
  });

  return router;
}

/** The issuer, for people. Two tenants of one server differ in the path alone. */
function issuerName(issuer: string): string {
  const { host, pathname } = new URL(issuer);
  return host + pathname.replace(/\/$/, '');
}

const disconnect = ({ id }: ConnectionRow, what: string): Markup =>
  html`<form method="post" action="/account/connections/${id}/disconnect"><button class="btn danger">Disconnect<span class="hidden"> ${what}</span></button></form>`;

function targetRow(target: Usable, row: ConnectionRow | null): Markup {
  const account =
    row === null
      ? html`<span class="muted">not connected</span>`
      : html`at ${issuerName(row.issuer)}, since ${timeOf(row.created_at)}${row.problem && html`<span class="sub">${PROBLEMS[row.problem]}</span>`}`;
  const label = row === null ? 'Connect' : 'Connect again';
  return html`<tr><th scope="row">${target.name}<span class="sub">${target.description}</span></th><td>${account}</td>
<td class="end"><div class="row"><form method="post" action="/account/connections/${target.id}/connect"><button class="btn">${label}<span class="hidden"> at ${target.name}</span></button></form>${
    row && disconnect(row, `the account at ${target.name}`)
  }</div></td></tr>`;
}

/** A connection at a target that the user may no longer use. */
const otherRow = (row: ConnectionRow): Markup =>
  html`<tr><th scope="row"><span class="muted">a target that you cannot use now</span></th><td>at ${issuerName(row.issuer)}, since ${timeOf(row.created_at)}</td>
<td class="end">${disconnect(row, `the account at ${issuerName(row.issuer)}`)}</td></tr>`;
