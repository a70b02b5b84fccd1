/** The metrics for operators, in the Prometheus text format. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { type RequestHandler, type Response, Router } from 'express';
import { Counter, collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import { VERSION } from '../base/version.ts';
import { readInTurn } from '../db/turns.ts';
import { admissionOf } from '../http/context.ts';
import { isLocal } from '../http/limits/client-address.ts';
import { createTimings } from './timings.ts';

export const METRICS_PATH = '/metrics';

export type Metrics = ReturnType<typeof createMetrics>;

/** Values that are read when the metrics are requested. */
export interface Levels {
  /** The number of decisions that are not yet durable, and of outcomes that are not yet written. */
  readonly audit: () => { readonly decisions: number; readonly outcomes: number };
  /** How many administrative changes this replica has not been able to load; null: the database does not answer. */
  readonly behind: () => Promise<number | null>;
  readonly connections: () => { readonly used: number; readonly free: number; readonly waiting: number };
  readonly open: () => { readonly streams: number; readonly upstreamSessions: number; readonly processes: number };
}

/** The bounds in the OpenTelemetry semantic conventions for MCP, in seconds. */
const OPERATION_BOUNDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300];
/** The bounds for steps that should take milliseconds, in seconds. */
const STEP_BOUNDS = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10];
/** The bounds for steps that should take microseconds, in seconds. */
const DECISION_BOUNDS = [
  0.000_005, 0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1,
];

/** The metrics of the process. All gateways in the process share them; tests run several. */
let ofProcess: Registry | undefined;

function processRegistry(): Registry {
  if (ofProcess === undefined) {
    ofProcess = new Registry();
    collectDefaultMetrics({ register: ofProcess });
  }
  return ofProcess;
}

/** Returns the metrics in the Prometheus text format. */
export function metricsText({ registry }: Metrics): Promise<string> {
  return Registry.merge([registry, processRegistry()]).metrics();
}

export function createMetrics() {
  const registry = new Registry();
  const registers = [registry];
  const counter = <Label extends string = never>(name: string, help: string, labelNames: readonly Label[] = []) =>
    new Counter({ name, help, labelNames, registers });
  processRegistry();
  new Gauge({
    name: 'portcullis_build_info',
    help: 'Always 1; the labels name the build that runs',
    labelNames: ['version', 'node'],
    registers,
  }).set({ version: VERSION, node: process.versions.node }, 1);
  return {
    registry,
    calls: createTimings(registry, {
      name: 'mcp_server_operation_duration_seconds',
      help: 'From the last byte of a decided request on /mcp to the end of its answer; error_type is empty if the answer is a result',
      bounds: OPERATION_BOUNDS,
      labels: ['mcp_method_name', 'error_type'],
    }),
    upstream: createTimings(registry, {
      name: 'mcp_client_operation_duration_seconds',
      help: 'From sending a request to its target to the end of the answer; error_type is empty if the answer is a result',
      bounds: OPERATION_BOUNDS,
      labels: ['target', 'error_type'],
    }),
    sessions: createTimings(registry, {
      name: 'mcp_server_session_duration_seconds',
      help: 'From the start of a session until its client or an administrator ended it',
      bounds: OPERATION_BOUNDS,
    }),
    added: createTimings(registry, {
      name: 'portcullis_added_latency_seconds',
      help: 'From the last byte of a request until it is sent to its target: the latency that gate, decision and audit add',
      bounds: STEP_BOUNDS,
    }),
    gate: createTimings(registry, {
      name: 'portcullis_gate_duration_seconds',
      help: 'Time that requests wait for state that is at least as new as the request',
      bounds: STEP_BOUNDS,
    }),
    decision: createTimings(registry, {
      name: 'portcullis_decision_duration_seconds',
      help: 'Duration of one policy evaluation: of a call, of the names of a list, or of the use of a target',
      bounds: DECISION_BOUNDS,
    }),
    auditCommit: createTimings(registry, {
      name: 'portcullis_audit_commit_duration_seconds',
      help: 'Time that requests wait until their decision is durable in the audit log',
      bounds: STEP_BOUNDS,
    }),
    targetFailures: counter(
      'portcullis_target_failures_total',
      'Requests that a target did not answer, or answered with an HTTP error',
      ['target', 'failure'],
    ),
    /** The route label is the route's template, never the requested path, so the number of series is bounded. */
    requests: counter('portcullis_http_requests_total', 'Answered HTTP requests', ['method', 'route', 'status']),
    decisions: counter('portcullis_decisions_total', 'Authorization decisions', ['effect', 'reason']),
    denialsRefused: counter(
      'portcullis_denial_limited_requests_total',
      'Requests refused without a decision, because their principal had too many denials',
    ),
    retentionKept: new Gauge({
      name: 'portcullis_audit_retention_kept_chains',
      help: 'Audit chains whose old records were not removed, because they do not match their MACs',
      registers,
    }),
    undelivered: counter(
      'portcullis_undelivered_notifications_total',
      'Notifications of targets that were dropped without a decision, because there were too many',
    ),
    /** The draft label is bounded: administrators name the drafts, and their number is limited. */
    shadowDivergences: counter(
      'portcullis_shadow_divergences_total',
      'Recorded decisions, and names in lists, that a shadowed draft would have decided differently; effect is the effect of the draft',
      ['draft', 'effect'],
    ),
  };
}

/** Adds gauges for what is open or waiting at the moment of a scrape. */
export function watchLevels({ registry }: Metrics, levels: Levels): void {
  const gauge = (name: string, help: string, read: (gauge: Gauge<string>) => void | Promise<void>, labelNames: string[] = []) =>
    new Gauge({
      ...{ name, help, labelNames, registers: [registry] },
      async collect() {
        await read(this);
      },
    });
  gauge(
    'portcullis_audit_queue_records',
    'Audit records that are not yet durable: decisions, which requests wait for, and outcomes',
    (own) => {
      const { decisions, outcomes } = levels.audit();
      own.set({ kind: 'decision' }, decisions);
      own.set({ kind: 'outcome' }, outcomes);
    },
    ['kind'],
  );
  gauge(
    'portcullis_changes_behind',
    'Administrative changes that this replica has not loaded; until it has, it refuses requests. NaN: the database does not answer',
    async (own) => own.set((await levels.behind()) ?? Number.NaN),
  );
  gauge(
    'portcullis_database_connections',
    'Database connections by state; waiting counts the work that waits for a connection',
    (own) => {
      for (const [state, count] of Object.entries(levels.connections())) own.set({ state }, count);
    },
    ['state'],
  );
  gauge('portcullis_streams', 'Open streams on which clients listen', (own) => own.set(levels.open().streams));
  gauge(
    'portcullis_upstream_sessions',
    'Upstream sessions that this replica used in the last hour, without those that sessions at the endpoint of one target began with',
    (own) => own.set(levels.open().upstreamSessions),
  );
  gauge('portcullis_stdio_processes', 'Processes of stdio targets', (own) => own.set(levels.open().processes));
}

/**
 * Serves the metrics to programs on this host without a token. A request with a token is checked by its token from any address:
 * against `scrapeToken`, or by `protect`. Its `Host` header has not been checked, so its address proves nothing.
 */
export function metricsRoutes(metrics: Metrics, scrapeToken: string | null, protect: readonly RequestHandler[]): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const show = (res: Response, text: string): void =>
    void res.set('Cache-Control', 'no-store').type(metrics.registry.contentType).send(text);
  const scrapes = isScrape(scrapeToken);
  const isOpenTo = (req: IncomingMessage): boolean => (req.headers.authorization === undefined ? isLocal(req) : scrapes(req));
  router.get(
    METRICS_PATH,
    (req, _res, next) => next(isOpenTo(req) ? undefined : 'route'),
    async (_req, res) => show(res, await metricsText(metrics)),
  );
  router.get(METRICS_PATH, ...protect, async (_req, res) =>
    show(res, await readInTurn(admissionOf(res).principal.sub, () => metricsText(metrics))),
  );
  return router;
}

/** Compares digests, so that the duration of the comparison reveals nothing about the token. */
function isScrape(token: string | null): (req: IncomingMessage) => boolean {
  if (token === null) return () => false;
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  const expected = digest(`Bearer ${token}`);
  return ({ headers }) => timingSafeEqual(digest((headers.authorization ?? '').replace(/^bearer +/i, 'Bearer ')), expected);
}
