/** All pages under one guard: the address that the browser uses, bodies, refusals, and the assets. */
import { gzipSync } from 'node:zlib';
import { type RequestHandler, type Response, Router } from 'express';
import { AppError } from '../base/errors.ts';
import type { Config } from '../config/config.ts';
import { bodyLength } from '../http/body-length.ts';
import { addressGroup, addressOf } from '../http/limits/client-address.ts';
import { takeTurn } from '../http/limits/turn.ts';
import type { Problem } from '../http/problem.ts';
import { html } from './html.ts';
import { redirect, sendPage, sendProblemPage } from './page.ts';
import { misplaced } from './requests.ts';
import { ASSETS, type Asset } from './style.ts';

export interface PageMount {
  /** `/signin`, or a path below `/oauth`, `/account` or `/console`. */
  readonly path: string;
  readonly router: Router;
  /** Whether the router itself lets requests take turns. Otherwise those without a body take turns by address. */
  readonly takesTurns?: true;
}

export interface Pages {
  readonly mounts: readonly PageMount[];
  /** Handles the requests for pages, and leaves all others. */
  readonly handler: RequestHandler;
  /** Whether refusals of requests for this path are pages. */
  readonly owns: (path: string) => boolean;
  readonly refuse: (res: Response, problem: Problem) => void;
}

const ASSET_SECONDS = 31_536_000;

/** `assets`: those of single pages. */
export function createPages(
  { publicUrl, trustProxy }: Pick<Config, 'publicUrl' | 'trustProxy'>,
  routers: readonly PageMount[],
  assets: readonly Asset[] = [],
): Pages {
  const shared = assetRoutes([...ASSETS, ...assets]);
  const mounts = [...routers, { path: '', router: shared }];
  const pages = Router({ caseSensitive: true, strict: true });
  for (const { path, router, takesTurns = false } of routers) {
    pages.use(path, guard(publicUrl), takesTurns ? [] : turnByAddress(trustProxy), router);
  }
  pages.use(shared);
  const roots = ['/signin', '/console', ...routers.map(({ path }) => path)];
  return {
    mounts,
    handler: pages,
    owns: (path) => roots.some((root) => path === root || path.startsWith(`${root}/`)),
    refuse: (res, problem) => sendProblemPage(res, problem),
  };
}

/** Lets only requests pass that came to the address of `PUBLIC_URL`, and for which browsers keep the cookie. */
function guard(publicUrl: string): RequestHandler {
  return (req, res, next) => {
    if (req.method !== 'POST' && bodyLength(req) !== 0) {
      res.setHeader('Connection', 'close');
      throw new AppError('invalid_request', `${req.method} takes no body.`);
    }
    const wrong = misplaced(req, publicUrl);
    switch (wrong?.kind) {
      case undefined:
        return next();
      case 'moved':
        return redirect(res, wrong.to);
      case 'elsewhere':
        return sendPage(res, 421, {
          title: 'Use the address of this gateway',
          narrow: true,
          body: html`<div class="panel"><h1>Use the address of this gateway</h1>
<p>You can sign in only at <a href="${`${publicUrl}/account`}">${publicUrl}</a>.</p>
<p class="sm muted">If you are at that address already, a proxy sends a different <code>Host</code> header: it must pass on the one of the
browser. Otherwise the administrator can set <code>PUBLIC_URL</code> to the address that people use.</p></div>`,
        });
      case 'plain-http':
        return sendPage(res, 403, {
          title: 'HTTPS is required',
          narrow: true,
          body: html`<div class="panel"><h1>HTTPS is required</h1>
<p>Over plain HTTP, others on the network could read your password, and browsers do not keep you signed in.</p>
<p class="sm muted">The administrator can put a proxy with TLS in front of the gateway, and set <code>PUBLIC_URL</code> to its address, which
begins with <code>https://</code>. On the machine of the gateway itself, plain HTTP works at <code>http://127.0.0.1</code> and
<code>http://localhost</code>.</p></div>`,
        });
    }
  };
}

/** A page takes several turns of the event loop, and strangers can ask for hundreds at once. Slow bodies must not keep others waiting. */
const turnByAddress =
  (trustProxy: boolean): RequestHandler =>
  (req, res, next) => {
    if (bodyLength(req) !== 0) return next();
    const address = addressGroup(addressOf(req, trustProxy));
    takeTurn({ sender: `pages ${address}`, user: address }, req, res, next);
  };

function assetRoutes(assets: readonly Asset[]): Router {
  const router = Router({ caseSensitive: true, strict: true });
  for (const { path, type, content } of assets) {
    // Fonts are compressed already.
    const zipped = type.startsWith('font/') ? null : gzipSync(content);
    router.get(path, (req, res) => {
      res.setHeader('Cache-Control', `public, max-age=${ASSET_SECONDS}, immutable`);
      res.setHeader('Cross-Origin-Resource-Policy', 'same-origin');
      // An image with a program in it must not run as a page of this origin.
      res.setHeader('Content-Security-Policy', "default-src 'none'; style-src 'unsafe-inline'");
      res.setHeader('Content-Type', type);
      if (zipped === null) return void res.end(content);
      res.setHeader('Vary', 'Accept-Encoding');
      const isZipped = req.acceptsEncodings('gzip') === 'gzip';
      if (isZipped) res.setHeader('Content-Encoding', 'gzip');
      res.end(isZipped ? zipped : content);
    });
  }
  return router;
}
