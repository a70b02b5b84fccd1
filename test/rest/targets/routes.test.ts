import test from 'ava';
import type { CredentialJson } from '../../../src/targets/credentials.ts';
import type { TargetJson } from '../../../src/targets/document.ts';
import { policyBody } from '../../policies/policies.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { type Person, person, startGateway, type TestGateway } from '../../support/gateway.ts';

const NOBODY = '0190163d-8694-739b-aea5-966c26f8ad90';

const caller =
  (gateway: TestGateway, who: Person, all: string[] = []) =>
  async <T>(expected: number, method: string, path: string, body?: unknown, headers: Record<string, string> = {}) => {
    const answer = await gateway.rest<T>(expected, method, `/api${path}`, {
      token: who.token,
      headers,
      ...(body === undefined ? {} : { body }),
    });
    all.push(JSON.stringify(answer.body ?? ''));
    return answer;
  };

eachEngine(test.serial, 'a target can be registered, read and changed, and deleted when no policy names it', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const call = caller(gateway, await person(gateway, 'admin@example.com'));
  const url = 'http://127.0.0.1:9/mcp';
  const created = await call<TargetJson>(201, 'POST', '/targets', { name: 'one', url });
  const { id } = created.body;
  t.like(created.body, { name: 'one', url, description: null, transport: 'streamable-http', enabled: true });
  t.is(created.headers.get('location'), `/api/targets/${id}`);
  const read = await call<TargetJson>(200, 'GET', `/targets/${id}`);
  t.deepEqual(read.body, created.body);
  t.is(read.headers.get('etag'), created.headers.get('etag'));
  t.deepEqual((await call(200, 'PUT', `/targets/${id}`, read.body)).body, read.body);

  t.like((await call(409, 'POST', '/targets', { name: 'one', url })).body, { code: 'target_name_taken' });
  const two = (await call<TargetJson>(201, 'POST', '/targets', { name: 'two', url })).body;
  t.like((await call(409, 'PUT', `/targets/${two.id}`, { name: 'one' })).body, { code: 'target_name_taken' });
  t.deepEqual((await call(200, 'GET', '/targets')).body, [read.body, two]);
  const page = await call<TargetJson[]>(200, 'GET', '/targets?limit=1');
  t.deepEqual(page.body, [read.body]);
  const next = /^<\/api(.*)>; rel="next"$/.exec(page.headers.get('link') ?? '')?.[1] ?? '';
  t.deepEqual((await call(200, 'GET', next)).body, [two]);

  const etag = read.headers.get('etag') ?? '';
  const put = await call<TargetJson>(
    200,
    'PUT',
    `/targets/${id}`,
    { description: 'The first', enabled: false },
    { 'if-match': etag },
  );
  t.like(put.body, { description: 'The first', enabled: false, name: 'one' });
  await call(412, 'PUT', `/targets/${id}`, { enabled: true }, { 'if-match': etag });
  await call(412, 'DELETE', `/targets/${id}`, undefined, { 'if-match': etag });
  await call(400, 'PUT', `/targets/${id}`, { id: NOBODY });
  await call(400, 'PUT', `/targets/${id}`, { updated_at: read.body.updated_at });
  await call(400, 'POST', '/targets', { name: 'three', url, transport: 'stdio' });

  const policy = (await call<{ id: string }>(201, 'POST', '/policies', policyBody({ target_id: id }))).body;
  t.like((await call(409, 'DELETE', `/targets/${id}`)).body, { code: 'target_in_use' });
  await call(204, 'DELETE', `/policies/${policy.id}`);
  await call(204, 'DELETE', `/targets/${id}`);
  for (const [method, path, body] of [
    ['GET', ''],
    ['PUT', '', {}],
    ['DELETE', ''],
    ['GET', '/credentials'],
    ['PUT', '/credentials/default', { type: 'bearer', value: 'v' }],
    ['DELETE', '/credentials/default'],
    ['PUT', '/credentials/group/dev', { type: 'bearer', value: 'v' }],
    ['DELETE', '/credentials/group/dev'],
  ] as const) {
    await call(404, method, `/targets/${id}${path}`, body);
  }
  await call(400, 'POST', '/policies', policyBody({ target_id: id }));
  const { body: changes } = await call<{ action: string }[]>(200, 'GET', '/changes');
  t.deepEqual(
    changes.filter(({ action }) => action.startsWith('target')).map(({ action }) => action),
    ['target.delete', 'target.update', 'target.create', 'target.create'],
  );
});

eachEngine(test.serial, 'a credential can be set but never read, and a change of the address disables it', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const seen: string[] = [];
  const call = caller(gateway, await person(gateway, 'admin@example.com'), seen);
  const { id } = (await call<TargetJson>(201, 'POST', '/targets', { name: 'one', url: 'http://127.0.0.1:9/mcp' })).body;
  const path = `/targets/${id}/credentials`;
  t.deepEqual((await call(200, 'GET', path)).body, []);
  await call(404, 'DELETE', `${path}/default`);

  const set = await call<CredentialJson>(201, 'PUT', `${path}/default`, { type: 'bearer', value: 'hunter2' });
  t.like(set.body, { subject_type: 'default', subject_value: null, type: 'bearer', name: 'authorization', usable: true });
  t.deepEqual((await call(200, 'GET', path)).body, [set.body]);
  const again = await call<CredentialJson>(200, 'PUT', `${path}/default`, { type: 'bearer', value: 'hunter2 again' });
  t.like(again.body, { created_at: set.body.created_at, usable: true });
  const basic = await call<CredentialJson>(200, 'PUT', `${path}/default`, {
    ...{ type: 'header', name: 'Authorization', value: 'hunter2' },
  });
  t.like(basic.body, { type: 'header', name: 'authorization', supplied_by: 'administrator' });
  const other = await call<CredentialJson>(201, 'PUT', `${path}/default`, { type: 'header', name: 'X-Key', value: 'hunter2' });
  t.like(other.body, { type: 'header', name: 'x-key', usable: true });
  t.deepEqual((await call(200, 'GET', path)).body, [basic.body, other.body]);
  await call(400, 'PUT', `${path}/default`, { type: 'env', name: 'KEY', value: 'hunter2' });
  await call(404, 'DELETE', `${path}/default?name=x-other`);
  await call(400, 'DELETE', `${path}/default?nam=x-key`);
  await call(400, 'DELETE', `${path}/default?name=`);
  await call(204, 'DELETE', `${path}/default?name=x-key`);
  await call(400, 'PUT', `${path}/default`, { type: 'header', name: 'Cookie', value: 'hunter2' });
  await call(400, 'PUT', `${path}/default`, { type: 'bearer', value: 'hunter2\n' });

  const usable = async (): Promise<boolean | undefined> => (await call<CredentialJson[]>(200, 'GET', path)).body[0]?.usable;
  await call(200, 'PUT', `/targets/${id}`, { description: 'the same place' });
  t.true(await usable());
  await call(200, 'PUT', `/targets/${id}`, { url: 'http://127.0.0.1:9/other' });
  t.false(await usable());
  await call(200, 'PUT', `/targets/${id}`, { url: 'http://127.0.0.1:9/mcp' });
  t.false(await usable());
  await call(200, 'PUT', `${path}/default`, { type: 'bearer', value: 'hunter2' });
  t.true(await usable());
  await call(200, 'PUT', `/targets/${id}`, { url: 'http://127.0.0.1:10/mcp' });
  t.false(await usable());
  await call(200, 'PUT', `/targets/${id}`, { url: 'http://127.0.0.1:9/mcp' });
  t.false(await usable());
  await call(200, 'PUT', `${path}/default`, { type: 'bearer', value: 'hunter2' });
  t.true(await usable());
  await call(204, 'DELETE', `${path}/default`);
  t.deepEqual((await call(200, 'GET', path)).body, []);
  await call(200, 'GET', '/changes');
  t.false(seen.join().includes('hunter2'));
  t.true(seen.join().includes('credential.set'));
});

test.serial('only administrators see the health of a target, as the replica that answers has seen it', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const call = caller(gateway, admin);
  const made = (await call<TargetJson>(201, 'POST', '/targets', { name: 'one', url: 'http://127.0.0.1:1/mcp' })).body;
  await call(201, 'POST', '/policies', policyBody({ target_id: made.id, resource_type: 'all', resource_pattern: null }));
  const health = async () => (await call<{ replica: string }>(200, 'GET', `/targets/${made.id}/health`)).body;
  const unknown = await health();
  t.like(unknown, { status: 'unknown', last_success_at: null, last_fault: null, retry_at: null });
  const replicas = (await call<{ replicas: { id: string; this: boolean }[] }>(200, 'GET', '/status')).body.replicas;
  t.is(unknown.replica, String(replicas.find((one) => one.this)?.id));
  const opening = { jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } };
  const answer = await fetch(`${gateway.url}/mcp/one`, {
    method: 'POST',
    headers: {
      ...{ authorization: `Bearer ${admin.token}`, 'content-type': 'application/json' },
      accept: 'application/json, text/event-stream',
    },
    body: JSON.stringify(opening),
  });
  t.regex(await answer.text(), /cannot be reached"/);
  const failing = await health();
  t.like(failing, { status: 'failing', last_fault: { kind: 'unreachable', stderr: null } });
  t.regex(JSON.stringify(failing), /ECONNREFUSED 127.0.0.1:1/);
  // The health is not a member of the target, so the target can be put back as it was read.
  t.deepEqual((await call(200, 'GET', `/targets/${made.id}`)).body, made);
  await call(200, 'PUT', `/targets/${made.id}`, made);
  await call(200, 'PUT', `/targets/${made.id}`, { timeout_ms: 5_000 });
  t.like((await call(200, 'GET', `/targets/${made.id}`)).body, { timeout_ms: 5_000 });
  for (const timeout_ms of [0, 999, 86_400_001, 1.5, '5000']) await call(400, 'PUT', `/targets/${made.id}`, { timeout_ms });
  await call(200, 'PUT', `/targets/${made.id}`, { timeout_ms: null });
  await call(404, 'GET', '/targets/0190163d-8694-739b-aea5-966c26f8ad90/health');
  const user = caller(gateway, await person(gateway, 'user@example.com'));
  await user(403, 'GET', `/targets/${made.id}/health`);
});

test.serial('a target with a denied address is refused, unless an operator allows the address', async (t) => {
  const gateway = await startGateway(t, null, { UPSTREAM_ALLOWED_ADDRESSES: '100.100.100.200' });
  const call = caller(gateway, await person(gateway, 'admin@example.com'));
  for (const host of [
    ...['169.254.169.254', '0xa9fea9fe', '2852039166', '0251.0376.0251.0376', '192.0.0.192', '[fe80::1]', '[febf::1]'],
    ...['[::ffff:169.254.169.254]', '[64:ff9b::169.254.169.254]', '[64:ff9b:1::a9fe:a9fe]', '[fd00:ec2::254]'],
  ]) {
    const body = { name: 'one', url: `http://${host}/latest/meta-data` };
    const refused = await call<{ detail: string }>(400, 'POST', '/targets', body);
    t.regex(refused.body.detail, /^url: .*UPSTREAM_ALLOWED_ADDRESSES/, host);
  }
  const made = await call<TargetJson>(201, 'POST', '/targets', { name: 'one', url: 'http://100.100.100.200/' });
  await call(400, 'PUT', `/targets/${made.body.id}`, { url: 'http://168.63.129.16/' });
  await call(200, 'PUT', `/targets/${made.body.id}`, { enabled: false });
});

eachEngine(test.serial, 'a target may be a process that the configuration allows', async (t, at) => {
  const gateway = await startGateway(t, at.url, { STDIO_ALLOWED: '/bin/server, /bin/other' });
  const call = caller(gateway, await person(gateway, 'admin@example.com'));
  const body = { name: 'local', transport: 'stdio', command: '/bin/server', args: ['-x'], env: { A: 'b' }, isolation: 'shared' };
  for (const command of ['/bin/sh', '/bin/Server', '/bin/../bin/server', '/bin//server', '/bin/server ']) {
    const refused = await call<{ detail: string }>(400, 'POST', '/targets', { ...body, command });
    t.regex(refused.body.detail, /^command: .*STDIO_ALLOWED.*operator/);
  }
  const { body: made } = await call<TargetJson>(201, 'POST', '/targets', body);
  t.like(made, { ...body, cwd: null });
  t.false('url' in made);
  const path = `/targets/${made.id}`;
  t.deepEqual((await call(200, 'GET', path)).body, made);
  t.deepEqual((await call(200, 'PUT', path, made)).body, made);
  await call(400, 'PUT', path, { command: '/bin/sh' });
  await call(400, 'PUT', path, { url: 'http://127.0.0.1:9/' });
  const usable = async () => (await call<CredentialJson[]>(200, 'GET', `${path}/credentials`)).body.map((one) => one.usable);
  const set = () => call(200, 'PUT', `${path}/credentials/default`, { type: 'env', name: 'KEY', value: 'v' });
  await call(201, 'PUT', `${path}/credentials/default`, { type: 'env', name: 'KEY', value: 'v' });
  for (const [change, stays] of [
    [{ args: ['-y'] }, false],
    [{ command: '/bin/other' }, false],
    [{ env: { A: 'c' } }, false],
    [{ env: { A: 'c', GITHUB_HOST: 'evil.example' } }, false],
    [{ env: { NODE_OPTIONS: '--import=/tmp/x' } }, false],
    [{ isolation: 'per_user', denials: 'hidden' }, true],
  ] as const) {
    await call(200, 'PUT', path, change);
    t.deepEqual(await usable(), [stays], JSON.stringify(change));
    await set();
  }
  // A credential is a variable, too, and some variables say where the others are sent.
  for (const [name, stays] of [
    ['OTHER_KEY', true],
    ['GITHUB_HOST', false],
    ['NODE_OPTIONS', false],
  ] as const) {
    await set();
    const others = async () =>
      (await call<CredentialJson[]>(200, 'GET', `${path}/credentials`)).body.filter((one) => one.name === 'KEY');
    await call(201, 'PUT', `${path}/credentials/user/u`, { type: 'env', name, value: 'v' });
    t.like(await others(), [{ usable: stays }], name);
    await set();
    await call(204, 'DELETE', `${path}/credentials/user/u`);
    t.like(await others(), [{ usable: stays }], `without ${name}`);
  }
  const moved = await call<TargetJson>(200, 'PUT', path, { transport: 'sse', url: 'http://127.0.0.1:9/sse' });
  t.false('command' in moved.body);
  t.deepEqual(await usable(), [false]);
  await call(200, 'PUT', path, { transport: 'streamable-http' });
  await call(400, 'PUT', path, { transport: 'stdio' });
  t.deepEqual((await call(200, 'GET', path)).headers.get('etag'), (await call(200, 'PUT', path, {})).headers.get('etag'));
  await call(400, 'PUT', path, { transport: 'stdio', command: '/bin/sh' });
});

eachEngine(test.serial, 'a policy and the deletion of its target cannot both succeed', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const call = caller(gateway, admin);
  for (let round = 0; round < 5; round++) {
    const { id } = (await call<TargetJson>(201, 'POST', '/targets', { name: `t${round}`, url: 'http://127.0.0.1:9/' })).body;
    const raw = async (method: string, path: string, body?: object) =>
      (
        await fetch(`${gateway.url}/api${path}`, {
          method,
          headers: { authorization: `Bearer ${admin.token}`, ...(body ? { 'content-type': 'application/json' } : {}) },
          ...(body ? { body: JSON.stringify(body) } : {}),
        })
      ).status;
    const statuses = await Promise.all([
      raw('POST', '/policies', policyBody({ target_id: id })),
      raw('DELETE', `/targets/${id}`),
    ]);
    t.true(['201,409', '400,204'].includes(String(statuses)), String(statuses));
  }
});

test.serial('only administrators with a token may use the target routes', async (t) => {
  const gateway = await startGateway(t);
  await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  for (const [method, path] of [
    ['GET', ''],
    ['POST', ''],
    ['GET', `/${NOBODY}`],
    ['PUT', `/${NOBODY}`],
    ['DELETE', `/${NOBODY}`],
    ['GET', `/${NOBODY}/credentials`],
    ['PUT', `/${NOBODY}/credentials/default`],
    ['DELETE', `/${NOBODY}/credentials/default`],
    ['PUT', `/${NOBODY}/credentials/user/${NOBODY}`],
    ['DELETE', `/${NOBODY}/credentials/group/dev`],
  ] as const) {
    await gateway.rest(401, method, `/api/targets${path}`);
    await gateway.rest(403, method, `/api/targets${path}`, { token: user.token });
  }
  t.pass();
});
