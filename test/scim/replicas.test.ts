/** A directory that reaches one replica, and users at another. */
import test, { type ExecutionContext } from 'ava';
import { eachServer } from '../support/databases/each-engine.ts';
import { startGateway } from '../support/gateway.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { registration, seconds, startProvider } from '../support/provider.ts';
import { world } from '../support/world.ts';
import { connectDirectory, type Directory, type Resource } from './support.ts';

/** Two replicas: the directory sends to the first, and alice, of the group Staff, calls the target at the second. */
async function battlefield(t: ExecutionContext, url: string) {
  const w = await world(t, url);
  await w.allow({ name: 'staff', subjects: [{ subject_type: 'group', subject_value: 'Staff' }] });
  const provider = await startProvider(t);
  const { body } = await w.gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token: w.admin.token,
    body: registration(provider, { groups_from: 'directory' }),
  });
  const directory = await connectDirectory(t, w.gateway, w.admin, body.id);
  const other = await startGateway(t, url, { PUBLIC_URL: w.gateway.url });
  const there = `${other.url}/mcp/everything`;
  const alice = await directory.user('alice');
  const staff = await directory.group('Staff', [alice]);
  const token = await provider.token({ sub: 'id-alice', iat: seconds() - 10 });
  const session = await openSession(there, token);
  const mayCall = async (): Promise<boolean> => {
    const answer = await post(there, token, call('echo', { message: 'x' }), { 'mcp-session-id': session });
    return answer.message?.result !== undefined;
  };
  t.true(await mayCall());
  return { directory, alice, staff, token, session, there, mayCall, providerId: body.id, w };
}

type Act = (directory: Directory, alice: Resource, staff: Resource) => Promise<unknown>;
const ENDS: readonly (readonly [what: string, end: Act, undo: Act | null])[] = [
  [
    'a deactivated user',
    (directory, { id }) => directory.patch(200, `/Users/${id}`, { op: 'Replace', path: 'active', value: 'False' }),
    (directory, { id }) => directory.patch(200, `/Users/${id}`, { op: 'Replace', path: 'active', value: 'True' }),
  ],
  [
    'a removed member',
    (directory, { id }, staff) =>
      directory.patch(204, `/Groups/${staff.id}`, { op: 'remove', path: `members[value eq "${id}"]` }),
    (directory, { id }, staff) =>
      directory.patch(204, `/Groups/${staff.id}`, { op: 'add', path: 'members', value: [{ value: id }] }),
  ],
  [
    'a renamed group',
    (directory, _, { id }) => directory.patch(204, `/Groups/${id}`, { op: 'replace', path: 'displayName', value: 'Others' }),
    (directory, _, { id }) => directory.patch(204, `/Groups/${id}`, { op: 'replace', path: 'displayName', value: 'Staff' }),
  ],
  ['a deleted group', (directory, _, { id }) => directory.send(204, 'DELETE', `/Groups/${id}`), null],
  ['a deleted user', (directory, { id }) => directory.send(204, 'DELETE', `/Users/${id}`), null],
];

for (const [what, end, undo] of ENDS) {
  eachServer(test.serial, `${what}: the next call at the other replica is refused`, async (t, at) => {
    const { directory, alice, staff, mayCall } = await battlefield(t, at.url);
    for (let round = 0; round < (undo === null ? 1 : 10); round++) {
      await end(directory, alice, staff);
      t.false(await mayCall(), `round ${round}`);
      await undo?.(directory, alice, staff);
      if (undo !== null) t.true(await mayCall(), `round ${round}, undone`);
    }
  });
}

eachServer(test.serial, 'streams and calls of a deactivated user end within 5 s', async (t, at) => {
  const { directory, alice, token, session, there } = await battlefield(t, at.url);
  const headers = {
    authorization: `Bearer ${token}`,
    accept: 'text/event-stream',
    'mcp-session-id': session,
    'mcp-protocol-version': '2025-11-25',
  };
  const stream = await fetch(there, { headers });
  t.is(stream.status, 200);
  const ended = (async () => {
    const reader = stream.body?.getReader();
    for (;;) if ((await reader?.read())?.done !== false) return 'ended';
  })().catch(() => 'ended');
  const long = { duration: 60, steps: 60 };
  const running = post(there, token, call('trigger-long-running-operation', long), { 'mcp-session-id': session }).catch(
    () => 'ended',
  );
  await directory.patch(200, `/Users/${alice.id}`, { op: 'replace', path: 'active', value: false });
  const answeredAt = performance.now();
  t.is(await ended, 'ended');
  const answer = await running;
  t.true(typeof answer === 'string' || answer.message?.result === undefined);
  t.true(performance.now() - answeredAt < 5_000);
});

eachServer(test.serial, 'a revoked SCIM token is refused by every replica, also in the middle of a change', async (t, at) => {
  const { directory, w, providerId, there, alice } = await battlefield(t, at.url);
  const elsewhere = directory.base.replace(w.gateway.url, new URL(there).origin);
  const send = async (n: number) => {
    const answer = await fetch(`${n % 2 ? elsewhere : directory.base}/Users/${alice.id}`, {
      method: 'PATCH',
      headers: { authorization: `Bearer ${directory.token}`, 'content-type': 'application/scim+json' },
      body: JSON.stringify({
        schemas: ['urn:ietf:params:scim:api:messages:2.0:PatchOp'],
        Operations: [{ op: 'replace', path: 'displayName', value: `n ${n}` }],
      }),
    });
    await answer.arrayBuffer();
    return answer.status;
  };
  const before = Array.from({ length: 10 }, (_, n) => send(n));
  await w.gateway.rest(204, 'DELETE', `/api/providers/${providerId}/scim/token`, { token: w.admin.token });
  const after = await Promise.all([send(100), send(101)]);
  t.deepEqual(after, [401, 401]);
  for (const status of await Promise.all(before)) t.true(status === 200 || status === 401, String(status));
});
