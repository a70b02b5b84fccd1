/** A directory that sends users and groups over SCIM, and the world in which it does. */
import type { ExecutionContext } from 'ava';
import { type Person, person, startGateway, type TestGateway } from '../support/gateway.ts';
import { type Claims, registration, startProvider, type TestProvider } from '../support/provider.ts';

export const USER = 'urn:ietf:params:scim:schemas:core:2.0:User';
export const GROUP = 'urn:ietf:params:scim:schemas:core:2.0:Group';
export const PATCH = 'urn:ietf:params:scim:api:messages:2.0:PatchOp';
export const ERROR = 'urn:ietf:params:scim:api:messages:2.0:Error';

export interface Resource {
  readonly id: string;
  readonly externalId?: string;
  readonly userName?: string;
  readonly displayName?: string;
  readonly active?: boolean;
  readonly name?: Record<string, string>;
  readonly emails?: readonly Record<string, unknown>[];
  readonly members?: readonly { readonly value: string; readonly display: string }[];
  readonly meta: { readonly version: string; readonly location: string; readonly lastModified: string };
}
export interface Listing {
  readonly totalResults: number;
  readonly startIndex: number;
  readonly itemsPerPage: number;
  readonly Resources: readonly Resource[];
}
export interface Refusal {
  readonly schemas: readonly string[];
  readonly status: string;
  readonly scimType?: string;
  readonly detail: string;
}
export interface Reply<T> {
  readonly status: number;
  readonly headers: Headers;
  readonly body: T;
}

export interface Directory {
  readonly token: string;
  readonly base: string;
  /** Sends the request and fails the test if the status is different. */
  send<T = Resource>(
    expected: number,
    method: string,
    path: string,
    body?: unknown,
    headers?: Record<string, string>,
  ): Promise<Reply<T>>;
  /** Creates a user with `externalId` and `userName` made from the name. */
  user(name: string, more?: object): Promise<Resource>;
  group(name: string, members?: readonly Resource[]): Promise<Resource>;
  patch(expected: number, path: string, ...operations: object[]): Promise<Reply<Resource>>;
  /** Returns the resources that meet the filter. */
  find(kind: 'Users' | 'Groups', filter: string): Promise<readonly Resource[]>;
}

export function directoryAt(t: ExecutionContext, base: string, token: string): Directory {
  const directory: Directory = {
    ...{ token, base },
    async send<T>(expected: number, method: string, path: string, body?: unknown, headers: Record<string, string> = {}) {
      const answer = await fetch(base + path, {
        method,
        headers: {
          authorization: `Bearer ${token}`,
          ...(body === undefined ? {} : { 'content-type': 'application/scim+json; charset=utf-8' }),
          ...headers,
        },
        ...(body === undefined ? {} : { body: typeof body === 'string' ? body : JSON.stringify(body) }),
      });
      const text = await answer.text();
      if (answer.status !== expected)
        t.fail(`${method} ${path}: expected ${expected}, got ${answer.status}: ${text.slice(0, 500)}`);
      if (text !== '') t.is(answer.headers.get('content-type'), 'application/scim+json');
      const parsed = (text === '' ? undefined : JSON.parse(text)) as T;
      if (answer.status >= 400) {
        const refusal = parsed as Refusal;
        t.deepEqual([refusal.schemas, refusal.status], [[ERROR], String(answer.status)], `${method} ${path}`);
      }
      return { status: answer.status, headers: answer.headers, body: parsed };
    },
    async user(name, more = {}) {
      const body = { schemas: [USER], externalId: `id-${name}`, userName: `${name}@example.com`, active: true, ...more };
      return (await directory.send(201, 'POST', '/Users', body)).body;
    },
    async group(name, members = []) {
      const body = { schemas: [GROUP], displayName: name, members: members.map(({ id }) => ({ value: id })) };
      return (await directory.send(201, 'POST', '/Groups', body)).body;
    },
    patch: (expected, path, ...operations) =>
      directory.send(expected, 'PATCH', path, { schemas: [PATCH], Operations: operations }),
    async find(kind, filter) {
      const { body } = await directory.send<Listing>(200, 'GET', `/${kind}?filter=${encodeURIComponent(filter)}`);
      t.is(body.totalResults, body.Resources.length);
      return body.Resources;
    },
  };
  return directory;
}

export interface UserRecord {
  readonly id: string;
  readonly subject: string;
  readonly email: string | null;
  readonly role: string;
  readonly groups: readonly string[];
  readonly refusal: string | null;
  readonly enabled: boolean;
}

export interface DirectoryWorld {
  readonly gateway: TestGateway;
  readonly provider: TestProvider;
  readonly admin: Person;
  readonly providerId: string;
  readonly directory: Directory;
  /** Returns the record of the user as an administrator sees it. */
  record(id: string): Promise<UserRecord>;
  /** Presents a token of the provider for the subject `id-<name>`, and returns the status of the answer. */
  signIn(name: string, claims?: Claims): Promise<number>;
}

export async function connectDirectory(t: ExecutionContext, gateway: TestGateway, admin: Person, id: string): Promise<Directory> {
  const { body } = await gateway.rest<{ token: string; base_url: string }>(201, 'POST', `/api/providers/${id}/scim/token`, {
    token: admin.token,
  });
  return directoryAt(t, new URL(new URL(body.base_url).pathname, gateway.url).href, body.token);
}

export async function directoryWorld(
  t: ExecutionContext,
  databaseUrl: string | null = null,
  more: Claims = {},
  parts: Parameters<typeof startGateway>[3] = {},
): Promise<DirectoryWorld> {
  const gateway = await startGateway(t, databaseUrl, {}, parts);
  const provider = await startProvider(t);
  const admin = await person(gateway, 'admin@example.com');
  const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token: admin.token,
    body: registration(provider, { groups_from: 'directory', ...more }),
  });
  return {
    ...{ gateway, provider, admin, providerId: body.id },
    directory: await connectDirectory(t, gateway, admin, body.id),
    record: async (id) => (await gateway.rest<UserRecord>(200, 'GET', `/api/users/${id}`, { token: admin.token })).body,
    async signIn(name, claims = {}) {
      const token = await provider.token({ sub: `id-${name}`, ...claims });
      const answer = await fetch(`${gateway.url}/api/auth/me`, { headers: { authorization: `Bearer ${token}` } });
      await answer.arrayBuffer();
      return answer.status;
    },
  };
}
