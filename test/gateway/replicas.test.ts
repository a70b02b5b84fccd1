import test, { type ExecutionContext } from 'ava';
import { eachEngine, eachServer } from '../support/databases/each-engine.ts';
import { rest, startGateway } from '../support/gateway.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { type World, world } from '../support/world.ts';

/** Whether `token` may call echo through the gateway at `mcp`, without opening a new session. */
async function mayCall(mcp: string, token: string, session: string): Promise<boolean> {
  const answer = await post(mcp, token, call('echo', { message: 'x' }), { 'mcp-session-id': session });
  return answer.message?.result !== undefined;
}

type Revocation = readonly [what: string, revoke: (w: World, made: { policy: string; token: string }) => Promise<unknown>];

const asAdmin = (w: World, method: string, path: string, body?: unknown) =>
  rest(w.gateway.url, method, path, { token: w.admin.token, ...(body === undefined ? {} : { body }) });

const REVOCATIONS: readonly Revocation[] = [
  ['a policy disabled', (w, { policy }) => asAdmin(w, 'PUT', `/api/policies/${policy}`, { enabled: false })],
  ['a policy deleted', (w, { policy }) => asAdmin(w, 'DELETE', `/api/policies/${policy}`)],
  [
    'a deny added',
    (w) =>
      asAdmin(w, 'POST', '/api/policies', {
        name: 'no',
        resource_type: 'all',
        effect: 'deny',
        priority: 99,
        subjects: [{ subject_type: 'everyone' }],
      }),
  ],
  ['a role changed', (w) => asAdmin(w, 'PUT', `/api/users/${w.user.id}`, { role: 'other' })],
  ['a user disabled', (w) => asAdmin(w, 'PUT', `/api/users/${w.user.id}`, { enabled: false })],
  ['a token revoked', (w, { token }) => rest(w.gateway.url, 'DELETE', `/api/auth/tokens/${token}`, { token: w.user.token })],
  ['a target disabled', (w) => asAdmin(w, 'PUT', `/api/targets/${w.target.id}`, { enabled: false })],
];

async function revokeAndCall(t: ExecutionContext, url: string, [what, revoke]: Revocation): Promise<void> {
  const w = await world(t, url);
  const other = await startGateway(t, url);
  const { id: policy } = await w.allow({ name: 'users', subjects: [{ subject_type: 'role', subject_value: 'user' }] });
  const { body: tokens } = await w.gateway.rest<{ id: string }[]>(200, 'GET', '/api/auth/tokens', { token: w.user.token });
  const there = `${other.url}/mcp/everything`;
  const session = await openSession(w.mcp, w.token);
  t.true(await mayCall(w.mcp, w.token, session));
  t.true(await mayCall(there, w.token, session), 'a session is good on every replica');

  const answered = (await revoke(w, { policy, token: tokens[0]?.id ?? '' })) as { status: number };
  t.true(answered.status < 300, JSON.stringify(answered));
  const [here, elsewhere] = await Promise.all([mayCall(w.mcp, w.token, session), mayCall(there, w.token, session)]);
  t.deepEqual([here, elsewhere], [false, false], what);
}

for (const revocation of REVOCATIONS) {
  eachServer(test.serial, `${revocation[0]}: the next call is refused on every replica`, async (t, at) => {
    await revokeAndCall(t, at.url, revocation);
  });
}

eachEngine(
  test.serial,
  'fifty simultaneous first registrations over all replicas make one administrator',
  async (t, at, engine) => {
    const environment = { LOGIN_RATE_LIMIT: '1000' };
    const gateways = [await startGateway(t, at.url, environment)];
    if (engine !== 'sqlite')
      gateways.push(await startGateway(t, at.url, environment), await startGateway(t, at.url, environment));
    const answers = await Promise.all(
      Array.from({ length: 50 }, async (_, i) => {
        const url = gateways[i % gateways.length]?.url ?? '';
        const answer = await rest<{ role: string }>(url, 'POST', '/api/auth/register', {
          body: { email: `u${i}@example.com`, password: 'a long passphrase' },
        });
        t.is(answer.status, 201, JSON.stringify(answer.body));
        return answer.body.role;
      }),
    );
    t.is(answers.filter((role) => role === 'admin').length, 1);
    t.is(answers.filter((role) => role === 'user').length, 49);
  },
);

eachEngine(test.serial, 'the status shows each live replica and its position', async (t, { url }) => {
  const w = await world(t, url);
  const other = url.startsWith('mysql') ? await startGateway(t, url) : null;
  await w.allow({ name: 'one' });
  // A change that a replica alone on its database follows without a load.
  const groups = ['later'];
  await w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body: { groups } });
  interface Status {
    readonly sequence: number;
    readonly revision: number;
    readonly replicas: readonly {
      id: string;
      this: boolean;
      sequence: number;
      revision: number;
      lag: number;
      engine_hash: string;
    }[];
  }
  const { body } = await w.gateway.rest<Status>(200, 'GET', '/api/status', { token: w.admin.token });
  t.is(body.replicas.length, other === null ? 1 : 2);
  const [own, ...more] = body.replicas.filter((replica) => replica.this);
  t.deepEqual([own?.sequence, own?.revision, own?.lag, more.length], [body.sequence, body.revision, 0, 0]);
  t.is(new Set(body.replicas.map(({ engine_hash }) => engine_hash)).size, 1);
  t.is((await rest(w.gateway.url, 'GET', '/api/status', { token: w.user.token })).status, 403);
  t.is((await rest(w.gateway.url, 'GET', '/api/status')).status, 401);
});
