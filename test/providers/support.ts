/** A gateway with a provider of the tests, an administrator, and what tests ask of them. */
import type { ExecutionContext } from 'ava';
import { person, rest, startGateway, type TestGateway } from '../support/gateway.ts';
import { type Claims, registration, startProvider, type TestProvider } from '../support/provider.ts';

export interface User {
  readonly id: string;
  readonly issuer: string;
  readonly subject: string;
  readonly email: string | null;
  readonly role: string;
  readonly groups: readonly string[];
  readonly given_role: string | null;
  readonly given_groups: readonly string[];
  readonly refusal: string | null;
  readonly enabled: boolean;
}
export interface Health {
  readonly status: string;
  readonly failure: { readonly message: string } | null;
  readonly keys: readonly { readonly kid: string }[];
  readonly faults: readonly { readonly kind: string; readonly message: string; readonly count: number }[];
}
export interface ProviderDocument {
  readonly id: string;
  readonly client_secret_set: boolean;
}

export interface World {
  readonly gateway: TestGateway;
  readonly provider: TestProvider;
  readonly admin: string;
  readonly id: string;
  /** Changes the provider. */
  set(body: Claims): Promise<void>;
  /** Returns who the gateway says the bearer is. */
  me(token: string): Promise<{ readonly status: number; readonly user: User; readonly detail: string }>;
  user(id: string): Promise<User>;
  health(): Promise<Health>;
}

export async function world(t: ExecutionContext, more: Claims = {}, databaseUrl: string | null = null): Promise<World> {
  const gateway = await startGateway(t, databaseUrl);
  const provider = await startProvider(t);
  const { token: admin } = await person(gateway, 'admin@example.com');
  const made = await gateway.rest<ProviderDocument>(201, 'POST', '/api/providers', {
    token: admin,
    body: registration(provider, more),
  });
  const { id } = made.body;
  const get = async <T>(path: string): Promise<T> => (await gateway.rest<T>(200, 'GET', path, { token: admin })).body;
  return {
    ...{ gateway, provider, admin, id },
    async set(body) {
      await gateway.rest(200, 'PUT', `/api/providers/${id}`, { token: admin, body });
    },
    async me(token) {
      const { status, body } = await rest<User & { detail: string }>(gateway.url, 'GET', '/api/auth/me', { token });
      return { status, user: body, detail: body.detail };
    },
    user: (userId) => get(`/api/users/${userId}`),
    health: () => get(`/api/providers/${id}/health`),
  };
}
