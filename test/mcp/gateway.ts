/** The handler on a real server, with state, rights and audit log that a test can read and change. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { v7 as uuid } from 'uuid';
import type { DecisionRecord, OutcomeRecord, ShownRecord } from '../../src/audit/records/records.ts';
import type { Principal, TokenClaims } from '../../src/auth/principal.ts';
import { AppError } from '../../src/base/errors.ts';
import { perObject } from '../../src/base/kept.ts';
import { createLog } from '../../src/base/log.ts';
import { createAddressRule } from '../../src/base/network/network-address.ts';
import type { Decision, Engine, NamedObject } from '../../src/engine/decision.ts';
import { createMcpHandler, type McpDeps } from '../../src/mcp/endpoint.ts';
import { createBodies } from '../../src/mcp/limits/intake.ts';
import { DEFAULT_LIMITS, type McpLimits } from '../../src/mcp/limits/limits.ts';
import { createSeal } from '../../src/mcp/sessions/seal.ts';
import { createCatalogue } from '../../src/mcp/upstream/catalogue.ts';
import { createHealth } from '../../src/mcp/upstream/health.ts';
import { createPace, MONOTONIC } from '../../src/mcp/upstream/pace.ts';
import { ASKABLE } from '../../src/protocol/capabilities.ts';
import type { Admission } from '../../src/state/admission.ts';
import type { Access, Credentials, RoutedTarget } from '../../src/targets/target.ts';
import { memorySessions, memoryTasks } from './stores.ts';

export type Right = (object: NamedObject, targetId: string) => boolean;

export interface TestGateway {
  readonly origin: string;
  url(target: string): string;
  /** The rights of each user; the name of a user is also the token. */
  readonly rights: Map<string, Right>;
  readonly targets: Map<string, RoutedTarget>;
  readonly decisions: DecisionRecord[];
  /** The decisions about messages that targets sent without being asked. */
  readonly delivered: DecisionRecord[];
  readonly shown: ShownRecord[];
  readonly outcomes: OutcomeRecord[];
  readonly revoked: Set<string>;
  readonly logged: object[];
  /** Set to make the audit log or the state unavailable. */
  auditDown: boolean;
  stateDown: boolean;
  engineDown: boolean;
  /** How many milliseconds the decision takes, as the engine estimates it. */
  estimated: (object: NamedObject) => number;
  now: number | null;
  admissions: number;
  /** Method, object and effect of each decision: `tools/call tool echo allow`. */
  audited(): string[];
  endStreams(): void;
  stop(): Promise<void>;
}

export const ISSUER = 'https://gateway.test';

/** The access to a target, the same for every caller. */
export const reachedWith =
  (credentials: Access['credentials']): RoutedTarget['accessOf'] =>
  ({ sub: user }) => ({ credentials, scope: null, binding: 'a binding', user });

export const noCredentials: Credentials = { headers: [], env: {}, identity: 'none' };

export function routed(name: string, url: string, changes: Partial<RoutedTarget & { readonly url: string }> = {}): RoutedTarget {
  return {
    id: `id-of-${name}`,
    name,
    description: null,
    transport: 'streamable-http',
    url,
    enabled: true,
    denials: 'shown',
    may_ask: ASKABLE,
    extension_methods: [],
    user_credentials: [],
    capture_arguments: null,
    own_accounts: null,
    timeout_ms: null,
    created_at: 0,
    updated_at: 0,
    accessOf: reachedWith({ ...noCredentials, headers: [['x-upstream-key', 'gateway-secret']] }),
    ...changes,
  } as RoutedTarget;
}

/** The same for all admissions: a different array would be a change. */
const NO_GROUPS: readonly string[] = [];
const noRules = { ended: new Set<string>(), epochOf: () => 0 };

interface Setup {
  readonly targets: readonly RoutedTarget[];
  readonly rights: Readonly<Record<string, Right>>;
  readonly limits?: Partial<McpLimits>;
  readonly deps?: Partial<McpDeps>;
  /** Called before the names of a list are recorded. */
  readonly shown?: () => Promise<void>;
}

const decision = (allowed: boolean): Decision =>
  allowed
    ? { effect: 'allow', reason: 'matched', policy: { id: 'p', name: 'a policy', priority: 1 } }
    : { effect: 'deny', reason: 'default', policy: null };

/** An admission with an engine of its own. It does not change, as with real policies. */
export function admissionOf(
  sub: string,
  targets: ReadonlyMap<string, RoutedTarget>,
  allows: (object: NamedObject) => boolean,
  { revision = 1, epoch = 0 } = {},
): Admission {
  const decide: Engine['decide'] = (_principal, _targetId, object) => decision(allows(object));
  const engine: Engine = {
    revision,
    dataHash: 'data',
    engineHash: 'engine',
    decide,
    decideMany: (_principal, _targetId, objects) => objects.map((object) => decision(allows(object))),
    estimate: () => 0,
    decideTarget: () => decision(true),
  };
  const sessions = { ended: new Set<string>(), epochOf: () => epoch };
  const snapshot = { sequence: revision, engine, targets, sessions, rights: [], providers: new Map() };
  return { principal: principalOf(sub), snapshot };
}

/** Makes a fake engine. `rights` take the place of policies. */
function fakeEngine(gateway: TestGateway): Engine {
  // An engine never throws. It denies a request that it cannot decide.
  const unlessDown = (allowed: boolean): Decision =>
    gateway.engineDown ? { effect: 'deny', reason: 'error', policy: null } : decision(allowed);
  const decide: Engine['decide'] = ({ sub }, targetId, object) =>
    unlessDown(gateway.rights.get(sub)?.(object, targetId) ?? false);
  return {
    revision: 7,
    dataHash: 'data',
    engineHash: 'engine',
    decide,
    decideMany: (principal, targetId, objects) => objects.map((object) => decide(principal, targetId, object)),
    estimate: (_principal, _targetId, objects) => objects.reduce((ms, object) => ms + gateway.estimated(object), 0),
    decideTarget: ({ sub }) => unlessDown(gateway.rights.has(sub)),
  };
}

export async function startGateway({ targets, rights, limits, deps, shown: beforeShown }: Setup): Promise<TestGateway> {
  const decisions: DecisionRecord[] = [];
  const delivered: DecisionRecord[] = [];
  const shown: ShownRecord[] = [];
  const outcomes: OutcomeRecord[] = [];
  const logged: object[] = [];
  const unavailable = () => new AppError('unavailable', 'down', { retryAfter: 3 });
  const gateway: TestGateway = {
    origin: '',
    url: (target) => `${gateway.origin}/mcp/${target}`,
    rights: new Map(Object.entries(rights)),
    targets: new Map(targets.map((target) => [target.name, target])),
    decisions,
    delivered,
    shown,
    outcomes,
    revoked: new Set(),
    logged,
    auditDown: false,
    stateDown: false,
    engineDown: false,
    estimated: () => 0,
    now: null,
    admissions: 0,
    audited: () =>
      decisions.map(({ method, resource_type, resource_name, effect, reason }) =>
        [method, resource_type, resource_name, effect, reason === 'matched' || reason === 'default' ? null : reason]
          .filter((part) => part !== null)
          .join(' '),
      ),
    endStreams: () => undefined,
    stop: async () => undefined,
  };
  const log = createLog('debug', { write: (line) => void logged.push(JSON.parse(line) as object) });
  // Changed rights make a new engine, as changed policies do.
  const engineOf = perObject((_right: Right) => fakeEngine(gateway));
  const noRight: Right = () => false;
  // Long enough for targets that start on a busy machine.
  const allLimits = { ...DEFAULT_LIMITS, joinMs: 10_000, lateMs: 10_000, ...limits };
  const handler = createMcpHandler({
    withAccounts: (upstream) => upstream,
    verify: async ({ authorization }) => {
      const user = /^bearer ([a-z]+)$/i.exec(authorization ?? '')?.[1];
      if (authorization === undefined) return { refused: 'unauthenticated', detail: 'no token' };
      if (user === undefined || user === 'wrong') return { refused: 'invalid_token', detail: 'a bad token' };
      return claimsOf(user);
    },
    admit: async ({ sub }) => {
      gateway.admissions++;
      if (gateway.stateDown) throw unavailable();
      if (gateway.revoked.has(sub)) return { refused: 'invalid_token', detail: 'revoked' };
      return {
        principal: principalOf(sub),
        snapshot: {
          ...{ sequence: 1, engine: engineOf(gateway.rights.get(sub) ?? noRight), sessions: noRules },
          ...{ rights: [], providers: new Map() },
          targets: new Map(gateway.targets),
        },
      };
    },
    audit: {
      decision: async (record, cause) => {
        if (gateway.auditDown) throw unavailable();
        decisions.push(record);
        if (cause === 'delivery') delivered.push(record);
      },
      shown: async (record) => {
        await beforeShown?.();
        if (gateway.auditDown) throw unavailable();
        shown.push(record);
      },
      outcome: (record) => void outcomes.push(record),
    },
    seal: createSeal([Buffer.alloc(32, 7)]),
    sessions: memorySessions(),
    tasks: memoryTasks(),
    replicaId: 'the-replica',
    owners: { answerOrForward: async () => 'here' },
    isFromPeer: () => false,
    saw: () => undefined,
    publicUrl: 'https://gateway.test',
    checkOrigin: () => null,
    addressOf: () => '127.0.0.1',
    rateLimit: () => null,
    denialLimit: () => null,
    undelivered: () => undefined,
    ended: () => undefined,
    observe: { ended: () => undefined, sessionEnded: () => undefined, failed: () => undefined },
    bodies: createBodies(allLimits),
    limits: allLimits,
    pace: createPace(allLimits, MONOTONIC),
    addresses: createAddressRule([]),
    catalogue: createCatalogue(() => gateway.now ?? Date.now()),
    health: createHealth(() => gateway.now ?? Date.now()),
    stdio: { allowed: [], maxProcesses: 4, idleMs: 60_000, lifetimeMs: 600_000 },
    now: () => gateway.now ?? Date.now(),
    newId: () => uuid(),
    log,
    ...deps,
  });
  const server = createServer((req, res) => handler(req, res, () => void res.writeHead(418).end('next')));
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const stop = async () => {
    await handler.close();
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
  };
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return Object.assign(gateway, { origin, stop, endStreams: handler.endStreams });
}

function claimsOf(sub: string): TokenClaims {
  return { iss: ISSUER, sub, jti: `token-of-${sub}`, kid: 'k', exp: null, provider: null, resource: null };
}

function principalOf(sub: string): Principal {
  return {
    issuer: ISSUER,
    sub,
    email: `${sub}@x.test`,
    role: 'user',
    groups: NO_GROUPS,
    granted: { role: 'user', groups: [] },
    token_id: `token-of-${sub}`,
    token_kind: 'api',
    issued_at: null,
    limits: null,
  };
}
