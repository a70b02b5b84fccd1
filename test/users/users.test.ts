import test from 'ava';
import { uuidv7 } from '../../src/base/ids.ts';
import { findUser, localUser, userStore } from '../../src/users/user-store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { type Body, PASSWORD, startRest } from '../support/rest.ts';

const paths = (body: Body) => body.errors?.map(({ path }) => path);

eachEngine(test.serial, 'only administrators may use the user routes', async (t, database) => {
  const rest = await startRest(t, database.url);
  const admin = await rest.account('admin@example.com');
  const user = await rest.account('user@example.com');
  for (const [method, path, body] of [
    ['GET', '/api/users', undefined],
    ['GET', `/api/users/${user.id}`, undefined],
    ['POST', '/api/users', { email: 'c@d', password: PASSWORD }],
    ['PUT', `/api/users/${user.id}`, { role: 'admin' }],
  ] as const) {
    t.is((await rest.call(method, path, { body })).status, 401, `${method} ${path}`);
    t.is((await rest.call(method, path, { body, token: user.token })).status, 403, `${method} ${path}`);
    t.true((await rest.call(method, path, { body, token: admin.token })).status < 300, `${method} ${path}`);
  }
});

eachEngine(test.serial, 'a list without a limit has every user, although they are read in parts', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const users = userStore(knex);
  const ids = Array.from({ length: 450 }, () => uuidv7());
  for (const [n, id] of ids.entries())
    await users.insert(localUser({ id, email: `${n}@example.com`, role: n % 2 === 0 ? 'even' : 'odd', groups: [] }, 1), null);
  const read = async (after: string | null, wanted = {}, limit: number | null = null) => {
    const found: string[] = [];
    for await (const part of users.parts(after, wanted, limit)) found.push(...part.map(({ id }) => id));
    return found;
  };
  t.deepEqual(await read(null), ids);
  t.deepEqual(await read(ids[42] ?? null), ids.slice(43));
  for (const limit of [1, 199, 200, 201, 400, 449, 450, 451]) t.deepEqual(await read(null, {}, limit), ids.slice(0, limit));
  t.deepEqual(await read(ids[299] ?? null, {}, 101), ids.slice(300, 401));
  t.deepEqual(
    await read(null, { role: 'odd' }),
    ids.filter((_, n) => n % 2 === 1),
  );
});

eachEngine(test.serial, 'a search reads few users at once, and finds the same users wherever its parts end', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const users = userStore(knex);
  const ids = Array.from({ length: 450 }, () => uuidv7());
  const numbers = [3, 198, 199, 200, 201, 398, 399, 400, 420];
  for (const [n, id] of ids.entries()) {
    const isWanted = numbers.includes(n);
    const groups = ['all', `g${n}`, ...(isWanted ? ['ops', 'x"y'] : ['op'])];
    await users.insert(localUser({ id, email: `${n}@example.com`, role: isWanted ? 'wanted' : 'user', groups }, 1), null);
  }
  const wanted = numbers.map((n) => ids[n] ?? '');
  const read = async (filter: object, after: string | null = null, limit: number | null = null) => {
    const sizes: number[] = [];
    const found: string[] = [];
    for await (const part of users.parts(after, filter, limit)) {
      found.push(...part.map(({ id }) => id));
      sizes.push(part.length);
    }
    return { found, sizes };
  };
  for (const filter of [{ role: 'wanted' }, { group: ['ops', 'x"y', 'ops', 'all'] }, { role: 'wanted', text: 'EXAMPLE' }]) {
    t.deepEqual(await read(filter), { found: wanted, sizes: [3, 4, 2] });
    for (const limit of [1, 2, 3, 4, 8, 9, 10]) t.deepEqual((await read(filter, null, limit)).found, wanted.slice(0, limit));
    for (const [n, id] of wanted.entries()) t.deepEqual((await read(filter, id, 3)).found, wanted.slice(n + 1, n + 4));
  }
  t.deepEqual(await read({ group: ['ops', 'op'] }), { found: [], sizes: [0, 0, 0] });
  t.deepEqual(await read({ text: ids[440] }), { found: [ids[440]], sizes: [0, 0, 1] });
  t.deepEqual(await read({ email: '420@EXAMPLE.com', role: 'wanted' }), { found: [ids[420]], sizes: [1] });
  t.deepEqual((await read({ group: ['all'] })).sizes, [200, 200, 50]);
  t.deepEqual((await read({ role: 'nobody' }, ids[249])).sizes, [0, 0], 'the last part is full');
});

eachEngine(
  test.serial,
  'an administrator makes users, reads them in pages, and changes role and groups at once',
  async (t, database) => {
    const rest = await startRest(t, database.url, { REGISTRATION: 'closed' });
    const { token, id } = await rest.account('admin@example.com');
    const made = await rest.call('POST', '/api/users', {
      token,
      body: { email: 'bob@example.com', password: PASSWORD, role: 'auditor', groups: ['eng', 'Eng', 'eng '] },
    });
    t.is(made.status, 201);
    t.is(made.headers.location, `/api/users/${made.body.id}`);
    t.is(made.body.role, 'auditor');
    t.deepEqual(made.body['groups'], ['eng', 'Eng', 'eng '], 'byte for byte');
    t.is((await rest.call('POST', '/api/users', { token, body: { email: 'BOB@example.com', password: PASSWORD } })).status, 409);
    const plain = await rest.call('POST', '/api/users', { token, body: { email: 'eve@example.com', password: PASSWORD } });
    t.is(plain.body.role, 'user');

    const path = `/api/users/${made.body.id}`;
    t.deepEqual((await rest.call('GET', path, { token })).body, made.body);
    const bob = await rest.call('POST', '/api/auth/login', { body: { email: 'bob@example.com', password: PASSWORD } });
    t.is(bob.status, 200);

    // The user can be put back as it was read, and omitted members stay.
    t.deepEqual((await rest.call('PUT', path, { token, body: made.body })).body, made.body);
    const sequence = (await rest.changes.position()).sequence;
    const { etag = '' } = (await rest.call('GET', path, { token })).headers;
    const asRead = { token, body: { groups: ['ops'] }, headers: { 'if-match': etag as string } };
    const updated = await rest.call('PUT', path, asRead);
    t.is(updated.status, 200);
    t.not(updated.headers['etag'], etag);
    t.is((await rest.call('PUT', path, asRead)).status, 412);
    t.is(updated.body.role, 'auditor');
    t.deepEqual(updated.body['groups'], ['ops']);
    t.is((await rest.changes.position()).sequence, sequence + 1);
    const [change] = (await rest.changes.page(1, null)).changes;
    t.is(change?.action, 'user.update');
    t.is(change?.actor.id, id);
    t.is(change?.request_id, updated.headers['x-request-id'] as string);
    t.deepEqual(change?.before as unknown, made.body);
    t.deepEqual(change?.after as unknown, updated.body);
    const me = await rest.call('GET', '/api/auth/me', { token: bob.body.token });
    t.deepEqual(me.body['groups'], ['ops']);

    const all = await rest.call('GET', '/api/users', { token });
    const emails = (body: unknown) => (body as { email: string }[]).map(({ email }) => email);
    t.deepEqual(emails(all.body), ['admin@example.com', 'bob@example.com', 'eve@example.com']);
    t.is(all.headers.link, undefined);
    const first = await rest.call('GET', '/api/users?limit=2', { token });
    t.deepEqual(emails(first.body), ['admin@example.com', 'bob@example.com']);
    const next = /^<([^>]+)>; rel="next"$/.exec(String(first.headers.link))?.[1] ?? '';
    const second = await rest.call('GET', next, { token });
    t.deepEqual(emails(second.body), ['eve@example.com']);
    t.is(second.headers.link, undefined);
    for (const query of [
      'limit=0',
      'limit=1001',
      'limit=x',
      'cursor=x',
      'cursor=bm9uc2Vuc2U',
      'limit=1&limit=2',
      'rank=admin',
      'role=',
      'role=a&role=b',
    ]) {
      t.is((await rest.call('GET', `/api/users?${query}`, { token })).status, 400, query);
    }
    // Names count byte for byte, as in policies.
    const quoted = `a "b" 'c' \\d é`;
    await rest.call('PUT', path, { token, body: { groups: ['ops', quoted] } });
    const cases: readonly (readonly [readonly (readonly [string, string])[], readonly string[]])[] = [
      [[['role', 'admin']], ['admin@example.com']],
      [[['role', 'Admin']], []],
      [[['email', 'BOB@example.com']], ['bob@example.com']],
      [[['email', 'ob@example.com']], []],
      [[['group', 'ops']], ['bob@example.com']],
      [[['group', 'OPS']], []],
      [[['group', 'op']], []],
      [[['group', quoted]], ['bob@example.com']],
      [
        [
          ['group', 'ops'],
          ['group', quoted],
        ],
        ['bob@example.com'],
      ],
      [
        [
          ['group', 'ops'],
          ['group', 'other'],
        ],
        [],
      ],
    ];
    for (const [query, expected] of cases) {
      const asked = `/api/users?${new URLSearchParams([...query].map(([name, value]): [string, string] => [name, value]))}`;
      t.deepEqual(emails((await rest.call('GET', asked, { token })).body), expected, asked);
    }
  },
);

eachEngine(test.serial, 'bad members are named by their paths, and nothing is stored', async (t, database) => {
  const rest = await startRest(t, database.url);
  const { token, id } = await rest.account('admin@example.com');
  const path = `/api/users/${id}`;
  const before = (await rest.call('GET', path, { token })).body;
  const cases: readonly (readonly [body: unknown, expected: readonly string[]])[] = [
    [{ rol: 'x', grups: [] }, ['rol', 'grups']],
    [{ role: 1 }, ['role']],
    [{ role: '' }, ['role']],
    [{ role: null }, ['role']],
    [{ role: 'a\u0000b' }, ['role']],
    [{ role: 'a\u0085b' }, ['role']],
    [{ role: 'x'.repeat(257) }, ['role']],
    [{ groups: 'x' }, ['groups']],
    [{ groups: ['a', 'a'] }, ['groups.1']],
    [{ groups: ['a', ''] }, ['groups.1']],
    [{ groups: [{ name: 'x' }] }, ['groups.0']],
    [{ groups: ['a\nb', 'ok', 'c\u007f'] }, ['groups.0', 'groups.2']],
    [{ groups: Array.from({ length: 40 }, (_, i) => `${i}`.padStart(120, 'g')) }, ['groups']],
    [{ groups: Array.from({ length: 20 }, (_, i) => '\u{1F600}'.repeat(70) + i) }, ['groups']],
    [{ enabled: 'true' }, ['enabled']],
    [{ enabled: 1 }, ['enabled']],
    [{ id: before.id?.toUpperCase() }, ['id']],
    [{ email: 'other@example.com', created_at: before['created_at'], updated_at: 'x' }, ['email', 'updated_at']],
    [[], ['']],
    ['"text"', ['']],
    ['null', ['']],
  ];
  for (const [body, expected] of cases) {
    const answer = await rest.call('PUT', path, { token, body });
    t.is(answer.status, 400, JSON.stringify(body));
    t.is(answer.headers['content-type'], 'application/problem+json');
    t.deepEqual(paths(answer.body), [...expected], JSON.stringify(body).slice(0, 200));
  }
  t.is((await rest.call('PUT', path, { token })).status, 400, 'no body');
  t.deepEqual((await rest.call('GET', path, { token })).body, before);
  t.is(
    (await rest.call('PUT', path, { token, body: { role: 'admin', groups: ['x'.repeat(256), '\u{1F600}'.repeat(256)] } })).status,
    200,
  );

  for (const [body, expected] of [
    [{}, ['email', 'password']],
    [{ email: 'no at', password: PASSWORD }, ['email']],
    [{ email: 'two@@x', password: PASSWORD }, ['email']],
    [{ email: '@x', password: PASSWORD }, ['email']],
    [{ email: `${'x'.repeat(253)}@y`, password: PASSWORD }, ['email']],
    [{ email: 'a\u0000@b', password: PASSWORD }, ['email']],
    [{ email: 'a@b', password: 'seven77' }, ['password']],
    [{ email: 'a@b', password: '\u{1F600}'.repeat(7) }, ['password']],
    [{ email: 'a@b', password: 'x'.repeat(257) }, ['password']],
    [{ email: 'a@b', password: 12345678 }, ['password']],
    [{ email: ['a@b'], password: PASSWORD, role: 'admin' }, ['email', 'role']],
  ] as const) {
    const answer = await rest.call('POST', '/api/auth/register', { body });
    t.is(answer.status, 400, JSON.stringify(body));
    t.deepEqual(paths(answer.body), [...expected], JSON.stringify(body));
  }
  t.is(
    (
      await rest.call('POST', '/api/auth/register', {
        body: { email: `${'x'.repeat(252)}@y`, password: '\u{1F600}'.repeat(256) },
      })
    ).status,
    201,
  );
});

eachEngine(test.serial, 'an id names one user or none', async (t, database) => {
  const rest = await startRest(t, database.url);
  const { token, id } = await rest.account('admin@example.com');
  for (const path of ['x', '00000000-0000-0000-0000-000000000000', id.toUpperCase(), `${id}%20`, `${id}/`, '%2e', `${id}%00`]) {
    t.is((await rest.call('GET', `/api/users/${path}`, { token })).status, 404, path);
    t.is((await rest.call('PUT', `/api/users/${path}`, { token, body: { role: 'x' } })).status, 404, path);
  }
});

eachEngine(test.serial, 'the last enabled administrator stays, also if two are removed at the same time', async (t, database) => {
  const rest = await startRest(t, database.url);
  const first = await rest.account('first@example.com');
  const put = (id: string, token: string, body: object) => rest.call('PUT', `/api/users/${id}`, { token, body });
  for (const body of [{ role: 'user' }, { enabled: false }, { role: 'Admin' }, { role: 'admin ' }]) {
    const refused = await put(first.id, first.token, body);
    t.is(refused.status, 409, JSON.stringify(body));
    t.is(refused.body.code, 'last_administrator');
  }
  t.is((await put(first.id, first.token, { groups: ['x'] })).status, 200);
  const second = await rest.account('second@example.com');
  t.is((await put(second.id, first.token, { role: 'admin', enabled: false })).status, 200);
  t.is((await put(first.id, first.token, { role: 'user' })).status, 409, 'a disabled administrator does not count');
  t.is((await put(second.id, first.token, { enabled: true })).status, 200);

  const each = await Promise.all([put(first.id, second.token, { role: 'user' }), put(second.id, first.token, { role: 'user' })]);
  const statuses = each.map((answer) => answer.status).sort();
  t.is(statuses[0], 200);
  t.true(statuses[1] === 403 || statuses[1] === 409, String(statuses));
  const token = each[0]?.status === 200 ? second.token : first.token;
  const left = await rest.call('GET', '/api/users', { token });
  t.is((left.body as unknown as { role: string }[]).filter(({ role }) => role === 'admin').length, 1);
});

eachEngine(test.serial, 'a caller who loses the right after admission is refused in the transaction', async (t, database) => {
  const rest = await startRest(t, database.url);
  const admin = await rest.account('admin@example.com');
  const second = await rest.account('second@example.com');
  await rest.call('PUT', `/api/users/${second.id}`, { token: admin.token, body: { role: 'admin' } });
  // Both requests are admitted while both users are administrators. The second one must be refused.
  const answers = await Promise.all(
    Array.from({ length: 6 }, (_, i) =>
      i === 0
        ? rest.call('PUT', `/api/users/${second.id}`, { token: admin.token, body: { enabled: false } })
        : rest.call('PUT', `/api/users/${second.id}`, { token: second.token, body: { groups: [`g${i}`] } }),
    ),
  );
  t.is(answers[0]?.status, 200);
  t.true(answers.slice(1).every(({ status }) => status === 200 || status === 401 || status === 403));
  const log = (await rest.changes.page(20, null)).changes.map(({ actor, after }) => [
    actor.id,
    (after as { enabled?: boolean })?.enabled,
  ]);
  const disabling = log.findIndex(([actor, enabled]) => actor === admin.id && enabled === false);
  t.true(
    log.slice(0, disabling).every(([actor]) => actor !== second.id),
    'no change by the disabled one after that',
  );
});

eachEngine(test.serial, 'an e-mail that a local account and a user of a provider have names neither', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const store = userStore(knex);
  const local = localUser({ id: uuidv7(), email: 'CEO@company.com', role: 'user', groups: [] }, 1);
  const ofProvider = { ...local, id: uuidv7(), issuer: 'https://login.company.com', subject: 'ceo', email: 'ceo@company.com' };
  await store.insert(ofProvider, null);
  t.is((await findUser(knex, 'ceo@company.com'))?.id, ofProvider.id);
  await store.insert(local, 'hash');
  await t.throwsAsync(findUser(knex, 'ceo@company.com'), { message: /^Several users have the e-mail ceo@company\.com\./ });
  t.is((await findUser(knex, ofProvider.id))?.id, ofProvider.id);
  t.is(await findUser(knex, ' '), null);
});
