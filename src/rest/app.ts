/** The Express app: it handles everything over HTTP except `/mcp`, which the server handles first. */
import { STATUS_CODES } from 'node:http';
import express, {
  type ErrorRequestHandler,
  type Express,
  type Request,
  type RequestHandler,
  type Response,
  Router,
} from 'express';
import type { KeyRing } from '../auth/keys.ts';
import { rightsOf } from '../auth/rights.ts';
import type { Stock } from '../base/budgets.ts';
import { AppError } from '../base/errors.ts';
import { uuidv7 } from '../base/ids.ts';
import type { Log } from '../base/log.ts';
import type { Pages } from '../browser/pages.ts';
import type { Config } from '../config/config.ts';
import { createReading, ifBody, jsonBody } from '../http/body.ts';
import { LARGE_BODY } from '../http/body-length.ts';
import { CLIENT_LEFT, contextOf, openContext } from '../http/context.ts';
import { limitUnread, type UnreadLimits } from '../http/limits/unread.ts';
import { allowOrigin, answerPreflight, checkOrigin } from '../http/origin.ts';
import { type Problem, problemOf, sendProblem } from '../http/problem.ts';
import type { Authenticate } from './authenticate.ts';
import { authorizing } from './authorize.ts';
import { healthRoutes, type Ready } from './health.ts';
import { homeRoutes } from './home.ts';
import { METRICS_PATH, type Metrics, metricsRoutes } from './metrics.ts';
import { LEFT_BODIES } from './policies/heavy-answer.ts';
import { type Mount, matchRoute, type RouteMatch, type RouteTable, routeTable } from './route-table.ts';
import { wellKnownRoutes } from './well-known.ts';

/** A router with a form of its own for refusals. */
export interface Protocol extends Mount {
  /** Absent: refusals are problems like those of REST. `error`: what was thrown. */
  readonly refuse?: (res: Response, problem: Problem, error: unknown) => void;
}

export interface AppParts {
  readonly config: Pick<Config, 'allowedHosts' | 'allowedOrigins' | 'publicUrl' | 'trustProxy' | 'metricsToken' | 'oauth'>;
  readonly log: Log;
  readonly metrics: Metrics;
  readonly keys: KeyRing;
  /** Whether OAuth clients may exchange assertions of a provider now. */
  readonly idJag: () => Promise<boolean>;
  readonly authenticate: Authenticate;
  /** Counts a request, and resolves when it may go on. Throws AppError `too_many_requests`. Absent: there is no limit. */
  readonly limit?: (req: Request, res: Response) => Promise<void>;
  readonly ready: Ready;
  /** The bytes of large bodies in flight, by principal, for the whole process. */
  readonly bodies: Stock;
  readonly unread: UnreadLimits;
  readonly pages: Pages;
  /** Routers for callers without a token, which read the bodies of their requests themselves. */
  readonly protocols: readonly Protocol[];
  /** Routers under `/api` for callers without a token. */
  readonly open: readonly Mount[];
  /** Routers under `/api` behind authentication, in the order in which they are tried. The contract says what each route needs. */
  readonly protected: readonly Mount[];
}

const OPEN_BODY_BYTES = 16 * 1024;
const BODY_BYTES = 4 * 1024 * 1024;
/** Callers with rights of administration send policy files. No one else has a reason to send a large body. */
function limitFor(res: Response): number {
  const { admission } = contextOf(res);
  const rights = admission && rightsOf(admission.principal, admission.snapshot.rights).rights;
  return rights !== undefined && rights.size > 0 ? BODY_BYTES : LARGE_BODY;
}
/** Each path under `/api` has only one spelling: no capitals, escapes, empty segments or trailing slash. */
const API_PATH = /^\/api(\/[a-z0-9._-]+)+$/;
/** Paths whose last segment is an escaped text of any characters, or a name whose format the handler checks. */
const TEXT_PATH =
  /^\/api\/(targets\/[a-z0-9-]+\/credentials\/(role|group|user)|credentials\/[a-z0-9-]+|policies\/drafts)\/[^/]+$/;

export function createApp(parts: AppParts): Express {
  const { authenticate, metrics, pages } = parts;
  const app = express();
  app.disable('x-powered-by').disable('etag').enable('case sensitive routing').enable('strict routing');

  const forScrapes = routeTable([{ path: '', router: metricsRoutes(metrics, null, []) }]);
  const scraper = [authenticate.verify, authenticate.admit, authorizing(forScrapes)];
  // Load balancers ask from one address, and must get an answer whatever else comes from there. So health checks have no limit.
  const health = { path: '/health', router: healthRoutes(parts.ready) };
  const documents: readonly Mount[] = [
    { path: '', router: homeRoutes(parts.config.publicUrl) },
    health,
    {
      path: '/.well-known',
      router: wellKnownRoutes(parts.keys, parts.config.publicUrl, parts.config.oauth.registration, parts.idJag),
    },
    { path: '', router: metricsRoutes(metrics, parts.config.metricsToken, scraper) },
  ];
  const open = parts.open.map((mount) => ({ ...mount, path: `/api${mount.path}` }));
  const guarded = parts.protected.map((mount) => ({ ...mount, path: `/api${mount.path}` }));

  const { protocols } = parts;
  app.use(begin(parts, routeTable([...documents, ...open, ...guarded, ...pages.mounts, ...protocols])));
  app.use(checkRequest(parts, routeTable([...protocols, health])));
  app.use(refuseUnknown(routeTable([...documents, ...open, ...pages.mounts, ...protocols]), routeTable(guarded), pages));
  app.use(pages.handler);
  app.use(together(protocols));
  const sent = { reading: createReading(() => performance.now()), trustProxy: parts.config.trustProxy };
  app.use(bodyOf(routeTable([...documents, ...open]), jsonBody({ ...sent, limitOf: () => OPEN_BODY_BYTES, underWay: null })));
  for (const { path, router } of documents) app.use(path === '' ? '/' : path, router);
  for (const { path, router } of open) app.use(path, router);
  // A request counts as arriving with its last byte (law 4). The sender of a body is therefore admitted before and after the body.
  // Its turn comes when the body has arrived: otherwise slow bodies, sent with a stolen token, would keep its owner from revoking it.
  app.use(
    '/api',
    authenticate.verify,
    ifBody(authenticate.admit),
    jsonBody({ ...sent, limitOf: limitFor, isLeft: ({ path }) => LEFT_BODIES.test(path), underWay: parts.bodies }),
    authenticate.takeTurn,
    authenticate.admit,
    authorizing(routeTable(guarded)),
  );
  for (const { path, router } of guarded) app.use(path, router);
  app.use(() => {
    throw new AppError('not_found', 'There is no resource at this path.');
  });
  app.use(answerError(parts));
  return app;
}

function together(mounts: readonly Mount[]): Router {
  const all = Router({ caseSensitive: true, strict: true });
  for (const { path, router } of mounts) all.use(path, router);
  return all;
}

/** Does what every request needs: an id, headers and a log line. */
function begin({ log, metrics, unread }: AppParts, table: RouteTable): RequestHandler {
  return (req, res, next) => {
    const requestId = uuidv7();
    openContext(res, { requestId });
    const address = req.socket.remoteAddress ?? '';
    limitUnread(res, () => contextOf(res).admission?.principal.sub ?? address, unread, log);
    res.setHeader('X-Request-Id', requestId);
    res.setHeader('X-Content-Type-Options', 'nosniff');
    if (req.path.startsWith('/api')) res.setHeader('Cache-Control', 'no-store');
    const { method, path } = req;
    const began = performance.now();
    res.once('close', () => {
      const route = matchRoute(table, path)?.template ?? 'none';
      const known = table.routes.some((entry) => entry.methods.has(method)) ? method : 'other';
      const status = res.writableFinished ? res.statusCode : 499;
      metrics.requests.inc({ method: known, route, status });
      const took = Math.round(performance.now() - began);
      const user = contextOf(res).admission?.principal.sub;
      // Probes, scrapes and files of pages come all the time and would bury the requests of people.
      const level = /^\/(api|console(?!\/assets))\//.test(route) ? 'info' : 'debug';
      const line = { request_id: requestId, method: known, route, status, took_ms: took, user_id: user };
      log[level](line, STATUS_CODES[status] ?? 'closed by the client');
    });
    next();
  };
}

/**
 * Counts the request, and refuses it if it is not addressed to this gateway, or if a page of a different origin sends it. `apart`: routes that have
 * limits of their own.
 */
function checkRequest({ config, pages, limit }: AppParts, apart: RouteTable): RequestHandler {
  return async (req, res, next) => {
    const { path, method } = req;
    // Prometheus addresses instances by IP address. A page that uses a name for that address (DNS rebinding) has no token to
    // send.
    const anyHost = path === METRICS_PATH && req.headers.authorization !== undefined;
    const refusal = checkOrigin(req, config, anyHost);
    // Pages of other origins have no business with the gateway's own pages.
    if (refusal === null && !pages.owns(path)) allowOrigin(req, res);
    // Refusals cost the thread, too, so they are counted.
    const isApart = refusal === null && methodsOf(matchRoute(apart, path), null).has(method);
    if (!isApart) await limit?.(req, res);
    if (refusal !== null) throw refusal;
    next();
  };
}

/** Answers 404 or 405 where there is no handler. OPTIONS, and HEAD on routes that need a token, reach no handler. */
function refuseUnknown(open: RouteTable, guarded: RouteTable, pages: Pages): RequestHandler {
  return (req, res, next) => {
    const wellFormed = !req.path.startsWith('/api') || API_PATH.test(req.path) || TEXT_PATH.test(req.path);
    const [unguarded, protected_] = wellFormed ? [matchRoute(open, req.path), matchRoute(guarded, req.path)] : [null, null];
    if (!unguarded && !protected_) {
      const hint = req.path.length > 1 && req.path.endsWith('/') ? ' Paths do not end in a slash.' : '';
      throw new AppError('not_found', `There is no resource at this path.${hint}`);
    }
    if (!pages.owns(req.path) && answerPreflight(req, res)) return;
    const allowed = methodsOf(unguarded, protected_);
    if (allowed.has(req.method)) return next();
    res.setHeader('Allow', [...allowed].sort().join(', '));
    throw new AppError('method_not_allowed', `${req.path} takes ${[...allowed].sort().join(', ')}.`);
  };
}

/**
 * Reads the bodies of callers without a token, and refuses those with GET and HEAD: node would read and discard them at full speed
 * after the answer. All other bodies are read after their token is verified.
 */
function bodyOf(open: RouteTable, read: RequestHandler): RequestHandler {
  return (req, res, next) => (methodsOf(matchRoute(open, req.path), null).has(req.method) ? read(req, res, next) : next());
}

function methodsOf(open: RouteMatch | null, guarded: RouteMatch | null): ReadonlySet<string> {
  const head = open?.methods.has('GET') ? ['HEAD'] : [];
  return new Set([...(open?.methods ?? []), ...(guarded?.methods ?? []), ...head]);
}

function answerError({ config, log, pages, protocols }: AppParts): ErrorRequestHandler {
  return (error: unknown, req, res, _next) => {
    if (error === CLIENT_LEFT) return;
    const { requestId } = contextOf(res);
    const problem = problemOf(error, { requestId, publicUrl: config.publicUrl, log });
    const protocol = protocols.find(({ path }) => req.path.startsWith(`${path}/`));
    if (protocol?.refuse !== undefined) protocol.refuse(res, problem, error);
    else if (pages.owns(req.path) && !res.headersSent) pages.refuse(res, problem);
    else sendProblem(res, problem);
  };
}
