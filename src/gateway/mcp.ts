/** The MCP endpoint, with what it measures. */
import { addressOf } from '../http/limits/client-address.ts';
import { meetOrigin } from '../http/origin.ts';
import { createMcpHandler } from '../mcp/endpoint.ts';
import { DEFAULT_LIMITS } from '../mcp/limits/limits.ts';
import { createSessionOwners } from '../mcp/sessions/owners.ts';
import { createSeal } from '../mcp/sessions/seal.ts';
import { taskStore } from '../mcp/sessions/task-store.ts';
import { createPace, MONOTONIC } from '../mcp/upstream/pace.ts';
import { isRequestMethod } from '../protocol/operation.ts';
import type { Base } from './base.ts';
import { GATE_TIMEOUT_MS } from './decisions.ts';
import type { Parts } from './rest.ts';

export function createMcp(base: Base, { audit, accounts, targets, connections, replicas, bodies }: Parts) {
  const { config, log, database, keys, metrics, newId, now } = base;
  const { presence, peers, sessions, upkeep } = replicas;
  return createMcpHandler({
    ...{ bodies, sessions, now, newId, log },
    verify: accounts.verify,
    admit: accounts.admit,
    audit: audit.audit,
    seal: createSeal([keys.sealingKey]),
    tasks: taskStore(database.knex),
    replicaId: presence.id,
    owners: createSessionOwners({ presence, peers, sessions, log, patienceMs: GATE_TIMEOUT_MS }),
    isFromPeer: peers.isFromPeer,
    saw: upkeep.saw,
    publicUrl: config.publicUrl,
    limits: { ...DEFAULT_LIMITS, silenceMs: config.upstreamTimeoutMs, answerBytes: config.upstreamAnswerBytes },
    pace: createPace(DEFAULT_LIMITS, MONOTONIC),
    stdio: config.stdio,
    addresses: targets.addresses,
    withAccounts: connections.withAccounts,
    health: targets.health,
    catalogue: targets.catalogue,
    checkOrigin: (req, res) => meetOrigin(req, res, config),
    addressOf: (req) => addressOf(req, config.trustProxy),
    ended: ({ requestId: request_id, method, status, tookMs: took_ms }) => {
      const route = '/mcp/:target';
      metrics.requests.inc({ method, route, status });
      // The audit log has the decisions. The log shows failed requests, which people search for.
      log[status < 400 ? 'debug' : 'info']({ request_id, method, route, status, took_ms }, 'mcp');
    },
    observe: {
      ended: ({ method, targetName, outcome, tookMs, addedMs }) => {
        const error = outcome === 'ok' ? '' : outcome;
        metrics.calls.observe(tookMs, isRequestMethod(method) ? method : '_OTHER', error);
        if (addedMs === null) return;
        metrics.added.observe(addedMs);
        metrics.upstream.observe(tookMs - addedMs, targetName, error);
      },
      sessionEnded: (lastedMs) => metrics.sessions.observe(lastedMs),
      failed: (target, failure) => metrics.targetFailures.inc({ target, failure }),
    },
    denialLimit: audit.denials.wait,
    undelivered: () => metrics.undelivered.inc(),
    rateLimit: ({ address, principal }, messages) => accounts.limits.mcp(principal ?? '', address, messages)?.retryAfter ?? null,
  });
}
