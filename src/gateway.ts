/**
 * The composition root: it creates the parts and connects them. Read `assemble` from top to bottom; each part has a file in
 * `gateway/`.
 */
import { randomBytes } from 'node:crypto';
import { createServer, type Server } from 'node:http';
import { createServer as createTcpServer, type Server as TcpServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { checkCheckpoints } from './audit/upkeep/heads.ts';
import { checkKeys, createKeyRing, makeKeys } from './auth/keys.ts';
import { setupCode } from './auth/sign-in/registration.ts';
import { createVault, masterKeyFile, readMasterKeyFile, type Vault } from './auth/vault.ts';
import { AppError } from './base/errors.ts';
import { uuidv7 } from './base/ids.ts';
import { createLog, type Log } from './base/log.ts';
import { inTime } from './base/promises.ts';
import { starts } from './base/turns/caller-turns.ts';
import type { Config } from './config/config.ts';
import { createChanges, makeCounter } from './db/changes.ts';
import { createClockCheck } from './db/clock.ts';
import { type Connection, type Database, openDatabase } from './db/database.ts';
import { createAccounts } from './gateway/accounts.ts';
import { startAudit } from './gateway/audit.ts';
import type { Base } from './gateway/base.ts';
import { createBrowser } from './gateway/browser.ts';
import { createConnections } from './gateway/connections.ts';
import { createDecisions } from './gateway/decisions.ts';
import { createMcp } from './gateway/mcp.ts';
import { createOAuth } from './gateway/oauth.ts';
import { joinReplicas } from './gateway/replicas.ts';
import { createPolicies, createTargets } from './gateway/resources.ts';
import { createRest, type Parts } from './gateway/rest.ts';
import { createScim } from './gateway/scim.ts';
import { limitConnections } from './http/limits/connections.ts';
import { readInTurns } from './http/limits/crowded.ts';
import { HEAD_LIMITS, refuseLargeHeads } from './http/limits/heads.ts';
import { limitPipelining } from './http/limits/pipelining.ts';
import { beginUnknown, endingHeads, packetInTurn } from './http/limits/strangers.ts';
import { createBodies } from './mcp/limits/intake.ts';
import { DEFAULT_LIMITS } from './mcp/limits/limits.ts';
import { resealProviders } from './providers/edit.ts';
import { descriptorLimit, watchDescriptors } from './rest/descriptors.ts';
import { createMetrics, watchLevels } from './rest/metrics.ts';
import { resealConnections } from './targets/connections.ts';
import { resealCredentials } from './targets/credentials.ts';
import { createUpkeep } from './upkeep.ts';
import { checkLocalSignIn } from './users/local-sign-in.ts';

export interface Gateway {
  /** Resolves when the gateway accepts requests. Rejects if it cannot listen on the address. */
  listen(): Promise<void>;
  /**
   * Loads the libraries that only sign-ins need, after `listen`. Node never tries again to read a module that it could not read once. So a
   * stranger who uses up the file descriptors during the first sign-in would end all sign-ins for good.
   */
  loadLibraries(): Promise<void>;
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

/** The time after the open requests for recording their outcomes and closing connections. */
const RELEASE_TIMEOUT_MS = 8_000;
/** How long before the listener closes the other replicas take over the sessions, but at most half of the delay. */
const LEAVING_MS = 1_000;
/** How long a scrape of the metrics waits for the database. */
const SCRAPE_TIMEOUT_MS = 1_000;
/** A request must arrive completely within this time. Answers have no such limit. */
const REQUEST_TIMEOUT_MS = 60_000;
/** Longer than the 60 s of usual balancers: one that sends a request while the gateway closes the connection answers it with 502. */
const IDLE_CONNECTION_MS = 65_000;
/**
 * How many connections may wait to be accepted: more than all strangers may have. The system drops further ones, and their clients try again after
 * a second.
 */
const BACKLOG = 4_096;

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
  await checkAddress(config);
  const opened: { vault: Vault | null } = { vault: null };
  const database = await open(config.database, async (db) => {
    await makeCounter(db);
    await checkLocalSignIn(db, config.localSignIn);
    const vault = await openVault(config, db);
    await makeKeys(db, vault, Date.now());
    await resealCredentials(db, vault);
    await resealConnections(db, vault);
    await resealProviders(db, vault);
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
  const base: Base = {
    ...{ config, log, vault, database, now: Date.now, newId: () => uuidv7(), metrics: createMetrics() },
    changes: await createChanges(database, Date.now),
    keys: await createKeyRing(database.knex, vault),
  };
  const decisions = await createDecisions(base);
  const audit = await startAudit(base);
  // An erasure is a change of its user. A replica with a different state of the database may lack facts that were stored.
  decisions.current.whenUsersChange(audit.writer.forget);
  const checkClock = createClockCheck(database, base.now);
  const rowUpkeep = createUpkeep({ database, changesDays: config.changesRetentionDays, checkClock, log, now: base.now });
  const accounts = createAccounts(base, decisions);
  const policies = createPolicies(base, decisions, accounts);
  const targets = createTargets(base, accounts);
  const connections = createConnections(base, accounts);
  const oauth = createOAuth(base, decisions, accounts);
  const browser = createBrowser(base, decisions, accounts, connections, oauth.applications, oauth.pagesFor);
  const replicas = await joinReplicas(base, decisions, policies);

  const bodies = createBodies(DEFAULT_LIMITS);
  let draining = false;
  const parts: Parts = {
    decisions,
    audit,
    accounts,
    browser,
    policies,
    targets,
    connections,
    oauth,
    replicas,
    scim: createScim(base, accounts, bodies),
    bodies,
  };
  const mcp = createMcp(base, parts);
  const app = createRest(base, parts, () => !draining, mcp.check);
  const { current } = decisions;
  const { writer } = audit;
  const { presence, shadows } = replicas;
  presence.whenLapsed(() => mcp.endStreams());
  const soon = <T>(work: Promise<T>): Promise<T | null> => inTime(work, SCRAPE_TIMEOUT_MS).catch(() => null);
  watchLevels(base.metrics, {
    audit: () => writer.unsettled(),
    behind: async () => {
      const newest = await soon(base.changes.position());
      // A replica without requests may not have loaded the newest changes yet.
      await soon(current.fresh());
      const own = current.sequence();
      return newest === null || own === null ? null : Math.max(0, newest.sequence - own);
    },
    connections: () => database.connections(),
    open: () => mcp.counts(),
  });
  const opened = limitConnections(accounts.callers, config.trustProxy, log);
  const handle = opened.noting(
    endingHeads(
      limitPipelining(
        refuseLargeHeads((req, res) => {
          if (draining) res.setHeader('Connection', 'close');
          mcp(req, res, () => app(req, res));
        }),
        (req, res, begin) => {
          const principal = accounts.callers.principalOf(req);
          if (principal === null) void beginUnknown(req, res, accounts.callers.addressOf(req), begin);
          else starts.run(principal, begin);
        },
      ),
    ),
  );
  const server = createServer(
    {
      maxHeaderSize: HEAD_LIMITS.maxHeaderSize,
      requestTimeout: REQUEST_TIMEOUT_MS,
      headersTimeout: REQUEST_TIMEOUT_MS,
      keepAliveTimeout: IDLE_CONNECTION_MS,
      // Otherwise node itself answers a request without Host, and ends the connection. `limitPipelining` would not know, and begin the next
      // request, whose answer would never close.
      requireHostHeader: false,
    },
    handle,
  )
    .on('connection', opened.note)
    .on('connection', (socket) => {
      readInTurns(socket, (packet, handOver) =>
        packetInTurn(socket, packet, {
          known: opened.senderOf(socket),
          look: () => accounts.callers.senderIn(packet, socket),
          handOver,
          refuse: () => opened.refuse(socket),
        }),
      );
    })
    // Otherwise node itself answers requests with unknown expectations, as many as arrive.
    .on('checkExpectation', handle);
  server.maxHeadersCount = HEAD_LIMITS.maxHeadersCount;

  const descriptors = watchDescriptors({ log });

  async function release(): Promise<void> {
    descriptors.stop();
    await Promise.all([mcp.close(), connections.stop()]);
    await replicas.peers.close();
    await presence.stop();
    await replicas.upkeep.stop();
    await shadows.stop();
    await policies.heavy.close();
    await Promise.all([audit.retention.stop(), audit.counts.stop()]);
    await rowUpkeep.stop();
    await oauth.close();
    await writer.close();
    await audit.heads.stop();
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
    async loadLibraries() {
      // The other half of the descriptors is for the files of the libraries.
      server.maxConnections = descriptorLimit() / 2;
      await oauth
        .loadLibraries()
        .catch((err: unknown) => log.error({ err }, 'sign-ins will fail until the gateway starts again'));
      server.maxConnections = Number.POSITIVE_INFINITY;
      log.debug('libraries for sign-ins loaded');
    },
    awaitsAdministrator: () => accounts.registration.firstPending(),
    setupCode: async () => ((await accounts.registration.setupCodePending()) ? setupCode(vault) : null),
    async close(delayMs = 0) {
      draining = true;
      if (delayMs > 0) {
        log.info({ delay_ms: delayMs }, 'draining: readiness fails, requests are still answered');
        const lastMs = Math.min(LEAVING_MS, delayMs / 2);
        await sleep(delayMs - lastMs);
        // A connection that arrives while the listener closes is reset: by then, no replica may forward requests to this one.
        presence
          .leave()
          .catch((err: unknown) => log.warn({ err }, 'telling the other replicas to take over the sessions failed'));
        await sleep(lastMs);
      }
      const drained = drain(server, config.drainMs);
      // The evaluation of drafts begins to stop during the drain, so that `release` need not wait for it separately.
      shadows.stop().catch(() => {});
      mcp.endStreams();
      await drained;
      if ((await inTime(release(), RELEASE_TIMEOUT_MS)) !== null) return;
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

/** Throws if the gateway cannot listen on its address. A start that fails for this reason must not make a master key or a database. */
async function checkAddress(config: Config): Promise<void> {
  const probe = createTcpServer();
  await listenOn(probe, config);
  await new Promise((resolve) => probe.close(resolve));
}

function listenOn(server: TcpServer, { host, port }: Config): Promise<void> {
  return new Promise((resolve, reject) => {
    const failed = (cause: Error): void => reject(new Error(`cannot listen: ${cause.message}`, { cause }));
    server.once('error', failed);
    server.listen({ port, host, backlog: BACKLOG }, () => {
      server.off('error', failed);
      resolve();
    });
  });
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
