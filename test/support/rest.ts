/** The REST API over real HTTP, with its parts, so that tests can sign tokens with the gateway's own keys. */
import { createServer, request as httpRequest, type IncomingMessage } from 'node:http';
import { connect } from 'node:net';
import type { ExecutionContext } from 'ava';
import { createAdminister, createStillAdmits } from '../../src/auth/caller.ts';
import { createKeyRing, type KeyRing, makeKeys } from '../../src/auth/keys.ts';
import { rightStore } from '../../src/auth/right-store.ts';
import { createBrowserSessionList } from '../../src/auth/sign-in/browser-sessions.ts';
import { createDraftToken } from '../../src/auth/sign-in/issue.ts';
import { createLogin } from '../../src/auth/sign-in/login.ts';
import { createPasswords } from '../../src/auth/sign-in/passwords.ts';
import { createRegistration, setupCode } from '../../src/auth/sign-in/registration.ts';
import { createVault, type Vault } from '../../src/auth/vault.ts';
import { AUDIENCE, ISSUER, type TokenRules } from '../../src/auth/verify.ts';
import { createLog } from '../../src/base/log.ts';
import { createPages } from '../../src/browser/pages.ts';
import { type Config, readConfig } from '../../src/config/config.ts';
import { type Changes, createChanges, makeCounter } from '../../src/db/changes.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import type { Decision, Engine } from '../../src/engine/decision.ts';
import { createRateLimits } from '../../src/http/limits/rate-limit.ts';
import { createUnreadLimits } from '../../src/http/limits/unread.ts';
import { createBodies } from '../../src/mcp/limits/intake.ts';
import { DEFAULT_LIMITS } from '../../src/mcp/limits/limits.ts';
import { createCatalogue } from '../../src/mcp/upstream/catalogue.ts';
import { keyRoutes, openAuthRoutes, ownAuthRoutes } from '../../src/rest/accounts/routes.ts';
import { createApp } from '../../src/rest/app.ts';
import { createAuthenticate } from '../../src/rest/authenticate.ts';
import { createMetrics } from '../../src/rest/metrics.ts';
import type { Mount } from '../../src/rest/route-table.ts';
import { userRoutes } from '../../src/rest/users/routes.ts';
import { readIdentities } from '../../src/state/identity-store.ts';
import { createCurrent } from '../../src/state/live-state.ts';
import { createSqlite } from './databases/sqlite.ts';

export interface Answer {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly text: string;
  /** The parsed body; an empty object if there is none or it is not JSON. */
  readonly body: Body;
}

/** Members of answers that tests read. The route decides which ones exist. */
export interface Body {
  readonly [member: string]: unknown;
  readonly code?: string;
  readonly detail?: string;
  readonly errors?: readonly { readonly path: string; readonly message: string }[];
  readonly token?: string;
  readonly id?: string;
  readonly role?: string;
}

export interface Request {
  readonly token?: string | undefined;
  /** A string is sent as it is. */
  readonly body?: unknown;
  /** A list of values is sent as so many headers. */
  readonly headers?: Readonly<Record<string, string | string[]>>;
}

export interface Rest {
  readonly url: string;
  readonly port: number;
  readonly config: Config;
  readonly database: Database;
  readonly changes: Changes;
  readonly keys: KeyRing;
  readonly vault: Vault;
  readonly rules: TokenRules;
  readonly setupCode: string;
  /** Everything that was logged. */
  readonly logged: () => string;
  /** Moves the gateway's clock. */
  readonly pass: (ms: number) => void;
  /** False: the readiness check reports that the database is down. */
  ready: boolean;
  call(method: string, path: string, request?: Request): Promise<Answer>;
  /** Registers (the first becomes administrator) and logs in. */
  account(email: string, password?: string): Promise<{ readonly id: string; readonly token: string }>;
}

export const PASSWORD = 'correct horse battery';
const MASTER_KEY = Buffer.alloc(32, 7);

/** An engine that denies everything, because no route of these tests asks it. */
function denyAll(revision: number): Engine {
  const denied: Decision = { effect: 'deny', reason: 'default', policy: null };
  return {
    revision,
    dataHash: '',
    engineHash: '',
    decide: () => denied,
    decideMany: (_principal, _target, objects) => objects.map(() => denied),
    estimate: () => 0,
    decideTarget: () => denied,
  };
}

/** `url` as in DATABASE_URL. `more`: further routers under `/api`. Ends with the test. */
export async function startRest(
  t: ExecutionContext,
  url: string,
  environment: Record<string, string> = {},
  more: readonly Mount[] = [],
): Promise<Rest> {
  const limits = { LOGIN_RATE_LIMIT: '100000', CHANGE_RATE_LIMIT: '100000' };
  const config = readConfig({ DATABASE_URL: url, LOG_LEVEL: 'trace', ...limits, ...environment });
  const lines: string[] = [];
  const log = createLog(config.logLevel, { write: (line) => lines.push(line) });
  let passed = 0;
  const now = (): number => Date.now() + passed;
  const vault = createVault(MASTER_KEY);
  const database = await openDatabase(config.database, async (db) => {
    await makeCounter(db);
    await makeKeys(db, vault, now());
  });
  const changes = await createChanges(database, now);
  const keys = await createKeyRing(database.knex, vault);
  const rules: TokenRules = { issuer: ISSUER, audience: AUDIENCE, publicUrl: config.publicUrl, now };
  const { admit } = createCurrent({
    database,
    changes,
    policies: async () => [],
    targets: async () => new Map(),
    sessions: async () => ({ ended: new Set<string>(), epochOf: () => 0 }),
    rights: (db) => rightStore(db).all(),
    clock: now,
    providers: async () => new Map(),
    identities: readIdentities,
    build: async (_policies, revision) => denyAll(revision),
    gateTimeoutMs: 5_000,
    boundMs: 0,
    now: () => performance.now(),
  });
  const administer = createAdminister({ changes, now });
  const passwords = createPasswords();
  const draftToken = createDraftToken(keys, rules);
  const auth = {
    database,
    registration: createRegistration({ database, passwords, vault, config, now }),
    login: createLogin({ database, passwords, draftToken, administer, stillAdmits: createStillAdmits({ now }), config, now }),
    sessionList: createBrowserSessionList({ database, administer, now }),
    limits: createRateLimits(config.rateLimits),
    trustProxy: config.trustProxy,
    publicUrl: config.publicUrl,
    catalogue: createCatalogue(now),
    now,
  };
  const state = { ready: true };
  const app = createApp({
    bodies: createBodies(DEFAULT_LIMITS),
    idJag: async () => false,
    unread: createUnreadLimits(DEFAULT_LIMITS),
    pages: createPages(config, []),
    protocols: [],
    config,
    log,
    metrics: createMetrics(),
    keys,
    authenticate: createAuthenticate(keys, rules, admit),
    ready: async () => ({ database: state.ready, engine: true }),
    open: [{ path: '/auth', router: openAuthRoutes(auth) }],
    protected: [
      { path: '/auth', router: ownAuthRoutes(auth) },
      { path: '/users', router: userRoutes({ database, administer, passwords, localSignIn: config.localSignIn, now }) },
      { path: '/keys', router: keyRoutes({ keys, database, administer, now }) },
      ...more,
    ],
  });
  const server = createServer(app);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no port');
  t.teardown(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
    await database.close();
  });

  const call: Rest['call'] = (method, path, request) => send(address.port, method, path, request);
  return Object.assign(state, {
    url: `http://127.0.0.1:${address.port}`,
    port: address.port,
    config,
    database,
    changes,
    keys,
    vault,
    rules,
    setupCode: setupCode(vault),
    logged: () => lines.join(''),
    pass: (ms: number) => {
      passed += ms;
    },
    call,
    account: async (email: string, password: string = PASSWORD) => {
      const registered = await call('POST', '/api/auth/register', { body: { email, password } });
      const { status, body } = await call('POST', '/api/auth/login', { body: { email, password } });
      if (registered.status !== 201 || status !== 200) throw new Error(`no account: ${registered.text} ${JSON.stringify(body)}`);
      return { id: String(registered.body.id), token: String(body.token) };
    },
  });
}

/** Starts the API on SQLite, for tests that do not depend on the kind of database. */
export async function startRestOnSqlite(
  t: ExecutionContext,
  environment: Record<string, string> = {},
  more: readonly Mount[] = [],
): Promise<Rest> {
  const { url, drop } = await createSqlite();
  t.teardown(drop);
  return startRest(t, url, environment, more);
}

/** Writes the text to the socket unchanged. Resolves with everything that came back before the gateway closed the connection. */
export function sendRaw(port: number, text: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, '127.0.0.1', () => socket.write(text));
    let answer = '';
    socket.on('data', (chunk) => {
      answer += chunk;
    });
    socket.on('close', () => resolve(answer));
    socket.on('error', reject);
  });
}

/** Uses node:http, because fetch cannot set Host, Origin or two headers of the same name. */
export function send(port: number, method: string, path: string, { token, body, headers }: Request = {}): Promise<Answer> {
  const text = body === undefined ? undefined : typeof body === 'string' || Buffer.isBuffer(body) ? body : JSON.stringify(body);
  return new Promise((resolve, reject) => {
    const req = httpRequest(
      {
        host: '127.0.0.1',
        port,
        method,
        path,
        agent: false,
        headers: {
          ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
          ...(text === undefined ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }),
          ...headers,
        },
      },
      (res) => {
        const chunks: Buffer[] = [];
        res.on('data', (chunk: Buffer) => chunks.push(chunk));
        res.on('end', () => {
          const answer = Buffer.concat(chunks).toString();
          resolve({ status: res.statusCode ?? 0, headers: res.headers, text: answer, body: parse(answer) });
        });
        res.on('error', reject);
      },
    );
    req.on('error', reject);
    req.end(text);
  });
}

function parse(text: string): Body {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
