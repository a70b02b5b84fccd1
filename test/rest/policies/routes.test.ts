import { get } from 'node:http';
import test from 'ava';
import { type PolicyAnswer, policyBody } from '../../policies/policies.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { type Person, person, startGateway, type TestGateway } from '../../support/gateway.ts';

const NOBODY = '0190163d-8694-739b-aea5-966c26f8ad90';

interface Refusal {
  readonly code: string;
  readonly errors?: readonly { readonly path: string; readonly message: string }[];
}

function api(gateway: TestGateway, admin: Person) {
  const call = async <T>(expected: number, method: string, path: string, body?: unknown, headers: Record<string, string> = {}) =>
    gateway.rest<T>(expected, method, `/api/policies${path}`, {
      token: admin.token,
      headers,
      ...(body === undefined ? {} : { body }),
    });
  return {
    call,
    create: async (over: object = {}) => (await call<PolicyAnswer>(201, 'POST', '', policyBody(over))).body,
    refused: async (path: string, method: string, body: unknown) => {
      const { errors = [] } = (await call<Refusal>(400, method, path, body)).body;
      return errors.map((error) => error.path);
    },
  };
}

eachEngine(test.serial, 'a policy can be created with defaults, read, changed, given subjects and deleted', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const { call } = api(gateway, admin);
  t.deepEqual((await call(200, 'GET', '')).body, []);

  const created = await call<PolicyAnswer>(201, 'POST', '', policyBody());
  const { id } = created.body;
  t.like(created.body, { description: null, target_id: null, resource_pattern: null, enabled: true, name: 'Everyone may echo' });
  t.like(created.body.subjects[0], { subject_type: 'everyone', subject_value: null });
  t.is(created.headers.get('location'), `/api/policies/${id}`);
  t.is(created.headers.get('portcullis-revision'), '1');

  const read = await call<PolicyAnswer>(200, 'GET', `/${id}`);
  t.deepEqual(read.body, created.body);
  t.is(read.headers.get('etag'), created.headers.get('etag'));
  t.is(read.headers.get('portcullis-revision'), '1');
  t.regex(read.headers.get('etag') ?? '', /^"[\w-]{27}"$/);
  // `fetch` would ask caches to look again.
  const unchanged = await new Promise<number | undefined>((resolve, reject) => {
    const headers = { authorization: `Bearer ${admin.token}`, 'if-none-match': read.headers.get('etag') ?? '' };
    get(`${gateway.url}/api/policies/${id}`, { headers }, (res) => {
      res.resume();
      resolve(res.statusCode);
    }).on('error', reject);
  });
  t.is(unchanged, 304);

  // A policy that was read can be written back, which is not a change.
  const same = await call<PolicyAnswer>(200, 'PUT', `/${id}`, read.body);
  t.deepEqual(same.body, read.body);
  t.is(same.headers.get('portcullis-revision'), '1');

  const put = await call<PolicyAnswer>(200, 'PUT', `/${id}`, { priority: -5, enabled: false, resource_pattern: '^echo$' });
  t.like(put.body, {
    priority: -5,
    enabled: false,
    resource_pattern: '^echo$',
    name: 'Everyone may echo',
    created_at: read.body.created_at,
  });
  t.not(put.headers.get('etag'), read.headers.get('etag'));
  t.is(put.headers.get('portcullis-revision'), '2');

  const added = await call<PolicyAnswer['subjects'][number]>(201, 'POST', `/${id}/subjects`, {
    subject_type: 'role',
    subject_value: 'dev',
  });
  const again = await call(200, 'POST', `/${id}/subjects`, { subject_type: 'role', subject_value: 'dev' });
  t.deepEqual(again.body, added.body);
  t.is(again.headers.get('portcullis-revision'), '3');

  // The subject that stays keeps its id.
  const replaced = await call<PolicyAnswer>(200, 'PUT', `/${id}`, {
    subjects: [
      { subject_type: 'group', subject_value: 'g' },
      { subject_type: 'role', subject_value: 'dev' },
      { subject_type: 'group', subject_value: 'g' },
    ],
  });
  t.is(replaced.body.subjects.length, 2);
  t.deepEqual(
    replaced.body.subjects.find(({ subject_type }) => subject_type === 'role'),
    added.body,
  );

  await call(204, 'DELETE', `/${id}/subjects/${added.body.id}`);
  await call(404, 'DELETE', `/${id}/subjects/${added.body.id}`);
  t.deepEqual((await call<PolicyAnswer>(200, 'GET', `/${id}`)).body.subjects.length, 1);

  const deleted = await call(204, 'DELETE', `/${id}`);
  t.is(deleted.headers.get('portcullis-revision'), '6');
  for (const [method, path, body] of [
    ['GET', `/${id}`],
    ['PUT', `/${id}`, {}],
    ['DELETE', `/${id}`],
    ['POST', `/${id}/subjects`, { subject_type: 'everyone' }],
    ['GET', `/${NOBODY}`],
    ['GET', '/not-an-id'],
  ] as const)
    t.is((await call<Refusal>(404, method, path, body)).body.code, 'not_found');

  const { body: changes } = await gateway.rest<{ action: string; before: object | null; after: object | null }[]>(
    200,
    'GET',
    '/api/changes',
    {
      token: admin.token,
    },
  );
  t.deepEqual(
    changes.filter(({ action }) => action.startsWith('policy')).map(({ action }) => action),
    ['policy.delete', 'policy.remove_subject', 'policy.update', 'policy.add_subject', 'policy.update', 'policy.create'],
  );
  t.like(changes[0], { actor: { id: admin.id }, after: null, before: { id } });
});

eachEngine(test.serial, 'every mistake in a policy is named, and the policy is not stored', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const { call, create, refused } = api(gateway, await person(gateway, 'admin@example.com'));
  const stays = await create({ resource_pattern: '^echo$', subjects: [{ subject_type: 'role', subject_value: 'dev' }] });

  const wrong: [object, string[]][] = [
    [{ foo: 1 }, ['foo']],
    [{ id: NOBODY }, ['id']],
    [{ name: '' }, ['name']],
    [{ name: 'a\tb' }, ['name']],
    [{ name: '\ud800' }, ['']],
    [{ name: 'x'.repeat(257) }, ['name']],
    [{ name: 5, priority: '1', enabled: 'true' }, ['name', 'priority', 'enabled']],
    [{ description: 'two\u0007lines' }, ['description']],
    [{ priority: 2147483648 }, ['priority']],
    [{ priority: 1.5 }, ['priority']],
    [{ effect: 'Allow' }, ['effect']],
    [{ effect: null, resource_type: 'tools' }, ['resource_type', 'effect']],
    [{ target_id: 'x' }, ['target_id']],
    [{ target_id: NOBODY.toUpperCase() }, ['target_id']],
    [{ target_id: NOBODY }, ['target_id']],
    [{ resource_pattern: '' }, ['resource_pattern']],
    [{ resource_pattern: '(?=a)b' }, ['resource_pattern']],
    [{ resource_pattern: '(a)\\1' }, ['resource_pattern']],
    [{ resource_pattern: '(' }, ['resource_pattern']],
    [{ resource_pattern: '((\\d{100}){100}){10}' }, ['resource_pattern']],
    [{ resource_pattern: '\\pL' }, ['resource_pattern']],
    [{ resource_pattern: 'a'.repeat(513) }, ['resource_pattern']],
    [{ target_id: NOBODY, resource_pattern: '(?!x)' }, ['target_id', 'resource_pattern']],
    [{ subjects: {} }, ['subjects']],
    [{ subjects: [null] }, ['subjects.0']],
    [{ subjects: [{ subject_type: 'everyone', subject_value: 'x' }] }, ['subjects.0.subject_value']],
    [{ subjects: [{ subject_type: 'role' }] }, ['subjects.0.subject_value']],
    [{ subjects: [{ subject_type: 'role', subject_value: null }] }, ['subjects.0.subject_value']],
    [{ subjects: [{ subject_type: 'role', subject_value: '' }] }, ['subjects.0.subject_value']],
    [{ subjects: [{ subject_type: 'user', subject_value: 'a@example.com' }] }, ['subjects.0.subject_value']],
    [{ subjects: [{ subject_type: 'user', subject_value: NOBODY.toUpperCase() }] }, ['subjects.0.subject_value']],
    [
      { subjects: [{ subject_type: 'everyone' }, { subject_type: 'Group', subject_value: 'x', more: 1 }] },
      ['subjects.1.subject_type', 'subjects.1.more'],
    ],
    [{ subjects: Array.from({ length: 1001 }, (_, i) => ({ subject_type: 'group', subject_value: `g${i}` })) }, ['subjects']],
  ];
  for (const [over, paths] of wrong) {
    t.deepEqual((await refused('', 'POST', policyBody(over))).sort(), [...paths].sort(), JSON.stringify(over).slice(0, 200));
    if (!('id' in over)) {
      t.deepEqual((await refused(`/${stays.id}`, 'PUT', over)).sort(), [...paths].sort(), JSON.stringify(over).slice(0, 200));
    }
  }
  for (const name of ['name', 'resource_type', 'effect', 'priority', 'subjects']) {
    t.deepEqual(await refused('', 'POST', policyBody({ [name]: undefined })), [name]);
  }
  t.deepEqual(await refused(`/${stays.id}/subjects`, 'POST', { subject_type: 'role' }), ['subject_value']);
  t.deepEqual(await refused(`/${stays.id}/subjects`, 'POST', { id: NOBODY, subject_type: 'everyone' }), ['id']);
  for (const body of [undefined, 'null', '[]', '{"name": "a", "name": "b"}', '{']) await call(400, 'POST', '', body);
  for (const query of ['?limit=0', '?limit=1001', '?limit=x', '?page=2', '?cursor=%20', '?cursor=YQ'])
    await call(400, 'GET', query);

  // Read-only members.
  const [subject] = stays.subjects;
  for (const [over, path] of [
    [{ id: NOBODY }, 'id'],
    [{ created_at: '2001-01-01T00:00:00.000Z' }, 'created_at'],
    [{ updated_at: '2001-01-01T00:00:00.000Z' }, 'updated_at'],
    [{ subjects: [{ ...subject, id: NOBODY }] }, 'subjects.0.id'],
    [{ subjects: [{ ...subject, subject_value: 'other' }] }, 'subjects.0.id'],
  ] as const) {
    t.deepEqual(await refused(`/${stays.id}`, 'PUT', { ...stays, ...over }), [path]);
  }
  t.deepEqual((await call(200, 'GET', '')).body, [stays]);
});

eachEngine(test.serial, 'a pattern that is affordable alone is refused if its bucket is full', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const { refused } = api(gateway, admin);
  const expensive = (i: number) => `${i}[a-z]{900}[0-9]{900}`;
  let refusedAt = 0;
  for (let i = 0; i < 200 && refusedAt === 0; i++) {
    const answer = await fetch(`${gateway.url}/api/policies`, {
      method: 'POST',
      headers: { authorization: `Bearer ${admin.token}`, 'content-type': 'application/json' },
      body: JSON.stringify(policyBody({ resource_pattern: expensive(i) })),
    });
    if (answer.status !== 201) refusedAt = i;
  }
  t.true(refusedAt > 0);
  t.deepEqual(await refused('', 'POST', policyBody({ resource_pattern: expensive(999) })), ['resource_pattern']);
});

eachEngine(test.serial, 'one of several concurrent changes to the same version wins', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const { call, create } = api(gateway, admin);
  const { id } = await create();
  const etag = (await call(200, 'GET', `/${id}`)).headers.get('etag') ?? '';
  const statuses = await Promise.all(
    Array.from({ length: 8 }, async (_, priority) => {
      const answer = await fetch(`${gateway.url}/api/policies/${id}`, {
        method: 'PUT',
        headers: { authorization: `Bearer ${admin.token}`, 'content-type': 'application/json', 'if-match': etag },
        body: JSON.stringify({ priority: 100 + priority }),
      });
      return answer.status;
    }),
  );
  t.deepEqual(statuses.sort(), [200, ...Array(7).fill(412)]);
  for (const [method, path, body] of [
    ['PUT', `/${id}`, {}],
    ['DELETE', `/${id}`],
    ['POST', `/${id}/subjects`, { subject_type: 'role', subject_value: 'x' }],
  ] as const) {
    await call(412, method, path, body, { 'if-match': etag });
    await call(412, method, path, body, { 'if-match': `W/${etag}` });
  }
  const now = (await call(200, 'GET', `/${id}`)).headers.get('etag') ?? '';
  await call(200, 'PUT', `/${id}`, {}, { 'if-match': '*' });
  await call(204, 'DELETE', `/${id}`, undefined, { 'if-match': `"other", ${now}` });
});

eachEngine(test.serial, 'the list is complete, or read page by page', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const { call, create } = api(gateway, admin);
  const all: PolicyAnswer[] = [];
  for (let i = 0; i < 5; i++)
    all.push(
      await create({
        name: `policy ${i}`,
        subjects: [{ subject_type: 'everyone' }, { subject_type: 'role', subject_value: 'r' }],
      }),
    );
  t.deepEqual((await call(200, 'GET', '')).body, all);
  const seen: PolicyAnswer[] = [];
  let path = '?limit=2';
  for (let pages = 1; ; pages++) {
    const { body, headers } = await call<PolicyAnswer[]>(200, 'GET', path);
    seen.push(...body);
    t.is(headers.get('portcullis-revision'), '5');
    const next = /^<\/api\/policies(\?.*)>; rel="next"$/.exec(headers.get('link') ?? '')?.[1];
    if (next === undefined) {
      t.is(pages, 3);
      break;
    }
    path = next;
  }
  t.deepEqual(seen, all);
});

test.serial('only administrators with a token may use the policy routes', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  const { id } = await api(gateway, admin).create();
  for (const [method, path] of [
    ['GET', ''],
    ['POST', ''],
    ['GET', `/${id}`],
    ['PUT', `/${id}`],
    ['DELETE', `/${id}`],
    ['POST', `/${id}/subjects`],
    ['DELETE', `/${id}/subjects/${NOBODY}`],
  ] as const) {
    await gateway.rest(401, method, `/api/policies${path}`);
    await gateway.rest(403, method, `/api/policies${path}`, { token: user.token });
  }
  t.pass();
});
