/** The REST API: which router answers under which path, for whom. */
import type { Express, Router } from 'express';
import type { Stock } from '../base/budgets.ts';
import { inTime } from '../base/promises.ts';
import { createUnreadLimits } from '../http/unread.ts';
import { DEFAULT_LIMITS } from '../mcp/limits/limits.ts';
import { keyRoutes, openAuthRoutes, ownAuthRoutes } from '../rest/accounts/routes.ts';
import { createApp, type ProtectedMount } from '../rest/app.ts';
import { createLogRoutes } from '../rest/audit/routes.ts';
import { openapiRoutes } from '../rest/contract.ts';
import { createChangesRoutes } from '../rest/gateway/changes-routes.ts';
import { createStatusRoutes } from '../rest/gateway/replica-routes.ts';
import { createBundleRoutes } from '../rest/policies/bundle-routes.ts';
import { createPolicyRoutes } from '../rest/policies/routes.ts';
import { createDraftRoutes } from '../rest/policy-drafts/routes.ts';
import { createAccessRoutes } from '../rest/policy-questions/access-routes.ts';
import { createReplayRoutes } from '../rest/policy-questions/replay-routes.ts';
import { createQuestionRoutes } from '../rest/policy-questions/routes.ts';
import { createPolicySetRoutes } from '../rest/policy-sets/routes.ts';
import { createSessionRoutes, createUserRecycleRoute } from '../rest/sessions/routes.ts';
import { createOwnCredentialRoutes, createTargetRoutes } from '../rest/targets/routes.ts';
import { userRoutes } from '../rest/users/routes.ts';
import type { Accounts } from './accounts.ts';
import type { Audit } from './audit.ts';
import type { Base } from './base.ts';
import { type Decisions, GATE_TIMEOUT_MS } from './decisions.ts';
import type { Replicas } from './replicas.ts';
import type { Policies, Targets } from './resources.ts';

export interface Parts {
  readonly decisions: Decisions;
  readonly audit: Audit;
  readonly accounts: Accounts;
  readonly policies: Policies;
  readonly targets: Targets;
  readonly replicas: Replicas;
  /** Bytes of large bodies under way, shared by REST and MCP. */
  readonly bodies: Stock;
}

const forAdmins = (path: string, router: Router): ProtectedMount => ({ path, router, roles: ['admin'] });
const forAuditors = (path: string, router: Router): ProtectedMount => ({ path, router, roles: ['admin', 'auditor'] });

/** `accepts`: whether the gateway still accepts requests. */
export function createRest(base: Base, parts: Parts, accepts: () => boolean): Express {
  const { config, log, vault, database, changes, keys, metrics, now } = base;
  const { decisions, audit, accounts, policies, targets, replicas, bodies } = parts;
  const { authenticate, administer, passwords, limits } = accounts;
  const { module, heavy, sets, moments, applyTested, engineOf, drafts } = policies;
  const auth = { ...accounts, database, trustProxy: config.trustProxy };
  const ready = async (): Promise<Record<string, boolean>> => {
    if (!accepts()) return { accepting: false };
    const works = (work: Promise<unknown>): Promise<boolean> =>
      inTime(work, GATE_TIMEOUT_MS).then(
        (found) => found !== null,
        () => false,
      );
    // `state` covers the newest policies, targets and identities, and the engine built from them.
    const [databaseWorks, stateWorks] = await Promise.all([works(database.probe()), works(decisions.current.fresh())]);
    return { accepting: true, database: databaseWorks, state: stateWorks, audit: audit.writer.works() };
  };
  return createApp({
    ...{ bodies, config, log, metrics, keys, authenticate, ready },
    unread: createUnreadLimits(DEFAULT_LIMITS),
    open: [
      { path: '/auth', router: openAuthRoutes(auth) },
      { path: '', router: openapiRoutes(config.publicUrl) },
    ],
    protected: [
      { path: '/auth', router: ownAuthRoutes(auth) },
      forAdmins('/users', userRoutes({ database, administer, passwords, now })),
      forAdmins('/users', createUserRecycleRoute({ administer, now })),
      forAdmins('/sessions', createSessionRoutes({ database, administer, now, onEnded: metrics.sessions.observe })),
      forAdmins('/keys', keyRoutes(keys, administer, now)),
      forAdmins(
        '/targets',
        createTargetRoutes({
          database,
          vault,
          edits: targets.edits,
          health: targets.health.report,
          replicaId: replicas.presence.id,
        }),
      ),
      { path: '/credentials', router: createOwnCredentialRoutes({ database, edits: targets.edits, limits }) },
      forAdmins('/policies', createPolicySetRoutes({ database, sets, applyTested, heavy, targets: policies.targets })),
      forAdmins('/policies', createAccessRoutes({ database, moments, engineOf })),
      forAdmins('/policies', createDraftRoutes({ database, drafts, moments })),
      forAdmins('/policies', createReplayRoutes({ database, module, moments, engineOf, now })),
      forAdmins('/policies', createBundleRoutes({ database, keys, engineOf })),
      forAdmins('/policies', createQuestionRoutes({ database, module, moments, engineOf, heavy })),
      forAdmins('/policies', createPolicyRoutes({ database, edits: policies.edits })),
      forAuditors('/logs', createLogRoutes({ database, administer, heads: audit.heads, erasure: audit.erasure, now })),
      forAuditors('/status', createStatusRoutes({ changes, presence: replicas.presence })),
      forAuditors('/changes', createChangesRoutes({ changes })),
    ],
  });
}
