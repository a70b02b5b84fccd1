/** The REST API, and the console on top of it: which router answers under which path, for whom. */
import type { Express, Request, Router } from 'express';
import type { Stock } from '../base/budgets.ts';
import { inTime } from '../base/promises.ts';
import { createPages } from '../browser/pages.ts';
import { createAsk } from '../console/ask.ts';
import { CONSOLE_PATH, consoleRoutes } from '../console/routes.ts';
import { CONSOLE_ASSETS } from '../console/style.ts';
import { addressOf } from '../http/limits/client-address.ts';
import { refuseLater } from '../http/limits/rate-limit.ts';
import { turnInCrowd } from '../http/limits/strangers.ts';
import { createUnreadLimits } from '../http/limits/unread.ts';
import { DEFAULT_LIMITS } from '../mcp/limits/limits.ts';
import { keyRoutes, openAuthRoutes, ownAuthRoutes } from '../rest/accounts/routes.ts';
import { createApp } from '../rest/app.ts';
import { createLogRoutes } from '../rest/audit/routes.ts';
import { createOwnConnectionRoutes, createTargetConnectionRoutes } from '../rest/connections/routes.ts';
import { openapiRoutes } from '../rest/contract.ts';
import { createChangesRoutes } from '../rest/gateway/changes-routes.ts';
import { createStatusRoutes } from '../rest/gateway/replica-routes.ts';
import { clientRoutes, grantRoutes } from '../rest/grants/routes.ts';
import { createInvariantRoutes } from '../rest/invariants/routes.ts';
import { createOwnerRoutes } from '../rest/owners/routes.ts';
import { createBundleRoutes } from '../rest/policies/bundle-routes.ts';
import { createPolicyRoutes } from '../rest/policies/routes.ts';
import { createDraftRoutes } from '../rest/policy-drafts/routes.ts';
import { createAccessRoutes } from '../rest/policy-questions/access-routes.ts';
import { createLogReads } from '../rest/policy-questions/log-reads.ts';
import { createReplayRoutes } from '../rest/policy-questions/replay-routes.ts';
import { createQuestionRoutes } from '../rest/policy-questions/routes.ts';
import { createSuggestRoutes } from '../rest/policy-questions/suggest-routes.ts';
import { createPolicySetRoutes } from '../rest/policy-sets/routes.ts';
import { createLinkRoutes, createProviderRoutes } from '../rest/providers/routes.ts';
import { createRightRoutes } from '../rest/rights/routes.ts';
import type { Mount } from '../rest/route-table.ts';
import { createSessionRoutes, createUserRecycleRoute } from '../rest/sessions/routes.ts';
import { createOwnCredentialRoutes, createTargetRoutes, type TargetRouteParts } from '../rest/targets/routes.ts';
import { userRoutes } from '../rest/users/routes.ts';
import type { Accounts } from './accounts.ts';
import type { Audit } from './audit.ts';
import type { Base } from './base.ts';
import type { Browser } from './browser.ts';
import type { Connections } from './connections.ts';
import { type Decisions, GATE_TIMEOUT_MS } from './decisions.ts';
import type { OAuth } from './oauth.ts';
import type { Replicas } from './replicas.ts';
import type { Policies, Targets } from './resources.ts';
import type { Scim } from './scim.ts';

export interface Parts {
  readonly decisions: Decisions;
  readonly audit: Audit;
  readonly accounts: Accounts;
  readonly browser: Browser;
  readonly oauth: OAuth;
  readonly scim: Scim;
  readonly policies: Policies;
  readonly targets: Targets;
  readonly connections: Connections;
  readonly replicas: Replicas;
  /** Bytes of large bodies under way, shared by REST and MCP. */
  readonly bodies: Stock;
}

/** A request for the OpenAPI document counts as this many: it is half a megabyte. */
const OPENAPI_USES = 10;

const mount = (path: string, router: Router): Mount => ({ path, router });

/** `accepts`: whether the gateway still accepts requests. `check`: tries a target. */
export function createRest(base: Base, parts: Parts, accepts: () => boolean, check: TargetRouteParts['check']): Express {
  const { config, log, vault, database, changes, keys, metrics, now } = base;
  const { decisions, audit, accounts, browser, policies, targets, connections, replicas, bodies } = parts;
  const { authenticate, administer, passwords, limits } = accounts;
  const { module, heavy, sets, moments, applyTested, engineOf, drafts, foundUsers } = policies;
  const auth = {
    ...accounts,
    database,
    trustProxy: config.trustProxy,
    publicUrl: config.publicUrl,
    catalogue: targets.catalogue,
    now,
  };
  const logReads = createLogReads();
  const connected = { database, connecting: connections.connecting };
  const checkParts = async () => {
    const works = (work: Promise<unknown>): Promise<boolean> =>
      inTime(work, GATE_TIMEOUT_MS).then(
        (found) => found !== null,
        () => false,
      );
    // `state` covers the newest policies, targets and identities, and the engine built from them.
    const [databaseWorks, stateWorks] = await Promise.all([works(database.probe()), works(decisions.current.fresh())]);
    return { database: databaseWorks, state: stateWorks, audit: audit.writer.works() };
  };
  let checking: ReturnType<typeof checkParts> | null = null;
  const ready = async (): Promise<Record<string, boolean>> => {
    if (!accepts()) return { accepting: false };
    // Anybody can ask, as often as they like, so those who ask at the same time get one answer.
    checking ??= checkParts().finally(() => {
      checking = null;
    });
    return { accepting: true, ...(await checking) };
  };
  const guarded: readonly Mount[] = [
    { path: '/auth', router: ownAuthRoutes(auth) },
    mount('/auth/grants', grantRoutes(parts.oauth.grants)),
    mount('/clients', clientRoutes(parts.oauth.grants)),
    mount('/users', userRoutes({ database, administer, passwords, localSignIn: config.localSignIn, now })),
    mount('/users', createUserRecycleRoute({ database, administer, now })),
    mount('/sessions', createSessionRoutes({ database, administer, now, onEnded: metrics.sessions.observe })),
    mount('/users', createLinkRoutes(accounts.providers)),
    mount(
      '/providers',
      createProviderRoutes({
        ...accounts.providers,
        database,
        limits,
        replicaId: replicas.presence.id,
        scim: parts.scim.tokens,
      }),
    ),
    mount('/rights', createRightRoutes({ database, administer, now })),
    mount('/keys', keyRoutes({ keys, database, administer, now })),
    mount(
      '/targets',
      createTargetRoutes({
        database,
        vault,
        edits: targets.edits,
        health: targets.health.report,
        catalogue: targets.catalogue,
        replicaId: replicas.presence.id,
        ...{ module, check, limits },
      }),
    ),
    mount('/targets', createTargetConnectionRoutes({ ...connected, vault, administer, publicUrl: config.publicUrl, now })),
    mount('/connections', createOwnConnectionRoutes(connected)),
    { path: '/credentials', router: createOwnCredentialRoutes({ database, edits: targets.edits, limits }) },
    mount(
      '/policies',
      createPolicySetRoutes({
        database,
        sets,
        applyTested,
        heavy,
        readStoredSet: policies.readStoredSet,
        targets: policies.targets,
      }),
    ),
    mount(
      '/policies',
      createAccessRoutes({
        ...{ database, moments, engineOf, foundUsers },
        engineBefore: policies.engineBefore,
        catalogue: targets.catalogue,
      }),
    ),
    mount('/policies', createDraftRoutes({ database, drafts, moments })),
    mount('/policies', createReplayRoutes({ database, module, moments, engineOf, logReads, now })),
    mount('/policies', createSuggestRoutes({ database, module, moments, engineOf, heavy, logReads, foundUsers, now })),
    mount('/policies', createBundleRoutes({ ...policies, database, keys })),
    mount('/policies', createQuestionRoutes({ database, module, moments, engineOf, heavy, foundUsers })),
    mount('/policies', createPolicyRoutes({ database, edits: policies.edits, readStoredSet: policies.readStoredSet })),
    mount('/owners', createOwnerRoutes({ database, edits: policies.ownerEdits })),
    mount('/invariants', createInvariantRoutes({ database, edits: policies.invariants, heavy })),
    mount(
      '/logs',
      createLogRoutes({
        database,
        administer,
        heads: audit.heads,
        erasure: audit.erasure,
        verifications: audit.verifications,
        genuineness: audit.genuineness,
        heavy,
        now,
      }),
    ),
    mount('/status', createStatusRoutes({ changes, presence: replicas.presence })),
    mount('/changes', createChangesRoutes({ changes })),
  ];
  const limitOpenapi = async (req: Request): Promise<void> => {
    const address = addressOf(req, config.trustProxy);
    await refuseLater(req, address, limits.stranger(address, OPENAPI_USES - 1));
  };
  const pages = consoleRoutes({ ...createAsk(guarded), publicUrl: config.publicUrl, sessions: browser.sessions });
  return createApp({
    ...{ bodies, config, log, metrics, keys, authenticate, ready },
    async limit(req, res) {
      const [principal, address] = [accounts.callers.principalOf(req), addressOf(req, config.trustProxy)];
      if (principal === null) return await refuseLater(req, address, limits.stranger(address));
      const allowed = limits.api(principal, address);
      if (allowed !== null && 'inSpareTime' in allowed) await turnInCrowd(res, principal, allowed.uses);
      else await refuseLater(req, principal, allowed);
    },
    idJag: async () => [...(await decisions.current.fresh()).providers.values()].some(({ id_jag }) => id_jag),
    unread: createUnreadLimits(DEFAULT_LIMITS),
    pages: createPages(config, [...browser.pages, { path: CONSOLE_PATH, router: pages, takesTurns: true }], CONSOLE_ASSETS),
    protocols: [
      { path: '/oauth', router: parts.oauth.router },
      { path: '/scim', router: parts.scim.router, refuse: parts.scim.refuse },
    ],
    open: [
      { path: '/auth', router: openAuthRoutes(auth) },
      { path: '', router: openapiRoutes(config.publicUrl, limitOpenapi) },
    ],
    protected: guarded,
  });
}
