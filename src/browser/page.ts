/** Sends pages: the frame around their content, and the headers that protect them. Nothing else sends HTML. */
import type { ServerResponse } from 'node:http';
import type { Problem } from '../http/problem.ts';
import { endAnswer } from '../http/refused-body.ts';
import { labelOf, type User } from '../users/user-store.ts';
import { type Content, html, type Markup, refreshIn, refreshTo } from './html.ts';
import { inZoneOf, type Theme, themeOf } from './reader.ts';
import { ICON_PATH, STYLE_PATH } from './style.ts';

export interface Page {
  /** The title of the window, without the name of the gateway. */
  readonly title: string;
  readonly body: Content;
  /** The signed-in user. The page then offers the account page and the sign-out. */
  readonly user?: Pick<User, 'email' | 'subject'> | null;
  /** For forms and short messages: one narrow column. */
  readonly narrow?: boolean;
  /** Origins, or schemes such as `cursor:`, to which a form of this page may lead, also by redirects. */
  readonly formAction?: readonly string[];
  /** The browser goes to this path of the gateway at once. */
  readonly goTo?: string;
  /**
   * Web applications open the authorization in a pop-up, which reports the result to them when it ends. An opener
   * policy would cut this connection.
   */
  readonly inPopUp?: boolean;
  /** The browser loads the page again after so many seconds. */
  readonly againIn?: number | undefined;
  /** What stands around the body instead of the bar at the top. */
  readonly frame?: (body: Content) => Markup;
  /** The path of a style sheet besides that of every page. */
  readonly style?: string;
  /** The paths of scripts. The page must work without them. */
  readonly scripts?: readonly string[];
}

/** Values of `formAction`. Anything else could add a directive. */
const SOURCE = /^([a-z][a-z0-9+.-]*:|https?:\/\/[a-z0-9._~-]+(:\d{1,5})?|https?:\/\/\[[0-9a-f:.]+\](:\d{1,5})?)$/i;
/** A browser would run these schemes as programs of the page. */
const DANGEROUS = /^(javascript|data|blob|filesystem|vbscript|about):/i;

/** Returns the headers of a page. Throws if an element of `formAction` is no origin and no scheme. */
export function pageHeaders({
  formAction = [],
  inPopUp = false,
}: Pick<Page, 'formAction' | 'inPopUp'> = {}): Record<string, string> {
  for (const source of formAction) {
    if (!SOURCE.test(source) || DANGEROUS.test(source)) throw new Error(`Not a source of a content security policy: ${source}`);
  }
  const policy = [
    ...["default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "font-src 'self'", "connect-src 'self'"],
    ...["base-uri 'none'", "frame-ancestors 'none'", ["form-action 'self'", ...formAction].join(' ')],
  ];
  return {
    'Content-Type': 'text/html; charset=utf-8',
    'Content-Security-Policy': policy.join('; '),
    'Cross-Origin-Opener-Policy': inPopUp ? 'unsafe-none' : 'same-origin',
    'Cross-Origin-Resource-Policy': 'same-origin',
    'X-Frame-Options': 'DENY',
    'X-Content-Type-Options': 'nosniff',
    // With no-referrer, browsers send forms with `Origin: null`.
    'Referrer-Policy': 'same-origin',
    'Cache-Control': 'no-store',
  };
}

export const GATE = html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M4 21V9l8-6 8 6v12M8 21V11M12 21V8M16 21V11M4 15h16"/></svg>`;
const CHECK = html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M20 6 9 17l-5-5"/></svg>`;
export const TRIANGLE = html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 3 2 20h20zM12 10v4M12 17.5v.01"/></svg>`;
const CROSS = html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 8v5M12 16.5v.01M7.9 2h8.2L22 7.9v8.2L16.1 22H7.9L2 16.1V7.9z"/></svg>`;

/** A message about the whole page: what was done, what to mind, or what failed. */
export function note(kind: 'done' | 'warn' | 'bad', text: Content): Markup {
  const [icon, role] = { done: [CHECK, 'status'] as const, warn: [TRIANGLE, 'note'] as const, bad: [CROSS, 'alert'] as const }[
    kind
  ];
  return html`<div class="note ${kind}" role="${role}">${icon}<div>${text}</div></div>`;
}

/** The message under a field that is wrong. The field refers to it by `aria-describedby`. */
export const fieldError = (id: string, message: string): Markup =>
  html`<p class="error" id="${id}">${CROSS}<span>${message}</span></p>`;

/** A time in UTC. `sendPage` writes it in the zone of the reader. `precise`: with milliseconds. */
export function timeOf(ms: number, precise = false): Markup {
  const iso = new Date(ms).toISOString();
  return html`<time datetime="${iso}">${iso.slice(0, 10)} ${iso.slice(11, precise ? 23 : 16)} UTC</time>`;
}

const top = (user: Page['user']): Markup =>
  html`<header class="top"><a class="brand" href="/account">${GATE}Portcullis</a>${
    user &&
    html`<a href="/console">Console</a><span class="who">${labelOf(user)}</span><form method="post" action="/account/sign-out"><button class="btn plain">Sign out</button></form>`
  }</header>`;

/** Returns the whole document. */
const document = (
  { title, body, user = null, narrow = false, goTo, againIn, frame, style, scripts = [] }: Page,
  theme: Theme | null,
): Markup => html`<!doctype html>
<html lang="en" data-theme="${theme}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="color-scheme" content="light dark">
${goTo !== undefined && refreshTo(goTo)}${againIn !== undefined && refreshIn(againIn)}
<title>${title} · Portcullis</title>
<link rel="icon" href="${ICON_PATH}" type="image/svg+xml">
<link rel="stylesheet" href="${STYLE_PATH}">
${style !== undefined && html`<link rel="stylesheet" href="${style}">`}
${scripts.map((script) => html`<script type="module" src="${script}"></script>`)}
</head>
<body>
${
  frame?.(body) ??
  html`${top(user)}
<main class="${narrow ? 'narrow' : ''}">
${body}
</main>`
}
</body>
</html>
`;

export function sendPage(res: ServerResponse, status: number, page: Page): void {
  for (const [name, value] of Object.entries(pageHeaders(page))) res.setHeader(name, value);
  res.statusCode = status;
  endAnswer(res, inZoneOf(res.req, document(page, themeOf(res.req)).toString()));
}

/** Sends a piece of a page, which a script of the page puts in its place. */
export function sendFragment(res: ServerResponse, status: number, content: Content): void {
  for (const [name, value] of Object.entries(pageHeaders())) res.setHeader(name, value);
  res.statusCode = status;
  endAnswer(res, inZoneOf(res.req, html`${content}`.toString()));
}

/** Sends the browser to a path of this gateway, or to an address that the caller has checked. The next request is a GET. */
export function redirect(res: ServerResponse, to: string): void {
  res.setHeader('Cache-Control', 'no-store');
  res.setHeader('Referrer-Policy', 'same-origin');
  res.setHeader('Location', to);
  res.statusCode = 303;
  endAnswer(res, '');
}

/** Shows a refusal or a fault: what failed, why, and the id under which the log of the gateway has it. */
export function sendProblemPage(res: ServerResponse, { status, headers, body }: Problem, next?: Content): void {
  const retryAfter = headers['Retry-After'];
  if (retryAfter !== undefined) res.setHeader('Retry-After', retryAfter);
  sendPage(res, status, {
    title: body.title,
    narrow: true,
    body: html`<div class="panel"><h1>${body.title}</h1>
<p>${body.detail}</p>
${retryAfter !== undefined && html`<p>You can try again in ${retryAfter} ${retryAfter === '1' ? 'second' : 'seconds'}.</p>`}
${next ?? html`<p><a href="/account">Go to your account</a></p>`}
<p class="xs muted">Request <code>${body.request_id}</code></p></div>`,
  });
}
