/** What operators watch, in the text format of Prometheus. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { type RequestHandler, Router } from 'express';
import { Counter, Gauge, Registry } from 'prom-client';
import { isLocal } from './address.ts';

export const METRICS_PATH = '/metrics';

export interface Metrics {
  readonly registry: Registry;
  /** By the route's template, never by the address that was asked for: the number of series is bounded. */
  readonly requests: Counter<'method' | 'route' | 'status'>;
  readonly decisions: Counter<'effect' | 'reason'>;
  /** Requests on `/mcp` that were refused undecided, because their principal had too many denials. */
  readonly denialsRefused: Counter;
  /** Chains of the audit log with old records that retention does not remove, because they are not what was written. */
  readonly retentionKept: Gauge;
  readonly undelivered: Counter;
  /** Administrators name drafts, and there are only so many at a time. */
  readonly shadowDivergences: Counter<'draft' | 'effect'>;
}

export function createMetrics(): Metrics {
  const registry = new Registry();
  const registers = [registry];
  return {
    registry,
    requests: new Counter({
      name: 'portcullis_http_requests_total',
      help: 'Answered HTTP requests',
      labelNames: ['method', 'route', 'status'],
      registers,
    }),
    decisions: new Counter({
      name: 'portcullis_decisions_total',
      help: 'Authorization decisions',
      labelNames: ['effect', 'reason'],
      registers,
    }),
    denialsRefused: new Counter({
      name: 'portcullis_denial_limited_requests_total',
      help: 'Requests refused undecided because their principal had too many denials',
      registers,
    }),
    retentionKept: new Gauge({
      name: 'portcullis_audit_retention_kept_chains',
      help: 'Chains of the audit log whose old records were not removed because they do not fit their MACs',
      registers,
    }),
    undelivered: new Counter({
      name: 'portcullis_undelivered_notifications_total',
      help: 'Notifications of targets that were dropped undecided, because there were too many of them',
      registers,
    }),
    shadowDivergences: new Counter({
      name: 'portcullis_shadow_divergences_total',
      help: 'Recorded decisions, and names in lists, that a shadowed draft would have decided otherwise; effect is what it would have said',
      labelNames: ['draft', 'effect'],
      registers,
    }),
  };
}

/**
 * Open to programs on this host. A request with a token is judged by it, wherever it comes from: by `scrapeToken`, or by `protect`. Its
 * `Host` has not been checked, so that its address proves nothing.
 */
export function metricsRoutes({ registry }: Metrics, scrapeToken: string | null, protect: readonly RequestHandler[]): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const show: RequestHandler = async (_req, res) => {
    const text = await registry.metrics();
    res.set('Cache-Control', 'no-store').type(registry.contentType).send(text);
  };
  const scrapes = isScrape(scrapeToken);
  const isOpenTo = (req: IncomingMessage): boolean => (req.headers.authorization === undefined ? isLocal(req) : scrapes(req));
  router.get(METRICS_PATH, (req, _res, next) => next(isOpenTo(req) ? undefined : 'route'), show);
  router.get(METRICS_PATH, ...protect, show);
  return router;
}

/** Compares digests, so that the time it takes tells nothing of the token. */
function isScrape(token: string | null): (req: IncomingMessage) => boolean {
  if (token === null) return () => false;
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  const expected = digest(`Bearer ${token}`);
  return ({ headers }) => timingSafeEqual(digest((headers.authorization ?? '').replace(/^bearer +/i, 'Bearer ')), expected);
}
