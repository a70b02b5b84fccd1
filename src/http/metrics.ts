/** What operators watch, in the text format of Prometheus. */
import { createHash, timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { type RequestHandler, Router } from 'express';
import { Counter, collectDefaultMetrics, Gauge, Registry } from 'prom-client';
import { VERSION } from '../version.ts';
import { isLocal } from './address.ts';
import { createTimings, type Timings } from './timings.ts';

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
  /** Requests of clients, by method and how they ended. */
  readonly calls: Timings;
  /** Requests to targets, by the target's name and how they ended. */
  readonly upstream: Timings;
  /** Sessions that were ended. */
  readonly sessions: Timings;
  readonly added: Timings;
  readonly gate: Timings;
  readonly decision: Timings;
  readonly auditCommit: Timings;
  readonly targetFailures: Counter<'target' | 'failure'>;
}

/** Read when somebody asks for the metrics. */
export interface Levels {
  /** Decisions that are not durable yet, and outcomes that are not written yet. */
  readonly audit: () => { readonly decisions: number; readonly outcomes: number };
  /** How many administrative changes this replica cannot load; null: the database does not say. */
  readonly behind: () => Promise<number | null>;
  readonly connections: () => { readonly used: number; readonly free: number; readonly waiting: number };
  readonly open: () => { readonly streams: number; readonly upstreamSessions: number; readonly processes: number };
}

/** Of the MCP semantic conventions of OpenTelemetry, in seconds. */
const OPERATION_BOUNDS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300];
/** For what should take milliseconds. */
const STEP_BOUNDS = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10];
/** For what should take microseconds. */
const DECISION_BOUNDS = [
  0.000_005, 0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1,
];

/** One for all gateways of a process, as tests have several. */
let ofProcess: Registry | undefined;

function processRegistry(): Registry {
  if (ofProcess === undefined) {
    ofProcess = new Registry();
    collectDefaultMetrics({ register: ofProcess });
  }
  return ofProcess;
}

/** The text that Prometheus reads. */
export function metricsText({ registry }: Metrics): Promise<string> {
  return Registry.merge([registry, processRegistry()]).metrics();
}

export function createMetrics(): Metrics {
  const registry = new Registry();
  const registers = [registry];
  processRegistry();
  new Gauge({
    name: 'portcullis_build_info',
    help: 'Always 1; the labels say which build runs',
    labelNames: ['version', 'node'],
    registers,
  }).set({ version: VERSION, node: process.versions.node }, 1);
  return {
    registry,
    calls: createTimings(registry, {
      name: 'mcp_server_operation_duration_seconds',
      help: 'From the last byte of a decided request on /mcp to the end of its answer; error_type is empty where the answer is a result',
      bounds: OPERATION_BOUNDS,
      labels: ['mcp_method_name', 'error_type'],
    }),
    upstream: createTimings(registry, {
      name: 'mcp_client_operation_duration_seconds',
      help: 'From sending a request to its target to the end of the answer; error_type is empty where the answer is a result',
      bounds: OPERATION_BOUNDS,
      labels: ['target', 'error_type'],
    }),
    sessions: createTimings(registry, {
      name: 'mcp_server_session_duration_seconds',
      help: 'From the beginning of a session until its client or an administrator ended it',
      bounds: OPERATION_BOUNDS,
    }),
    added: createTimings(registry, {
      name: 'portcullis_added_latency_seconds',
      help: 'From the last byte of a request until it goes to its target: what the gateway adds by gate, decision and audit',
      bounds: STEP_BOUNDS,
    }),
    gate: createTimings(registry, {
      name: 'portcullis_gate_duration_seconds',
      help: 'Wait for state that is at least as new as the request',
      bounds: STEP_BOUNDS,
    }),
    decision: createTimings(registry, {
      name: 'portcullis_decision_duration_seconds',
      help: 'One question to the policies: a call, the names of a list, or whether a target may be used',
      bounds: DECISION_BOUNDS,
    }),
    auditCommit: createTimings(registry, {
      name: 'portcullis_audit_commit_duration_seconds',
      help: 'Wait until a decision is durable in the audit log',
      bounds: STEP_BOUNDS,
    }),
    targetFailures: new Counter({
      name: 'portcullis_target_failures_total',
      help: 'Requests that a target did not answer, or answered with a failure of HTTP',
      labelNames: ['target', 'failure'],
      registers,
    }),
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

/** Gauges of what is open or waits at the moment of a scrape. */
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
    'Records that are not durable yet: decisions, for which requests wait, and outcomes',
    (own) => {
      const { decisions, outcomes } = levels.audit();
      own.set({ kind: 'decision' }, decisions);
      own.set({ kind: 'outcome' }, outcomes);
    },
    ['kind'],
  );
  gauge(
    'portcullis_changes_behind',
    'Administrative changes that this replica cannot load; until it can, it refuses requests. NaN: the database does not answer',
    async (own) => own.set((await levels.behind()) ?? Number.NaN),
  );
  gauge(
    'portcullis_database_connections',
    'Connections to the database by state; waiting: what waits for one',
    (own) => {
      for (const [state, count] of Object.entries(levels.connections())) own.set({ state }, count);
    },
    ['state'],
  );
  gauge('portcullis_streams', 'Streams that clients listen on', (own) => own.set(levels.open().streams));
  gauge('portcullis_upstream_sessions', 'Sessions with targets that this replica uses', (own) =>
    own.set(levels.open().upstreamSessions),
  );
  gauge('portcullis_stdio_processes', 'Processes of stdio targets', (own) => own.set(levels.open().processes));
}

/**
 * Open to programs on this host. A request with a token is judged by it, wherever it comes from: by `scrapeToken`, or by `protect`. Its
 * `Host` has not been checked, so that its address proves nothing.
 */
export function metricsRoutes(metrics: Metrics, scrapeToken: string | null, protect: readonly RequestHandler[]): Router {
  const router = Router({ caseSensitive: true, strict: true });
  const show: RequestHandler = async (_req, res) => {
    const text = await metricsText(metrics);
    res.set('Cache-Control', 'no-store').type(metrics.registry.contentType).send(text);
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
