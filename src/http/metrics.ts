/** What operators watch, in the text format of Prometheus. */
import { type RequestHandler, Router } from 'express';
import { Counter, Registry } from 'prom-client';
import { isLocal } from './address.ts';

export interface Metrics {
  readonly registry: Registry;
  /** By the route's template, never by the address that was asked for: the number of series is bounded. */
  readonly requests: Counter<'method' | 'route' | 'status'>;
  readonly decisions: Counter<'effect' | 'reason'>;
  /** Requests on `/mcp` that were refused undecided, because their principal had too many denials. */
  readonly denialsRefused: Counter;
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
    shadowDivergences: new Counter({
      name: 'portcullis_shadow_divergences_total',
      help: 'Recorded decisions, and names in lists, that a shadowed draft would have decided otherwise; effect is what it would have said',
      labelNames: ['draft', 'effect'],
      registers,
    }),
  };
}

/** Open to this host; `protect` guards it from all others. */
export function metricsRoutes({ registry }: Metrics, protect: readonly RequestHandler[]): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const show: RequestHandler = async (_req, res) => {
    const text = await registry.metrics();
    res.set('Cache-Control', 'no-store').type(registry.contentType).send(text);
  };
  router.get('/metrics', (req, _res, next) => next(isLocal(req) ? undefined : 'route'), show);
  router.get('/metrics', ...protect, show);
  return router;
}
