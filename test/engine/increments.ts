/** Administrative changes of every kind in random order. The state of a replica must follow them. */
import { randomUUID } from 'node:crypto';
import type { TokenClaims } from '../../src/auth/principal.ts';
import { createPasswords } from '../../src/auth/sign-in/passwords.ts';
import { tokenStore } from '../../src/auth/token-store.ts';
import { createChanges } from '../../src/db/changes.ts';
import type { Database } from '../../src/db/database.ts';
import { sessionStore } from '../../src/sessions/session-store.ts';
import { userStore } from '../../src/users/user-store.ts';
import { rest } from '../support/gateway.ts';

export interface Account {
  readonly id: string;
  readonly email: string;
  password: string;
  login: string;
}

export interface Administration {
  /** How many kinds of changes there are. */
  readonly kinds: number;
  /** Makes one change, or tries to: of this kind, or a random one. */
  change(kind?: number): Promise<void>;
  readonly accounts: readonly Account[];
  /** Claims of all tokens that were ever made. */
  readonly tokens: readonly TokenClaims[];
  readonly targetIds: ReadonlySet<string>;
}

/** Returns a generator of random numbers below 1 (mulberry32). The same seed gives the same numbers. */
export function randomFrom(seed: number): () => number {
  let at = seed;
  return () => {
    at = (at + 0x6d2b79f5) | 0;
    let t = Math.imul(at ^ (at >>> 15), 1 | at);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4_294_967_296;
  };
}

export function claimsOf(token: string): TokenClaims {
  const [header, payload] = token
    .split('.')
    .slice(0, 2)
    .map((part) => JSON.parse(Buffer.from(part, 'base64url').toString()));
  const { iss, sub, jti, exp = null } = payload;
  return { iss, sub, jti, kid: header.kid, exp, provider: null, resource: null };
}

const ROLES = ['user', 'operator', 'auditor'];
const GROUPS = ['red', 'green', 'blue'];
const HEADERS = ['x-api-key', 'x-tenant'];

/** `url`: of the gateway; `admin`: its administrator, who stays one. */
export async function administration(
  url: string,
  database: Database,
  admin: Account,
  random: () => number,
): Promise<Administration> {
  const accounts: Account[] = [];
  const tokens: TokenClaims[] = [claimsOf(admin.login)];
  const targetIds = new Set<string>();
  const apiTokens: { id: string; login: string }[] = [];
  let made = 0;

  const pick = <T>(from: readonly T[]): T => from[Math.floor(random() * from.length)] as T;
  const some = <T>(from: readonly T[]): T[] => from.filter(() => random() < 0.5);
  const chance = (): boolean => random() < 0.5;

  /** null: it was refused, as changes of things may be that are gone. */
  async function api<T>(method: string, path: string, body?: unknown, token = admin.login): Promise<T | null> {
    const answer = await rest<T>(url, method, `/api${path}`, { token, ...(body === undefined ? {} : { body }) });
    if (answer.status >= 500 || answer.status === 429) {
      throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(answer.body)}`);
    }
    return answer.status < 300 ? answer.body : null;
  }
  const ids = async (path: string): Promise<string[]> => ((await api<{ id: string }[]>('GET', path)) ?? []).map(({ id }) => id);

  async function logIn(account: Account): Promise<void> {
    const { email, password } = account;
    const answer = await api<{ token: string }>('POST', '/auth/login', { email, password });
    if (answer === null) return;
    account.login = answer.token;
    tokens.push(claimsOf(answer.token));
  }
  async function newAccount(): Promise<void> {
    const password = 'a long passphrase';
    const email = `user-${++made}@example.com`;
    const user = await api<{ id: string }>('POST', '/users', { email, password, role: pick(ROLES), groups: some(GROUPS) });
    const account = { id: user?.id ?? '', email, password, login: '' };
    accounts.push(account);
    await logIn(account);
  }
  async function newToken(): Promise<void> {
    const { login } = pick(accounts);
    const token = await api<{ api_token: { id: string }; token: string }>('POST', '/auth/tokens', { name: 'a client' }, login);
    if (token === null) return;
    tokens.push(claimsOf(token.token));
    apiTokens.push({ id: token.api_token.id, login });
  }

  /** Returns one of two addresses, because moving a target away and back disables its credentials. */
  const place = (): string => `http://127.0.0.1:${pick([9, 19])}/mcp`;
  async function newTarget(): Promise<void> {
    const user_credentials = some(HEADERS).map((name) => ({ type: 'header', name }));
    const body = {
      name: `target-${++made}`,
      transport: 'streamable-http',
      url: place(),
      enabled: random() < 0.8,
      user_credentials,
    };
    const target = await api<{ id: string }>('POST', '/targets', body);
    if (target !== null) targetIds.add(target.id);
  }
  async function ofTarget(work: (id: string) => Promise<unknown>): Promise<void> {
    const [id] = [pick(await ids('/targets'))];
    if (id !== undefined) await work(id);
  }
  const subject = (): string => pick(['default', `role/${pick(ROLES)}`, `group/${pick(GROUPS)}`, `user/${pick(accounts).id}`]);
  const secret = () =>
    chance() ? { type: 'bearer', value: `secret-${++made}` } : { type: 'header', name: pick(HEADERS), value: `secret-${++made}` };
  async function own(method: 'PUT' | 'DELETE'): Promise<void> {
    const { login } = pick(accounts);
    const known = await api<{ target: string; name: string }[]>('GET', '/credentials', undefined, login);
    const key = pick(known ?? []);
    if (key === undefined) return;
    await api(method, `/credentials/${key.target}/${key.name}`, method === 'PUT' ? { value: `own-${++made}` } : undefined, login);
  }

  const policyBody = () => ({
    name: `policy ${++made}`,
    resource_type: pick(['tool', 'resource', 'all']),
    resource_pattern: pick([null, '^get_', 'delete$']),
    effect: random() < 0.8 ? 'allow' : 'deny',
    priority: Math.floor(random() * 5),
    subjects: [policySubject()],
  });
  const policySubject = (): object =>
    pick([
      { subject_type: 'everyone' },
      { subject_type: 'role', subject_value: pick(ROLES) },
      { subject_type: 'group', subject_value: pick(GROUPS) },
      { subject_type: 'user', subject_value: pick(accounts).id },
    ]);
  const files = () => ({
    [`file-${pick([1, 2, 3])}.yaml`]: `name: File ${++made}\nresource_type: tool\neffect: allow\npriority: 3\nsubjects: [everyone]\n`,
  });
  async function ofPolicy(work: (id: string) => Promise<unknown>): Promise<void> {
    const id = pick(await ids('/policies'));
    if (id !== undefined) await work(id);
  }
  async function rollBack(): Promise<void> {
    const history = await api<{ revision: number }[]>('GET', '/policies/history');
    await api('POST', '/policies/rollback', { revision: pick(history ?? [])?.revision ?? 0 });
  }

  const sessions = sessionStore(database.knex);
  async function newSession(): Promise<void> {
    const id = randomUUID();
    const client = { capabilities: {}, clientInfo: {} };
    const row = {
      id,
      issuer: 'portcullis',
      user_id: pick(accounts).id,
      target_id: null,
      revision: '2025-11-25',
      client,
      holder: null,
    };
    await sessions.insert({ ...row, created_at: Date.now(), seen_at: Date.now() });
  }
  async function endSession(): Promise<void> {
    await newSession();
    await api('DELETE', `/sessions/${pick(await ids('/sessions'))}`);
  }
  const recycled = (): object => {
    const target_id = pick([...targetIds]);
    const user_id = pick(accounts).id;
    return pick([{ all: true }, { user_id }, { target_id }, { user_id, target_id }]);
  };

  async function changePassword(): Promise<void> {
    const account = pick(accounts);
    const new_password = `a long passphrase ${++made}`;
    const body = { current_password: account.password, new_password };
    if ((await api('PUT', '/auth/password', body, account.login)) !== null) account.password = new_password;
  }
  /** Does what `portcullis user reset-password` does on the host. */
  async function resetPassword(): Promise<void> {
    const account = pick(accounts);
    const { id } = account;
    account.password = `a long passphrase ${++made}`;
    const passwordHash = await createPasswords().hash(account.password, 'test');
    const changes = await createChanges(database, Date.now);
    await changes.change({ id: 'host', email: 'root', request_id: randomUUID() }, async (trx) => {
      await userStore(trx).setPasswordHash(id, passwordHash, Date.now());
      await tokenStore(trx).revokeLoginsOf([id], null, Date.now());
      const change = { action: 'user.reset-password', object_id: id, before: null, after: null } as const;
      return { result: null, changes: [change] };
    });
  }
  const name = (): string => pick(['one', 'two']);

  const kinds: readonly (() => Promise<unknown>)[] = [
    newAccount,
    () => api('PUT', `/users/${pick(accounts).id}`, { role: pick(ROLES) }),
    () => api('PUT', `/users/${pick(accounts).id}`, { groups: some(GROUPS) }),
    () => api('PUT', `/users/${pick(accounts).id}`, { enabled: random() < 0.7 }),
    () => logIn(pick(accounts)),
    () => api('POST', '/auth/logout', undefined, pick(accounts).login),
    changePassword,
    resetPassword,
    newToken,
    newToken,
    () => {
      const token = pick(apiTokens);
      return token === undefined
        ? newToken()
        : api('DELETE', `/auth/tokens/${token.id}`, undefined, pick([token.login, admin.login]));
    },
    () => api('POST', '/keys/rotate'),
    () => api('POST', '/logs/erase', { user_id: pick(accounts).id }),
    newTarget,
    () => ofTarget((id) => api('PUT', `/targets/${id}`, { name: `target-${++made}` })),
    () => ofTarget((id) => api('PUT', `/targets/${id}`, { enabled: random() < 0.7 })),
    () => ofTarget((id) => api('PUT', `/targets/${id}`, { url: place() })),
    () =>
      ofTarget((id) =>
        api('PUT', `/targets/${id}`, { user_credentials: some(HEADERS).map((it) => ({ type: 'header', name: it })) }),
      ),
    () => ofTarget((id) => api('DELETE', `/targets/${id}`)),
    () => ofTarget((id) => api('PUT', `/targets/${id}/credentials/${subject()}`, secret())),
    () => ofTarget((id) => api('PUT', `/targets/${id}/credentials/${subject()}`, secret())),
    () => ofTarget((id) => api('DELETE', `/targets/${id}/credentials/${subject()}`)),
    () => own('PUT'),
    () => own('PUT'),
    () => own('DELETE'),
    () => api('POST', '/policies', policyBody()),
    () => api('POST', '/policies', { ...policyBody(), effect: 'allow', priority: 9, subjects: [{ subject_type: 'everyone' }] }),
    () =>
      ofPolicy((id) => api('PUT', `/policies/${id}?override=true`, { enabled: chance(), priority: Math.floor(random() * 5) })),
    () => ofPolicy((id) => api('POST', `/policies/${id}/subjects?override=true`, policySubject())),
    () => ofPolicy((id) => api('DELETE', `/policies/${id}?override=true`)),
    () => api('POST', '/policies/apply', { files: files() }),
    rollBack,
    () => api('PUT', `/policies/drafts/${name()}`, { files: files() }),
    () => api('PUT', `/policies/drafts/${name()}/shadow`),
    () => api('DELETE', `/policies/drafts/${name()}/shadow`),
    () => api('POST', `/policies/drafts/${name()}/activate`),
    () => api('DELETE', `/policies/drafts/${name()}`),
    endSession,
    () => api('POST', '/sessions/recycle', recycled()),
    () => api('POST', `/users/${pick(accounts).id}/recycle`),
  ];

  for (let i = 0; i < 3; i++) await newAccount();
  await newTarget();
  return {
    accounts,
    tokens,
    targetIds,
    kinds: kinds.length,
    async change(kind = Math.floor(random() * kinds.length)) {
      await kinds[kind]?.();
    },
  };
}
