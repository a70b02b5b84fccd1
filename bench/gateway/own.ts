/** The systems that this repository brings: the target itself, the two proxies, and Portcullis over each database. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type EngineName, engines } from '../../test/support/databases/engines.ts';
import type { Guardian } from '../../test/support/databases/guardian.ts';
import type { Place } from './load-orders.ts';
import { type Started, startNode, startServer } from './processes.ts';
import type { Candidate, Surroundings } from './system.ts';

const ROOT = join(import.meta.dirname, '../..');
const TOOL = 'echo';
const POLICIES = 100;
const TARGET = 'bench';

export const direct = (pid: number): Candidate => ({
  name: 'direct',
  on: 'the target itself',
  start: async ({ upstream }) => ({ url: upstream, headers: {}, tool: TOOL, pid }),
});

const proxy = (name: string, on: string, file: string): Candidate => ({
  name,
  on,
  async start({ guardian, upstream }) {
    const { pid, origin } = await startNode(guardian, file, upstream);
    return { url: `${origin}/mcp`, headers: {}, tool: TOOL, pid };
  },
});

export const bare = proxy('bare proxy', 'nothing', 'bare-proxy.ts');
export const sdk = proxy('SDK server and client', 'nothing', 'sdk-proxy.ts');

export interface ProcessOptions {
  readonly nodeOptions?: readonly string[];
  /** Default: `dist/main.js` as `npm run build` made it. */
  readonly main?: string;
  readonly env?: Readonly<Record<string, string>>;
}

const AS_THE_IMAGE = ['--v8-pool-size=0'];

/** Everything is on: nothing can be switched off. */
export function startProcess(
  guardian: Guardian,
  databaseUrl: string,
  { nodeOptions = [], main = join(ROOT, 'dist/main.js'), env = {} }: ProcessOptions = {},
): Promise<Started> {
  return startServer(guardian, {
    name: 'Portcullis',
    command: process.execPath,
    args: () => [...AS_THE_IMAGE, ...nodeOptions, main],
    env: (port) => ({
      PORT: String(port),
      DATA_DIR: mkdtempSync(join(guardian.folder, 'data-')),
      DATABASE_URL: databaseUrl,
      MCP_RATE_LIMIT: '1000000000',
      API_RATE_LIMIT: '1000000000',
      DENIAL_RATE_LIMIT: '1000000000',
      LOGIN_RATE_LIMIT: '1000',
      ...env,
    }),
    probe: '/health/ready',
  });
}

export interface Portcullis {
  readonly pid: number;
  readonly origin: string;
  /** An administrator's login token. */
  readonly admin: string;
  /** Id of the policy that lets role `user` call. */
  readonly deciding: string;
  /** All use the same target. */
  readonly users: readonly User[];
}

export interface User extends Place {
  readonly email: string;
  readonly id: string;
  /** Login token. */
  readonly login: string;
  /** API token, the one in `headers`. */
  readonly token: string;
}

export interface Api {
  /** Throws unless the gateway answers with a 2xx. */
  call<T>(method: string, path: string, token?: string, body?: unknown): Promise<T>;
  /** Registers, and logs in. */
  logIn(email: string): Promise<{ readonly id: string; readonly token: string }>;
}

export const passwordOf = (email: string): string => `the passphrase of ${email}`;

export function apiAt(origin: string): Api {
  const call: Api['call'] = async <T>(method: string, path: string, token?: string, body?: unknown) => {
    const headers = { 'content-type': 'application/json', ...(token === undefined ? {} : { authorization: `Bearer ${token}` }) };
    const answer = await fetch(origin + path, { method, headers, body: JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
    return (text === '' ? undefined : JSON.parse(text)) as T;
  };
  return {
    call,
    async logIn(email) {
      const account = { email, password: passwordOf(email) };
      const { id } = await call<{ id: string }>('POST', '/api/auth/register', undefined, account);
      return { id, token: (await call<{ token: string }>('POST', '/api/auth/login', undefined, account)).token };
    },
  };
}

export async function startPortcullis(
  { guardian, upstream }: Pick<Surroundings, 'guardian' | 'upstream'>,
  databaseUrl: string,
  { users, policies = POLICIES, ...options }: ProcessOptions & { readonly users: number; readonly policies?: number },
): Promise<Portcullis> {
  const { pid, origin } = await startProcess(guardian, databaseUrl, options);
  const api = apiAt(origin);
  const admin = (await api.logIn('admin@example.com')).token;
  const document = { name: TARGET, transport: 'streamable-http', url: upstream };
  const target = await api.call<{ id: string }>('POST', '/api/targets', admin, document);
  const credential = { type: 'header', name: 'x-api-key', value: randomBytes(16).toString('hex') };
  await api.call('PUT', `/api/targets/${target.id}/credentials/default`, admin, credential);
  let deciding = '';
  for (const policy of policySet(target.id, policies)) {
    deciding = (await api.call<{ id: string }>('POST', '/api/policies', admin, policy)).id;
  }
  const places: User[] = [];
  for (let i = 0; i < users; i++) {
    const email = `user-${i}@example.com`;
    const { id, token: login } = await api.logIn(email);
    const { token } = await api.call<{ token: string }>('POST', '/api/auth/tokens', login, { name: 'bench' });
    places.push({ id, email, login, token, url: `${origin}/mcp/${TARGET}`, headers: { authorization: `Bearer ${token}` } });
  }
  return { pid, origin, admin, deciding, users: places };
}

/** The last lets role `user` call `echo`; the others are of all forms, for this target or every one, for this role and others. */
function policySet(target_id: string, count: number): object[] {
  const patterns = [
    (n: number) => `^tool_${n}$`,
    (n: number) => `^group_${n}_`,
    (n: number) => `^(get|list)_[a-z]+_${n}$`,
    () => null,
  ];
  const others = Array.from({ length: count - 1 }, (_, n) => {
    const pattern = patterns[n % patterns.length]?.(n) ?? null;
    return {
      name: `policy ${n}`,
      resource_type: pattern === null ? 'prompt' : 'tool',
      resource_pattern: pattern,
      effect: n % 5 === 0 ? 'deny' : 'allow',
      priority: (n % 10) * 10,
      target_id: n % 3 === 0 ? null : target_id,
      subjects: [
        n % 2 === 0 ? { subject_type: 'role', subject_value: 'user' } : { subject_type: 'group', subject_value: `group-${n}` },
      ],
    };
  });
  const deciding = {
    name: 'users may echo',
    resource_type: 'tool',
    resource_pattern: '^(echo|ping)$',
    effect: 'allow',
    priority: 50,
    target_id,
    subjects: [{ subject_type: 'role', subject_value: 'user' }],
  };
  return [...others, deciding];
}

export const TITLES: Record<EngineName, string> = { sqlite: 'SQLite', mariadb: 'MariaDB', mysql: 'MySQL' };

/** The server writes it into the folder that the run has given it; one that was there before, or in a container, has none. */
function databasePid(folder: string, engine: EngineName): number | null {
  try {
    return Number(readFileSync(join(folder, engine, 'pid'), 'utf8')) || null;
  } catch {
    return null;
  }
}

export const portcullisOn = (engine: EngineName): Candidate => ({
  name: `Portcullis, ${TITLES[engine]}`,
  on: `API token, ${POLICIES} policies, durable audit, credential`,
  async start(surroundings) {
    const found = engines().find(({ name }) => name === engine);
    if (found === undefined) throw new Error(`${TITLES[engine]} could not be started`);
    const database = await found.create();
    const { pid, users } = await startPortcullis(surroundings, database.url, { users: 1 });
    const [place] = users;
    if (place === undefined) throw new Error('no user');
    const server = databasePid(surroundings.guardian.folder, engine);
    return {
      ...place,
      tool: TOOL,
      pid,
      guarded: true,
      release: database.drop,
      ...(server === null ? {} : { database: { name: TITLES[engine], pid: server } }),
    };
  },
});
