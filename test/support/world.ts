/** A gateway with an administrator, a user, and a recorded target: what most tests of the whole begin with. */
import type { ExecutionContext } from 'ava';
import { apiToken, type Person, person, startGateway, type TestGateway } from './gateway.ts';
import { type Recorder, record } from './recorder.ts';
import { sharedEverything } from './upstreams/everything.ts';

export interface World {
  readonly gateway: TestGateway;
  readonly admin: Person;
  readonly user: Person;
  /** API token of `user`. */
  readonly token: string;
  readonly target: { readonly id: string; readonly recorder: Recorder };
  /** The target's address at the gateway. */
  readonly mcp: string;
  allow(policy: Partial<PolicyBody> & { name: string }): Promise<{ id: string }>;
}

export interface PolicyBody {
  readonly name: string;
  readonly resource_type: string;
  readonly resource_pattern: string | null;
  readonly effect: string;
  readonly priority: number;
  readonly target_id: string | null;
  readonly subjects: readonly object[];
}

export async function world(
  t: ExecutionContext,
  databaseUrl: string | null = null,
  upstream: string | null = null,
  environment: Record<string, string> = {},
): Promise<World> {
  const recorder = await record(t, upstream ?? (await sharedEverything()).url);
  const gateway = await startGateway(t, databaseUrl, environment);
  const admin = await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  const { token } = await apiToken(gateway, user);
  const { body: target } = await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
    token: admin.token,
    body: { name: 'everything', transport: 'streamable-http', url: recorder.url },
  });
  return {
    gateway,
    admin,
    user,
    token,
    target: { id: target.id, recorder },
    mcp: `${gateway.url}/mcp/everything`,
    async allow(policy) {
      const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/policies', {
        token: admin.token,
        body: { resource_type: 'all', effect: 'allow', priority: 10, subjects: [{ subject_type: 'everyone' }], ...policy },
      });
      return body;
    },
  };
}
