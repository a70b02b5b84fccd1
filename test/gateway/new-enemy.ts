/**
 * The new-enemy test of law 4: a right is taken away through one replica, and as soon as that is answered its former owner calls every
 * replica, each over a separate connection and without a retry. Every call must be refused.
 */
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { rest } from '../support/gateway.ts';
import { openSession, call as toolCall } from '../support/mcp.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { IDENTITY_KINDS, type IdentityKind, identityRight, type Scene } from './new-enemy-identity.ts';

export interface Battle {
  /** Base URLs of the replicas. The first one is the `PUBLIC_URL` of all. */
  readonly urls: readonly string[];
  /** An administrator's login token. */
  readonly admin: string;
  /** Revocations of each kind. */
  readonly rounds: number;
  /** The number of callers at each replica that call all the time (default: 2). */
  readonly traffic?: number;
}

export interface Score {
  /** Answered revocations of each kind. */
  readonly revocations: Readonly<Record<Kind, number>>;
  /** Calls after an answered revocation, and those of them that got through. */
  readonly calls: number;
  readonly stale: number;
  /** Stale calls of each kind, to find out what went wrong. */
  readonly staleOf: Readonly<Record<Kind, number>>;
  /** Calls after a revocation that were neither allowed nor denied: 503, a lost connection. */
  readonly errors: number;
  /** The number of changes that got an error and were repeated. */
  readonly refusedChanges: number;
  /** Calls right after an answered grant that were denied: the same law, seen from its harmless side. */
  readonly lateAllows: number;
  /** The answers of the callers that never stop. */
  readonly traffic: Readonly<Record<Answer, number>>;
  readonly seconds: number;
}

export const KINDS = [
  'policy disabled',
  'deny added',
  'role changed',
  'group removed',
  'token revoked',
  'user disabled',
  'last right gone',
  'administration taken',
  ...IDENTITY_KINDS,
] as const;
export type Kind = (typeof KINDS)[number];

export type Answer = 'allowed' | 'denied' | 'error';

/** The end of the ticket of a call that must be refused. */
const AFTER = ' after';
const PASSWORD = 'a long passphrase of the enemy';
/** A restored right must apply everywhere within this time. Otherwise the run proves nothing. */
const RESTORE_MS = 60_000;

/** Sends one request over a new connection: a POST, or a GET if there is no body. */
function send(url: string, headers: http.OutgoingHttpHeaders, body: object | null): Promise<{ status: number; text: string }> {
  const text = body === null ? '' : JSON.stringify(body);
  return new Promise((resolve, reject) => {
    const req = http.request(
      url,
      {
        method: body === null ? 'GET' : 'POST',
        agent: false,
        headers: {
          accept: 'application/json, text/event-stream',
          ...(body === null ? {} : { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) }),
          ...headers,
        },
      },
      (res) => {
        const chunks: Buffer[] = [];
        res.on('data', (chunk: Buffer) => chunks.push(chunk));
        res.on('error', reject);
        res.on('end', () => resolve({ status: res.statusCode ?? 0, text: Buffer.concat(chunks).toString() }));
      },
    );
    req.on('error', reject);
    req.end(text);
  });
}

const MODERN = '2026-07-28';

/**
 * Calls a target once: in a session, or with `session` null as in 2026-07-28. A 401, a denial of the gateway and its question for an own
 * account count as denied, everything else except a result as an error.
 */
export const callOnce = (mcp: string, token: string, session: string | null, tool: string, ticket: string): Promise<Answer> =>
  ask(mcp, token, session, toolCall(tool, { ticket }));

interface Reply {
  readonly result?: object;
  readonly error?: { readonly code?: number; readonly data?: { readonly account?: string } };
}

async function ask(
  mcp: string,
  token: string,
  session: string | null,
  message: { readonly method: string; readonly params?: { readonly name?: string } },
): Promise<Answer> {
  const meta = { 'io.modelcontextprotocol/protocolVersion': MODERN, 'io.modelcontextprotocol/clientCapabilities': {} };
  const answer = await send(
    mcp,
    {
      authorization: `Bearer ${token}`,
      ...(session === null
        ? { 'mcp-protocol-version': MODERN, 'mcp-method': message.method, 'mcp-name': message.params?.name }
        : { 'mcp-protocol-version': '2025-11-25', 'mcp-session-id': session }),
    },
    session === null ? { ...message, params: { _meta: meta, ...message.params } } : message,
  ).catch(() => null);
  if (answer === null) return 'error';
  if (answer.status === 401) return 'denied';
  const json = /^data: (\{.*)$/m.exec(answer.text)?.[1] ?? answer.text;
  try {
    const { result, error } = JSON.parse(json) as Reply;
    if (result !== undefined) return 'allowed';
    return error?.code === 403 || error?.code === 404 || error?.data?.account === 'connect' ? 'denied' : 'error';
  } catch {
    return 'error';
  }
}

/** Reads the targets over REST, which needs a right of administration. */
async function administerOnce(url: string, token: string): Promise<Answer> {
  const answer = await send(`${url}/api/targets`, { authorization: `Bearer ${token}` }, null).catch(() => null);
  if (answer?.status === 200) return 'allowed';
  return answer?.status === 403 ? 'denied' : 'error';
}

export interface Enemy {
  readonly id: string;
  readonly email: string;
  readonly password: string;
  /** Login token. */
  readonly login: string;
  token: string;
  tokenId: string;
}

/** How a right is removed and restored. `modern`: the round calls in the mode of 2026-07-28. */
export interface Right {
  revoke(at: string, modern: boolean): Promise<unknown>;
  restore(at: string, modern: boolean): Promise<unknown>;
  /** The token that calls are made with (default: the API token of the enemy). */
  token?(modern: boolean): string;
  /** The path of the target, if it is a different one. */
  path?(modern: boolean): string;
  /** Uses the right once, if it is used otherwise than by a call. */
  attempt?(url: string, session: string | null, ticket: string): Promise<Answer>;
  /** Whether a target of its own got the call with the ticket. */
  hasReached?(ticket: string): boolean;
}

export async function newEnemy({ urls, admin, rounds, traffic: callers = 2 }: Battle): Promise<Score> {
  const began = performance.now();
  const received = new Set<string>();
  const results = {
    'tools/call': ({ arguments: given }: Record<string, unknown>) => {
      const ticket = String((given as { ticket?: unknown } | undefined)?.ticket);
      if (ticket.endsWith(AFTER)) received.add(ticket);
      return { content: [], resultType: 'complete' };
    },
    'tools/list': { tools: ['ok', 'no'].map((name) => ({ name, inputSchema: { type: 'object' } })) },
  };
  /** One target for sessions and one for 2026-07-28, because the gateway offers the mode that a target speaks. */
  const upstreams = await Promise.all(
    [false, true].map(async (modern) => {
      const answer = byMethod(results, { modern });
      const upstream = await startRecording((one, res) => {
        // The relevant answers are stored above; all answers of a long run would not fit.
        upstream.received.length = 0;
        return answer(one, res);
      });
      return upstream;
    }),
  );

  const replica = (n: number): string => urls[n % urls.length] ?? '';
  let refusedChanges = 0;
  /** Repeats a change until it succeeds. A delete without an answer has also succeeded if the object is gone afterwards. */
  async function change<T>(at: string, method: string, path: string, token: string, body?: object): Promise<T> {
    let unknown = false;
    for (let tried = 1; ; tried++) {
      const answer = await rest<T>(at, method, path, { token, ...(body === undefined ? {} : { body }) }).catch(() => null);
      if (answer !== null && answer.status < 300) return answer.body;
      if (answer?.status === 404 && method === 'DELETE' && unknown) return answer.body;
      unknown ||= answer === null || answer.status >= 500;
      if (tried === 50) throw new Error(`${method} ${path}: ${answer?.status} ${JSON.stringify(answer?.body)}`);
      refusedChanges++;
      await sleep(50);
    }
  }
  const asAdmin = <T>(at: string, method: string, path: string, body?: object) => change<T>(at, method, path, admin, body);

  async function enemy(name: string): Promise<Enemy> {
    const at = replica(0);
    const account = { email: `${name.replaceAll(' ', '-')}-${crypto.randomUUID()}@example.com`, password: PASSWORD };
    await asAdmin(at, 'POST', '/api/users', { ...account, role: 'user' });
    const { user, token: login } = await change<{ user: { id: string }; token: string }>(
      at,
      'POST',
      '/api/auth/login',
      '',
      account,
    );
    return { id: user.id, ...account, login, ...(await newToken(at, login)) };
  }
  async function newToken(at: string, login: string): Promise<{ token: string; tokenId: string }> {
    const made = await change<{ api_token: { id: string }; token: string }>(at, 'POST', '/api/auth/tokens', login, {
      name: 'enemy',
    });
    return { token: made.token, tokenId: made.api_token.id };
  }

  /** A new name, so that this run finds nothing of earlier runs on the same database. */
  const own = `enemy-${crypto.randomUUID()}`;
  const mcp = (url: string, modern: boolean): string => `${url}/mcp/${own}${modern ? '-modern' : ''}`;
  for (const [n, { url }] of upstreams.entries()) {
    const name = mcp('', n === 1).slice('/mcp/'.length);
    await asAdmin(replica(0), 'POST', '/api/targets', { name, transport: 'streamable-http', url });
  }
  const policy = async (at: string, subject: object, more: object = {}): Promise<string> => {
    const { id } = await asAdmin<{ id: string }>(at, 'POST', '/api/policies', {
      name: 'of the new-enemy test',
      resource_type: 'tool',
      effect: 'allow',
      priority: 10,
      subjects: [subject],
      ...more,
    });
    return id;
  };
  const only = ({ id }: Enemy): object => ({ subject_type: 'user', subject_value: id });
  const put = (at: string, { id }: Enemy, body: object) => asAdmin(at, 'PUT', `/api/users/${id}`, body);

  const isIdentity = (kind: Kind): kind is IdentityKind => IDENTITY_KINDS.some((one) => one === kind);
  const ends: (() => unknown)[] = [];
  const scene: Scene = {
    urls,
    asAdmin,
    callOnce,
    teardown: (end) => void ends.push(end),
    allow: (subject_value, subject_type = 'user') => policy(replica(0), { subject_type, subject_value }),
    pathOf: (modern) => mcp('', modern),
  };
  async function right(kind: Kind, who: Enemy): Promise<Right> {
    if (isIdentity(kind)) return identityRight(kind, who, scene);
    switch (kind) {
      case 'policy disabled': {
        const id = await policy(replica(0), only(who));
        const set = (at: string, enabled: boolean) => asAdmin(at, 'PUT', `/api/policies/${id}`, { enabled });
        return { revoke: (at) => set(at, false), restore: (at) => set(at, true) };
      }
      case 'deny added': {
        await policy(replica(0), only(who));
        let deny = '';
        return {
          async revoke(at) {
            deny = await policy(at, only(who), { effect: 'deny', priority: 20 });
          },
          restore: (at) => asAdmin(at, 'DELETE', `/api/policies/${deny}`),
        };
      }
      case 'role changed':
        await policy(replica(0), { subject_type: 'role', subject_value: own });
        await put(replica(0), who, { role: own });
        return { revoke: (at) => put(at, who, { role: 'user' }), restore: (at) => put(at, who, { role: own }) };
      case 'group removed':
        await policy(replica(0), { subject_type: 'group', subject_value: own });
        await put(replica(0), who, { groups: [own, 'others'] });
        return {
          revoke: (at) => put(at, who, { groups: ['others'] }),
          restore: (at) => put(at, who, { groups: [own, 'others'] }),
        };
      case 'token revoked':
        await policy(replica(0), only(who));
        return {
          revoke: (at) => change(at, 'DELETE', `/api/auth/tokens/${who.tokenId}`, who.login),
          restore: async (at) => Object.assign(who, await newToken(at, who.login)),
        };
      case 'user disabled':
        await policy(replica(0), only(who));
        return { revoke: (at) => put(at, who, { enabled: false }), restore: (at) => put(at, who, { enabled: true }) };
      case 'administration taken': {
        // The lane needs a session, although it does not use it.
        await policy(replica(0), only(who));
        const wanted = { subject_type: 'user', subject_value: who.id, right: 'targets:operate' };
        const give = (at: string) => asAdmin<{ id: string }>(at, 'POST', '/api/rights', wanted);
        let { id } = await give(replica(0));
        return {
          revoke: (at) => asAdmin(at, 'DELETE', `/api/rights/${id}`),
          async restore(at) {
            id = (await give(at)).id;
          },
          attempt: (url) => administerOnce(url, who.token),
        };
      }
      case 'last right gone': {
        let id = await policy(replica(0), only(who));
        return {
          revoke: (at) => asAdmin(at, 'DELETE', `/api/policies/${id}`),
          async restore(at) {
            id = await policy(at, only(who));
          },
        };
      }
    }
  }

  /** A session at the target, as soon as its right to it has arrived at the replica. */
  async function sessionAt(address: string, token: string): Promise<string> {
    for (const deadline = performance.now() + RESTORE_MS; ; await sleep(20)) {
      try {
        return await openSession(address, token);
      } catch (error) {
        if (performance.now() > deadline) throw error;
      }
    }
  }

  const zero = (): Record<Kind, number> => Object.fromEntries(KINDS.map((kind) => [kind, 0])) as Record<Kind, number>;
  const revocations = zero();
  const staleOf = zero();
  let calls = 0;
  let errors = 0;
  let lateAllows = 0;

  async function lane(kind: Kind, first: number): Promise<void> {
    const who = await enemy(kind);
    const own = await right(kind, who);
    const token = (modern: boolean): string => own.token?.(modern) ?? who.token;
    const path = (modern: boolean): string => own.path?.(modern) ?? mcp('', modern);
    const session = await sessionAt(replica(0) + path(false), token(false));
    const tool = kind.replaceAll(' ', '-');
    const once = (url: string, inSession: string | null, ticket: string): Promise<Answer> => {
      if (own.attempt) return own.attempt(url, inSession, ticket);
      const modern = inSession === null;
      return callOnce(url + path(modern), token(modern), inSession, tool, ticket);
    };
    for (let round = 0; round < rounds; round++) {
      const modern = round % 2 === 1;
      const inSession = modern ? null : session;
      await Promise.all(
        urls.map(async (url, n) => {
          const deadline = performance.now() + RESTORE_MS;
          for (let tried = 0; ; tried++) {
            const answer = await once(url, inSession, `${kind} ${round} ${n} before ${tried}`);
            if (answer === 'allowed') return;
            if (answer === 'denied' && tried === 0) lateAllows++;
            if (performance.now() > deadline) throw new Error(`${kind}: never allowed again at ${url}, but ${answer}`);
            await sleep(20);
          }
        }),
      );
      await own.revoke(replica(first + round), modern);
      const tickets = urls.map((_, n) => `${kind} ${round} ${n}${AFTER}`);
      const answers = await Promise.all(urls.map((url, n) => once(url, inSession, tickets[n] ?? '')));
      revocations[kind]++;
      for (const [n, answer] of answers.entries()) {
        calls++;
        const ticket = tickets[n] ?? '';
        const hasReached = own.hasReached?.(ticket) ?? received.delete(ticket);
        if (hasReached || answer === 'allowed') staleOf[kind]++;
        else if (answer === 'error') errors++;
      }
      await own.restore(replica(first + round + 1), modern);
    }
  }

  const traffic = { allowed: 0, denied: 0, error: 0 };
  let over = false;
  /** Calls that are allowed, calls that are not, and lists, in turn. */
  async function caller(url: string, who: Enemy): Promise<void> {
    const session = await sessionAt(mcp(url, false), who.token);
    for (let n = 0; !over; n++)
      traffic[await callOnce(mcp(url, false), who.token, session, n % 2 === 0 ? 'ok' : 'no', 'traffic')]++;
  }

  try {
    const bystander = await enemy('bystander');
    await policy(replica(0), only(bystander), { resource_pattern: '^ok$' });
    const running = urls.flatMap((url) => Array.from({ length: callers }, () => caller(url, bystander)));
    const lanes = Promise.all(KINDS.map((kind, n) => lane(kind, n))).finally(() => {
      over = true;
    });
    await Promise.all([lanes, ...running]);
  } finally {
    await Promise.all([...upstreams.map((upstream) => upstream.stop()), ...ends.map((end) => end())]);
  }
  return {
    revocations,
    calls,
    stale: Object.values(staleOf).reduce((sum, n) => sum + n, 0),
    staleOf,
    errors,
    refusedChanges,
    lateAllows,
    traffic,
    seconds: (performance.now() - began) / 1_000,
  };
}

/** A line for people. */
export function scoreLine({
  revocations,
  calls,
  stale,
  staleOf,
  errors,
  refusedChanges,
  lateAllows,
  traffic,
  seconds,
}: Score): string {
  const least = Math.min(...Object.values(revocations));
  const where = Object.entries(staleOf).flatMap(([kind, n]) => (n > 0 ? [`${kind} ${n}`] : []));
  return [
    `${stale} stale allows in ${calls} calls after ${least} revocations of each of ${KINDS.length} kinds`,
    ...(where.length > 0 ? [`(${where.join(', ')})`] : []),
    `${errors} errors, ${lateAllows} late allows, ${refusedChanges} changes refused and repeated;`,
    `traffic ${traffic.allowed} allowed, ${traffic.denied} denied, ${traffic.error} errors; ${seconds.toFixed(0)} s`,
  ].join(' ');
}
