/** The real gateway for tests, with a free port, a new database, and REST calls that check the status. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Log } from '../../src/base/log.ts';
import { type Config, readConfig } from '../../src/config/config.ts';
import { type Database, openDatabase } from '../../src/db/database.ts';
import { createGateway, type Gateway } from '../../src/gateway.ts';
import { createSqlite } from './databases/sqlite.ts';
import { assertConforms } from './openapi.ts';
import { freePort } from './port.ts';

export interface Answer<T> {
  readonly status: number;
  readonly headers: Headers;
  readonly body: T;
}

export interface TestGateway {
  readonly url: string;
  readonly gateway: Gateway;
  /** Calls the REST API and fails the test where the status is another than `expected`. */
  rest<T = unknown>(expected: number, method: string, path: string, options?: RestOptions): Promise<Answer<T>>;
}

export interface RestOptions {
  readonly token?: string;
  readonly body?: unknown;
  readonly headers?: Record<string, string>;
}

export async function rest<T>(
  url: string,
  method: string,
  path: string,
  { token, body, headers }: RestOptions = {},
): Promise<Answer<T>> {
  const answer = await fetch(url + path, {
    method,
    redirect: 'manual',
    headers: {
      ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      ...headers,
    },
    ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
  });
  const text = await answer.text();
  return { status: answer.status, headers: answer.headers, body: (text === '' ? undefined : JSON.parse(text)) as T };
}

/** What a test gives to what it starts, so that a command can give it, too. */
export interface Run {
  teardown(end: () => unknown): void;
  fail(message?: string): void;
}

/** Starts a gateway that ends with the test. `databaseUrl` null: it uses a new SQLite file. */
export async function startGateway(
  t: Run,
  databaseUrl: string | null = null,
  environment: Record<string, string> = {},
  parts: { readonly config?: Partial<Config>; readonly log?: Log; readonly open?: typeof openDatabase } = {},
): Promise<TestGateway> {
  const dataDir = mkdtempSync(join(tmpdir(), 'portcullis-gateway-'));
  const own = databaseUrl === null ? await createSqlite() : null;
  const port = Number(environment['PORT'] ?? (await freePort()));
  const config = readConfig({
    PORT: String(port),
    DATA_DIR: dataDir,
    DATABASE_URL: databaseUrl ?? own?.url,
    MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
    LOG_LEVEL: 'silent',
    LOGIN_RATE_LIMIT: '100000',
    CHANGE_RATE_LIMIT: '100000',
    DRAIN_MS: '500',
    ...environment,
  });
  const gateway = await createGateway({ ...config, ...parts.config }, parts.log, parts.open);
  t.teardown(async () => {
    await gateway.close();
    await own?.drop();
    rmSync(dataDir, { recursive: true, force: true });
  });
  await gateway.listen();
  const url = `http://127.0.0.1:${port}`;
  return {
    url,
    gateway,
    async rest<T>(expected: number, method: string, path: string, options?: RestOptions) {
      const answer = await rest<T>(url, method, path, options);
      if (answer.status !== expected) {
        t.fail(`${method} ${path}: expected ${expected}, got ${answer.status}: ${JSON.stringify(answer.body)}`);
        throw new Error('unexpected status');
      }
      if (path.startsWith('/api/')) assertConforms(method, path, answer.status, answer.body);
      return answer;
    },
  };
}

/** Starts a gateway with a new SQLite file, and also returns its database. */
export async function startGatewayWithDatabase(t: Run): Promise<TestGateway & { readonly database: Database }> {
  let database: Database | undefined;
  const open: typeof openDatabase = async (...given) => {
    database = await openDatabase(...given);
    return database;
  };
  const gateway = await startGateway(t, null, {}, { open });
  if (database === undefined) throw new Error('the gateway has opened no database');
  return { ...gateway, database };
}

export interface Person {
  readonly id: string;
  readonly email: string;
  readonly password: string;
  /** Login token. */
  readonly token: string;
}

/** Registers and logs in; the first person of a gateway becomes its administrator. */
export async function person(gateway: TestGateway, email: string): Promise<Person> {
  const password = `a long passphrase of ${email}`;
  await gateway.rest(201, 'POST', '/api/auth/register', { body: { email, password } });
  const { body } = await gateway.rest<{ user: { id: string }; token: string }>(200, 'POST', '/api/auth/login', {
    body: { email, password },
  });
  return { id: body.user.id, email, password, token: body.token };
}

export async function apiToken(gateway: TestGateway, who: Person, name = 'a client'): Promise<{ id: string; token: string }> {
  const { body } = await gateway.rest<{ api_token: { id: string }; token: string }>(201, 'POST', '/api/auth/tokens', {
    token: who.token,
    body: { name },
  });
  return { id: body.api_token.id, token: body.token };
}
