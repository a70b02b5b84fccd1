/** The composition root: only this file creates the parts and connects them. Read it from top to bottom. */
import { randomBytes } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import { hostname } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { v7 as uuidv7 } from 'uuid';
import { createChainKey } from './audit/chain/chain.ts';
import { checkCheckpoints, createHeads } from './audit/chain/heads.ts';
import { createRetention } from './audit/chain/retention.ts';
import { createDenials } from './audit/denials.ts';
import { createErasure } from './audit/erasure.ts';
import type { AuditWriter } from './audit/event.ts';
import { createAuditWriter } from './audit/writer.ts';
import { createAdminister } from './auth/caller.ts';
import { createDraftToken } from './auth/issue.ts';
import { checkKeys, createKeyRing, makeKeys } from './auth/keys.ts';
import { createLogin } from './auth/login.ts';
import { createPasswords } from './auth/passwords.ts';
import { createRegistration, setupCode } from './auth/registration.ts';
import { createVault, masterKeyFile, readMasterKeyFile, type Vault } from './auth/vault.ts';
import { AUDIENCE, createVerifier, ISSUER } from './auth/verify.ts';
import { AppError } from './base/errors.ts';
import { createLog, type Log } from './base/log.ts';
import { createAddressRule } from './base/network-address.ts';
import type { Config } from './config/config.ts';
import { createChanges, makeCounter } from './db/changes.ts';
import { type Connection, type Database, openDatabase } from './db/database.ts';
import { createDecisionCache } from './engine/cache.ts';
import type { Policy } from './engine/compile/policy.ts';
import { createEngine, loadPolicyModule } from './engine/engine.ts';
import { createEngineCache } from './engine/engines.ts';
import { addressOf } from './http/client-address.ts';
import { inTurn } from './http/in-turn.ts';
import { meetOrigin } from './http/origin.ts';
import { createRateLimits } from './http/rate-limit.ts';
import { createUnreadLimits } from './http/unread.ts';
import { createMcpHandler } from './mcp/endpoint.ts';
import { createBodies } from './mcp/limits/intake.ts';
import { DEFAULT_LIMITS } from './mcp/limits/limits.ts';
import { principalKey } from './mcp/limits/slots.ts';
import { isRequestMethod } from './mcp/protocol/operation.ts';
import { createSessionOwners } from './mcp/sessions/owners.ts';
import { createSeal } from './mcp/sessions/seal.ts';
import { taskStore } from './mcp/sessions/task-store.ts';
import { createHealth } from './mcp/upstream/health.ts';
import { createPace, MONOTONIC } from './mcp/upstream/pace.ts';
import { draftStore } from './policies/drafts/draft-store.ts';
import { createDrafts } from './policies/drafts/drafts.ts';
import { createShadows } from './policies/drafts/shadow.ts';
import { createPolicyEdits } from './policies/edit.ts';
import { createHeavyWork } from './policies/heavy/heavy.ts';
import { policyStore } from './policies/policy-store.ts';
import { createMoments } from './policies/sets/candidate-set.ts';
import { createPolicySets } from './policies/sets/sets.ts';
import { createApplyTested } from './policies/sets/test-set.ts';
import { createPeers } from './replicas/peers.ts';
import { createPresence } from './replicas/presence.ts';
import { keyRoutes, openAuthRoutes, ownAuthRoutes } from './rest/accounts/routes.ts';
import { createApp } from './rest/app.ts';
import { createLogRoutes } from './rest/audit/routes.ts';
import { createAuthenticate } from './rest/authenticate.ts';
import { openapiRoutes } from './rest/contract.ts';
import { watchDescriptors } from './rest/descriptors.ts';
import { createChangesRoutes } from './rest/gateway/changes-routes.ts';
import { createStatusRoutes } from './rest/gateway/replica-routes.ts';
import { createMetrics, watchLevels } from './rest/metrics.ts';
import { createBundleRoutes } from './rest/policies/bundle-routes.ts';
import { createPolicyRoutes } from './rest/policies/routes.ts';
import { createDraftRoutes } from './rest/policy-drafts/routes.ts';
import { createAccessRoutes } from './rest/policy-questions/access-routes.ts';
import { createReplayRoutes } from './rest/policy-questions/replay-routes.ts';
import { createQuestionRoutes } from './rest/policy-questions/routes.ts';
import { createPolicySetRoutes } from './rest/policy-sets/routes.ts';
import { createSessionRoutes, createUserRecycleRoute } from './rest/sessions/routes.ts';
import { createOwnCredentialRoutes, createTargetRoutes } from './rest/targets/routes.ts';
import type { Timings } from './rest/timings.ts';
import { userRoutes } from './rest/users/routes.ts';
import { sessionRules } from './sessions/rules.ts';
import { sessionStore } from './sessions/session-store.ts';
import { createSessionUpkeep } from './sessions/upkeep.ts';
import type { Admit } from './state/admission.ts';
import { readIdentities } from './state/identity-store.ts';
import { createCurrent } from './state/live-state.ts';
import { timedEngine } from './state/timed.ts';
import { resealCredentials, routedTargets } from './targets/credentials.ts';
import { createTargetEdits } from './targets/edit.ts';
import { targetStore } from './targets/target-store.ts';
import { createUpkeep } from './upkeep.ts';

export interface Gateway {
  /** Resolves when the gateway accepts requests. Rejects if it cannot listen on the address. */
  listen(): Promise<void>;
  /** Whether there is no administrator yet. The next registration then becomes one. */
  awaitsAdministrator(): Promise<boolean>;
  /** Returns the code that the first registration requires. null: no code is required, or a user has registered. */
  setupCode(): Promise<string | null>;
  /**
   * Shuts down. For `delayMs` milliseconds the gateway still answers requests, but reports that it is not ready and tells clients
   * to close their connections, so that load balancers notice. Then it accepts no new requests, gives open ones `drainMs` to
   * finish, and releases everything.
   *
   * Throws AppError `unavailable` if releasing takes too long, for example because the database hangs. The process must end even
   * then.
   */
  close(delayMs?: number): Promise<void>;
}

const GATE_TIMEOUT_MS = 5_000;
const DECISIONS_KEPT = 50_000;
/** The time after the open requests for recording their outcomes and closing connections. */
const RELEASE_TIMEOUT_MS = 8_000;
const MAX_HEADER_BYTES = 16 * 1024;
/** How long a scrape of the metrics waits for the database. */
const SCRAPE_TIMEOUT_MS = 1_000;
/** A request must arrive completely within this time. Answers have no such limit. */
const REQUEST_TIMEOUT_MS = 60_000;

/**
 * Creates the gateway. Throws AppError with a message for the operator if the database, the keys or the policy engine cannot be
 * used. Tests pass a different `open` to see how the database is opened.
 */
export async function createGateway(
  config: Config,
  log: Log = createLog(config.logLevel),
  open: typeof openDatabase = openDatabase,
): Promise<Gateway> {
  // Checks that need no database come first, before the database is touched.
  if (config.masterKey === null) readMasterKeyFile(keyFileOf(config));
  await checkCheckpoints(config.audit.checkpoints);
  const opened: { vault: Vault | null } = { vault: null };
  const database = await open(config.database, async (db) => {
    await makeCounter(db);
    const vault = await openVault(config, db);
    await makeKeys(db, vault, Date.now());
    await resealCredentials(db, vault);
    opened.vault = vault;
  });
  try {
    const { vault } = opened;
    if (vault === null) throw new Error('The database was opened without its first rows');
    return await assemble(config, log, vault, database);
  } catch (error) {
    await database.close();
    throw error;
  }
}

const keyFileOf = ({ dataDir }: Config): string => join(dataDir, 'master.key');

/**
 * Opens the vault, and creates the master key file if there is none. The file must exist before anything is encrypted with the
 * key, and a failed start must not leave one behind. So it is created under the migration lock, if the database needs no other
 * key.
 */
async function openVault(config: Config, db: Connection): Promise<Vault> {
  const { masterKey, previousMasterKeys } = config;
  const known = masterKey ?? readMasterKeyFile(keyFileOf(config));
  if (known === null) await checkKeys(db, createVault(randomBytes(32), previousMasterKeys));
  return createVault(known ?? masterKeyFile(keyFileOf(config)), previousMasterKeys);
}

async function assemble(config: Config, log: Log, vault: Vault, database: Database): Promise<Gateway> {
  const now = Date.now;
  const newId = (): string => uuidv7();
  const changes = await createChanges(database, now);
  const keys = await createKeyRing(database.knex, vault);
  const metrics = createMetrics();

  // Decisions and the state that they use.
  const module = await loadPolicyModule();
  const decisions = createDecisionCache(DECISIONS_KEPT);
  const onFault = (err: unknown): void => log.error({ err }, 'decision failed and became a deny');
  const current = createCurrent({
    database,
    changes,
    policies: (db) => policyStore(db).all(),
    targets: (db, ids) => routedTargets(db, vault, ids),
    sessions: (db) => sessionRules(db, now()),
    identities: readIdentities,
    build: async (policies, revision) => {
      const engine = await createEngine({ module, policies, revision, onFault });
      for (const finding of engine.findings) log.error({ finding, revision }, 'stored policy cannot be compiled as it is');
      return timedEngine(decisions.over(engine), (ms) => metrics.decision.observe(ms));
    },
    gateTimeoutMs: GATE_TIMEOUT_MS,
    boundMs: config.freshnessMs,
    now: () => performance.now(),
  });
  const admit: Admit = (claims) => timed(metrics.gate, current.admit(claims));
  let reached = await current.fresh();
  const chainKey = (from: Vault) => createChainKey(from.derive('audit chain'));
  const key = chainKey(vault);
  const previousKeys = config.previousMasterKeys.map((previous) => chainKey(createVault(previous)));
  const host = { replica: config.replicaUrl, hostname: hostname(), pid: process.pid };
  const writer = createAuditWriter({ database, key, host, log, now });
  await writer.start();
  const denials = createDenials({ limit: config.rateLimits.denials, log, now, onRefused: () => metrics.denialsRefused.inc() });
  const audit: AuditWriter = {
    ...writer,
    async decision(record, cause) {
      await timed(metrics.auditCommit, writer.decision(record));
      // Messages that a target sends on its own must not lock out the principal that receives them.
      const isOwn = record.effect === 'deny' && cause !== 'delivery';
      if (isOwn) denials.count(principalKey({ iss: record.issuer, sub: record.user_id }));
      metrics.decisions.inc({ effect: record.effect, reason: record.reason });
    },
  };
  const { retentionDays: days, checkpoints: file, checkpointMinutes } = config.audit;
  const heads = createHeads({ database, key, keys, writer, file, checkpointMs: checkpointMinutes * 60_000, log, now });
  const erasure = createErasure({ database, key, now });
  const retention = createRetention({
    ...{ database, key, previousKeys, days, log, now },
    resume: erasure.resume,
    onKept: (chains) => metrics.retentionKept.set(chains),
  });

  const rowUpkeep = createUpkeep({ database, changesDays: config.changesRetentionDays, log, now });

  // Authentication of callers.
  const rules = { issuer: ISSUER, audience: AUDIENCE, now };
  const verify = createVerifier(keys, rules);
  const authenticate = createAuthenticate(keys, rules, admit);
  const administer = createAdminister({ changes });
  const passwords = createPasswords();
  const limits = createRateLimits(config.rateLimits);
  const registration = createRegistration({ database, passwords, vault, config, now });
  const login = createLogin({ database, passwords, draftToken: createDraftToken(keys, rules), administer, config, now });

  // The resources that administrators change.
  const policyParts = {
    ...{ database, administer, newId, now },
    checkPattern: module.checkPattern,
    tryPolicies: (policies: readonly Policy[]) => createEngine({ module, policies, revision: 0 }),
  };
  const policyEdits = createPolicyEdits({
    ...policyParts,
    targetExists: async (trx, id) => (await targetStore(trx).find(id)) !== null,
  });
  const allTargets = (db: Connection) => targetStore(db).page(null, null);
  const findDraft = (db: Connection, name: string) => draftStore(db).find(name);
  const heavy = createHeavyWork({ database, targets: allTargets, findDraft });
  const policySets = createPolicySets({
    ...policyParts,
    targets: allTargets,
    readFiles: heavy.readFiles,
    tryPolicies: heavy.build,
  });
  const moments = createMoments({
    ...{ database, sets: policySets, targets: allTargets },
    findDraft,
  });
  const applyTested = createApplyTested({ sets: policySets, test: heavy.test });
  const engineOf = createEngineCache(module);
  const drafts = createDrafts({ database, administer, sets: policySets, applyTested, now });
  const addresses = createAddressRule(config.allowedAddresses);
  const health = createHealth(now);
  const targetEdits = createTargetEdits({
    administer,
    vault,
    allowedCommands: config.stdio.allowed,
    addresses,
    isNamed: (trx, targetId) => policyStore(trx).namesTarget(targetId),
    newId,
    now,
  });

  // Other replicas, and the sessions that they own.
  const presence = await createPresence({
    database,
    vault,
    id: newId(),
    address: config.replicaUrl,
    state: async () => {
      reached = await current.fresh().catch(() => reached);
      return { sequence: reached.sequence, revision: reached.engine.revision, engine_hash: reached.engine.engineHash };
    },
    now,
    log,
  });
  const shadows = createShadows({
    ...{ database, module, moments, log, now },
    replicaId: presence.id,
    diverged: (draft, effect, count) => metrics.shadowDivergences.inc({ draft, effect }, count),
  });
  const peers = createPeers({ vault, now, log });
  const sessions = sessionStore(database.knex);
  const upkeep = createSessionUpkeep({ database, now, log });

  // HTTP.
  let draining = false;
  const auth = { database, registration, login, limits, trustProxy: config.trustProxy };
  const bodies = createBodies(DEFAULT_LIMITS);
  const app = createApp({
    bodies,
    unread: createUnreadLimits(DEFAULT_LIMITS),
    config,
    log,
    metrics,
    keys,
    authenticate,
    ready: async (): Promise<Record<string, boolean>> => {
      if (draining) return { accepting: false };
      const works = (work: Promise<unknown>): Promise<boolean> => inTime(work, GATE_TIMEOUT_MS).catch(() => false);
      // `state` covers the newest policies, targets and identities, and the engine built from them.
      const [databaseWorks, stateWorks] = await Promise.all([works(database.probe()), works(current.fresh())]);
      return { accepting: true, database: databaseWorks, state: stateWorks, audit: writer.works() };
    },
    open: [
      { path: '/auth', router: openAuthRoutes(auth) },
      { path: '', router: openapiRoutes(config.publicUrl) },
    ],
    protected: [
      { path: '/auth', router: ownAuthRoutes(auth) },
      { path: '/users', router: userRoutes({ database, administer, passwords, now }), roles: ['admin'] },
      { path: '/users', router: createUserRecycleRoute({ administer, now }), roles: ['admin'] },
      {
        path: '/sessions',
        router: createSessionRoutes({ database, administer, now, onEnded: metrics.sessions.observe }),
        roles: ['admin'],
      },
      { path: '/keys', router: keyRoutes(keys, administer, now), roles: ['admin'] },
      {
        path: '/targets',
        router: createTargetRoutes({ database, vault, edits: targetEdits, health: health.report, replicaId: presence.id }),
        roles: ['admin'],
      },
      { path: '/credentials', router: createOwnCredentialRoutes({ database, edits: targetEdits, limits }) },
      {
        path: '/policies',
        router: createPolicySetRoutes({ database, sets: policySets, applyTested, heavy, targets: allTargets }),
        roles: ['admin'],
      },
      { path: '/policies', router: createAccessRoutes({ database, moments, engineOf }), roles: ['admin'] },
      { path: '/policies', router: createDraftRoutes({ database, drafts, moments }), roles: ['admin'] },
      { path: '/policies', router: createReplayRoutes({ database, module, moments, engineOf, now }), roles: ['admin'] },
      { path: '/policies', router: createBundleRoutes({ database, keys, engineOf }), roles: ['admin'] },
      {
        path: '/policies',
        router: createQuestionRoutes({ database, module, moments, engineOf, heavy }),
        roles: ['admin'],
      },
      { path: '/policies', router: createPolicyRoutes({ database, edits: policyEdits }), roles: ['admin'] },
      {
        path: '/logs',
        router: createLogRoutes({ database, administer, heads, erasure, now }),
        roles: ['admin', 'auditor'],
      },
      { path: '/status', router: createStatusRoutes({ changes, presence }), roles: ['admin', 'auditor'] },
      { path: '/changes', router: createChangesRoutes({ changes }), roles: ['admin', 'auditor'] },
    ],
  });
  const mcp = createMcpHandler({
    bodies,
    verify,
    admit,
    audit,
    seal: createSeal([keys.sealingKey]),
    tasks: taskStore(database.knex),
    sessions,
    replicaId: presence.id,
    holders: createSessionOwners({ presence, peers, sessions, log, patienceMs: GATE_TIMEOUT_MS }),
    isFromPeer: peers.isFromPeer,
    saw: upkeep.saw,
    publicUrl: config.publicUrl,
    limits: { ...DEFAULT_LIMITS, silenceMs: config.upstreamTimeoutMs, answerBytes: config.upstreamAnswerBytes },
    pace: createPace(DEFAULT_LIMITS, MONOTONIC),
    stdio: config.stdio,
    addresses,
    health,
    checkOrigin: (req, res) => meetOrigin(req, res, config),
    addressOf: (req) => addressOf(req, config.trustProxy),
    ended: ({ requestId, method, status, tookMs }) => {
      metrics.requests.inc({ method, route: '/mcp/:target', status });
      // The audit log has the decisions. The log shows failed requests, which people search for.
      log[status < 400 ? 'debug' : 'info'](
        { request_id: requestId, method, route: '/mcp/:target', status, took_ms: tookMs },
        'mcp',
      );
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
    denialLimit: denials.wait,
    undelivered: () => metrics.undelivered.inc(),
    rateLimit: async ({ address, principal }) => (await limits.mcp(principal ?? '', address))?.retryAfter ?? null,
    now,
    newId,
    log,
  });
  presence.whenLapsed(() => mcp.endStreams());
  watchLevels(metrics, {
    audit: () => writer.unsettled(),
    behind: async () => {
      const newest = await bounded(changes.position(), SCRAPE_TIMEOUT_MS);
      // A replica without requests may not have loaded the newest changes yet.
      await bounded(current.fresh(), SCRAPE_TIMEOUT_MS);
      const own = current.sequence();
      return newest === null || own === null ? null : Math.max(0, newest.sequence - own);
    },
    connections: () => database.connections(),
    open: () => mcp.counts(),
  });
  const server = createServer(
    { maxHeaderSize: MAX_HEADER_BYTES, requestTimeout: REQUEST_TIMEOUT_MS, headersTimeout: REQUEST_TIMEOUT_MS },
    inTurn((req, res) => {
      if (draining) res.setHeader('Connection', 'close');
      mcp(req, res, () => app(req, res));
    }),
  );

  const descriptors = watchDescriptors({ log });

  async function release(): Promise<void> {
    descriptors.stop();
    await mcp.close();
    await peers.close();
    await presence.stop();
    await upkeep.stop();
    await shadows.stop();
    await heavy.close();
    await retention.stop();
    await rowUpkeep.stop();
    await writer.close();
    await heads.stop();
    await database.close();
  }

  return {
    async listen() {
      await listenOn(server, config);
      // Without a listener an error would end the process.
      server.on('error', (err) => {
        if (!descriptors.saw(err)) log.error({ err }, 'connection not accepted');
      });
      log.info({ url: config.publicUrl, database: database.kind }, 'gateway started: accepting requests');
    },
    awaitsAdministrator: () => registration.firstPending(),
    setupCode: async () => ((await registration.setupCodePending()) ? setupCode(vault) : null),
    async close(delayMs = 0) {
      draining = true;
      if (delayMs > 0) {
        log.info({ delay_ms: delayMs }, 'draining: readiness fails, requests are still answered');
        await sleep(delayMs);
      }
      const drained = drain(server, config.drainMs);
      // The evaluation of drafts begins to stop during the drain, so that `release` need not wait for it separately.
      shadows.stop().catch(() => {});
      mcp.endStreams();
      await drained;
      if (await inTime(release(), RELEASE_TIMEOUT_MS)) return;
      // A decision that is not durable took no effect. Outcomes of recorded calls may be missing.
      const unrecorded = writer.unsettled();
      log.error(unrecorded, 'shutting down with audit records that the database has not confirmed');
      const { decisions, outcomes } = unrecorded;
      throw new AppError(
        'unavailable',
        `it took longer than ${RELEASE_TIMEOUT_MS / 1_000} s; the database did not confirm ${decisions} decisions, which took no effect, and ${outcomes} outcomes of calls`,
      );
    },
  };
}

function listenOn(server: Server, { host, port }: Config): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, () => {
      server.off('error', reject);
      resolve();
    });
  });
}

/** Returns the result of the work and records how long it takes, even if it fails. */
async function timed<T>(timings: Timings, work: Promise<T>): Promise<T> {
  const began = performance.now();
  try {
    return await work;
  } finally {
    timings.observe(performance.now() - began);
  }
}

/** Returns the result of the work. null: it failed, or took longer than `ms` milliseconds. */
async function bounded<T>(work: Promise<T>, ms: number): Promise<T | null> {
  let result: T | null = null;
  const stored = work.then((value) => {
    result = value;
  });
  await inTime(stored, ms).catch(() => false);
  return result;
}

/** Returns whether the work is done within `ms` milliseconds. Rejects if it fails first. */
async function inTime(work: Promise<unknown>, ms: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), ms);
  });
  try {
    return await Promise.race([work.then(() => true), late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Accepts no new connections, closes idle ones, and gives requests in flight `ms` milliseconds to end. */
async function drain(server: Server, ms: number): Promise<void> {
  if (!server.listening) return;
  const closed = new Promise((resolve) => server.close(resolve));
  server.closeIdleConnections();
  const timer = setTimeout(() => server.closeAllConnections(), ms);
  await closed;
  clearTimeout(timer);
}
