import test from 'ava';
import { tokenStore } from '../../../src/auth/token-store.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { PASSWORD, startRest, startRestOnSqlite } from '../../support/rest.ts';

const HERE = '192.0.2.1';

eachEngine(test.serial, 'exactly one of many simultaneous first registrations becomes administrator', async (t, database) => {
  const rest = await startRest(t, database.url);
  const answers = await Promise.all(
    Array.from({ length: 50 }, (_, i) =>
      rest.call('POST', '/api/auth/register', { body: { email: `user${i}@example.com`, password: PASSWORD } }),
    ),
  );
  t.deepEqual([...new Set(answers.map((answer) => answer.status))], [201]);
  t.is(answers.filter((answer) => answer.body.role === 'admin').length, 1);
  t.is(answers.filter((answer) => answer.body.role === 'user').length, 49);
});

eachEngine(
  test.serial,
  'registration answers with the user and no secret, and an e-mail is unique in any letter case',
  async (t, database) => {
    const rest = await startRest(t, database.url);
    const { status, body, text } = await rest.call('POST', '/api/auth/register', {
      body: { email: '  Ann@Example.com ', password: PASSWORD },
    });
    t.is(status, 201);
    t.deepEqual(Object.keys(body), [
      ...['id', 'email', 'role', 'groups', 'enabled', 'issuer', 'subject', 'given_role', 'given_groups', 'refusal'],
      ...['valid_after', 'created_at', 'updated_at'],
    ]);
    t.is(body['email'], 'Ann@Example.com');
    t.is(body.role, 'admin');
    t.deepEqual(body['groups'], []);
    t.false(text.includes('argon2'));

    const again = await rest.call('POST', '/api/auth/register', { body: { email: 'ann@example.COM', password: PASSWORD } });
    t.is(again.status, 409);
    t.is(again.body.code, 'email_taken');
    const login = await rest.call('POST', '/api/auth/login', { body: { email: 'ANN@example.com', password: PASSWORD } });
    t.is(login.status, 200);
    t.deepEqual(login.body['user'], body);
  },
);

/** A blank that counts as a letter, fillers, variation selectors, invisible, private and unassigned characters. */
const UNSEEN = [
  '\u2800',
  '\u3164',
  '\uffa0',
  '\u115f',
  '\u034f',
  '\ufe0f',
  '\u{e0100}',
  '\u200b',
  '\ue000',
  '\u{2fffe}',
  '\ufffc',
  '\u{1d159}',
];

eachEngine(
  test.serial,
  'an e-mail that adds an invisible or unassigned character to an existing one is refused',
  async (t, database) => {
    const rest = await startRest(t, database.url);
    const { token } = await rest.account('ann@example.com');
    for (const unseen of UNSEEN) {
      for (const email of [`ann${unseen}@example.com`, `ann@${unseen}example.com`, `${unseen}ann@example.com`]) {
        const body = { email, password: PASSWORD };
        const registered = await rest.call('POST', '/api/auth/register', { body });
        t.deepEqual([registered.status, registered.body.errors?.[0]?.path], [400, 'email'], JSON.stringify(email));
        t.is((await rest.call('POST', '/api/users', { token, body })).status, 400, JSON.stringify(email));
      }
    }
    const seen = { email: 'ann\u00e9\u4e00@ex\u00e4mple.com', password: PASSWORD };
    t.is((await rest.call('POST', '/api/auth/register', { body: seen })).status, 201);
  },
);

eachEngine(test.serial, 'an e-mail that is drawn like an existing one is refused', async (t, database) => {
  const rest = await startRest(t, database.url);
  const { token } = await rest.account('ren\u00e9\uac00@example.com');
  for (const email of ['rene\u0301\uac00@example.com', 'ren\u00e9\u1100\u1161@example.com']) {
    const body = { email, password: PASSWORD };
    const registered = await rest.call('POST', '/api/auth/register', { body });
    t.deepEqual([registered.status, registered.body.errors?.[0]?.path], [400, 'email'], JSON.stringify(email));
    t.is((await rest.call('POST', '/api/users', { token, body })).status, 400, JSON.stringify(email));
  }
});

eachEngine(test.serial, 'a user whose e-mail would be refused today can still sign in', async (t, database) => {
  const rest = await startRest(t, database.url);
  const { id } = await rest.account('ann@example.com');
  const email = 'ann\u3164@example.com';
  await rest.database.knex('users').where({ id }).update({ email, email_key: email });
  t.is((await rest.call('POST', '/api/auth/login', { body: { email, password: PASSWORD } })).status, 200);
});

eachEngine(test.serial, 'simultaneous registrations of one e-mail make one user', async (t, database) => {
  const rest = await startRest(t, database.url);
  const answers = await Promise.all(
    Array.from({ length: 10 }, () => rest.call('POST', '/api/auth/register', { body: { email: 'a@b', password: PASSWORD } })),
  );
  t.deepEqual(answers.map((answer) => answer.status).sort(), [201, ...new Array(9).fill(409)]);
  t.is(answers.find((answer) => answer.status === 201)?.body.role, 'admin');
});

eachEngine(test.serial, 'closed registration accepts only the first user', async (t, database) => {
  const rest = await startRest(t, database.url, { REGISTRATION: 'closed' });
  t.is((await rest.call('POST', '/api/auth/register', { body: { email: 'a@b', password: PASSWORD } })).body.role, 'admin');
  const second = await rest.call('POST', '/api/auth/register', { body: { email: 'c@d', password: PASSWORD } });
  t.is(second.status, 403);
  t.is(second.body.code, 'registration_closed');
});

eachEngine(test.serial, 'closed registration accepts only one of many simultaneous first users', async (t, database) => {
  const rest = await startRest(t, database.url, { REGISTRATION: 'closed' });
  const answers = await Promise.all(
    Array.from({ length: 12 }, (_, i) =>
      rest.call('POST', '/api/auth/register', { body: { email: `user${i}@example.com`, password: PASSWORD } }),
    ),
  );
  t.deepEqual(answers.map(({ status }) => status).sort(), [201, ...new Array(11).fill(403)]);
  const users = await rest.database.knex('users').select('id');
  t.is(users.length, 1);
});

eachEngine(
  test.serial,
  'if the gateway listens beyond loopback, the first registration needs the setup code, and later ones do not',
  async (t, database) => {
    const rest = await startRest(t, database.url, { HOST: '0.0.0.0', ALLOWED_HOSTS: '127.0.0.1' });
    const register = (email: string, headers: Record<string, string> = {}) =>
      rest.call('POST', '/api/auth/register', { body: { email, password: PASSWORD }, headers });
    for (const code of [undefined, '', 'wrong', rest.setupCode.slice(0, -1)]) {
      const refused = await register('a@b', code === undefined ? {} : { 'Portcullis-Setup-Code': code });
      t.is(refused.status, 403);
      t.is(refused.body.code, 'setup_code_required');
      t.false(refused.text.includes(rest.setupCode));
    }
    t.is((await register('a@b', { 'Portcullis-Setup-Code': rest.setupCode })).body.role, 'admin');
    t.is((await register('c@d')).body.role, 'user');
  },
);

eachEngine(test.serial, 'unknown e-mail, wrong password and disabled user get the same answer', async (t, database) => {
  const rest = await startRest(t, database.url);
  const admin = await rest.account('admin@example.com');
  const other = await rest.account('other@example.com');
  await rest.call('PUT', `/api/users/${other.id}`, { token: admin.token, body: { enabled: false } });
  const attempts = [
    { email: 'nobody@example.com', password: PASSWORD },
    { email: 'admin@example.com', password: 'a wrong password' },
    { email: 'other@example.com', password: PASSWORD },
    { email: 'admin@example.com', password: 'short' },
  ];
  const answers = await Promise.all(attempts.map((body) => rest.call('POST', '/api/auth/login', { body })));
  for (const answer of answers) {
    t.is(answer.status, 401);
    t.is(answer.body.code, 'invalid_credentials');
    t.deepEqual({ ...answer.body, request_id: null }, { ...answers[0]?.body, request_id: null });
  }
});

test.serial('an unknown e-mail takes the time of a wrong password', async (t) => {
  const { createPasswords } = await import('../../../src/auth/sign-in/passwords.ts');
  const passwords = createPasswords();
  const hash = await passwords.hash(PASSWORD, HERE);
  t.regex(hash, /^\$argon2id\$v=19\$m=19456,t=2,p=1\$/);
  t.true(await passwords.verify(hash, PASSWORD, HERE));
  t.false(await passwords.verify(hash, `${PASSWORD} `, HERE));
  t.false(await passwords.verify(null, PASSWORD, HERE));
  const time = async (of: string | null): Promise<number> => {
    const began = performance.now();
    await passwords.verify(of, 'a wrong password', HERE);
    return performance.now() - began;
  };
  // In turn, and until both have had a moment of the machine for themselves: what they need by themselves stays apart, if it is.
  let [unknown, wrong] = [Number.POSITIVE_INFINITY, Number.POSITIVE_INFINITY];
  const apart = (): number => Math.max(unknown, wrong) / Math.min(unknown, wrong);
  for (let i = 0; i < 8 || (i < 200 && apart() >= 2); i++) {
    unknown = Math.min(unknown, await time(null));
    wrong = Math.min(wrong, await time(hash));
  }
  t.true(apart() < 2, `${unknown} ms and ${wrong} ms`);
});

test.serial('a full line of passwords refuses the last one of the network that has most, and networks take turns', async (t) => {
  const { createPasswords } = await import('../../../src/auth/sign-in/passwords.ts');
  const passwords = createPasswords(1);
  const ends: string[] = [];
  const tries = (from: string, count: number) =>
    Array.from({ length: count }, async (_, n) => {
      const end = await passwords.verify(null, 'x', from).then(
        () => 'checked',
        ({ code }) => code,
      );
      ends.push(`${from} ${n} ${end}`);
    });
  await Promise.all([...tries('crowd', 65), ...tries('visitor', 1), ...tries('crowd', 1)]);
  t.deepEqual(ends.slice(0, 2).sort(), ['crowd 0 too_many_requests', 'crowd 64 too_many_requests']);
  t.is(ends.indexOf('visitor 0 checked'), 4, 'after the check that was under way, and one turn of the crowd');
  t.is(ends.filter((end) => end.endsWith(' checked')).length, 65);
});

test.serial('one IPv6 customer does not keep the passwords of others from being checked', async (t) => {
  const rest = await startRestOnSqlite(t, { TRUST_PROXY: 'true' });
  const status = async (address: string): Promise<number> =>
    (
      await rest.call('POST', '/api/auth/login', {
        body: { email: 'ann@example.com', password: PASSWORD },
        headers: { 'X-Forwarded-For': address },
      })
    ).status;
  const crowd = Array.from({ length: 90 }, (_, n) => status(`2001:db8:1:${n.toString(16)}::1`));
  await Promise.any(crowd.map(async (one) => ((await one) === 429 ? null : Promise.reject())));
  const visitors = Array.from({ length: 5 }, (_, n) => status(`2001:db8:${n + 2}::1`));
  t.deepEqual(await Promise.all(visitors), [401, 401, 401, 401, 401]);
  await Promise.all(crowd);
});

test.serial('passwords are refused when too many wait to be checked', async (t) => {
  const { createPasswords } = await import('../../../src/auth/sign-in/passwords.ts');
  for (const [cores, refusals] of [
    [4, 4],
    // One core is left to requests.
    [2, 5],
    [1, 5],
  ] as const) {
    const passwords = createPasswords(cores);
    const settled = await Promise.allSettled(Array.from({ length: 70 }, () => passwords.verify(null, 'x', HERE)));
    const refused = settled.filter((one) => one.status === 'rejected');
    t.is(refused.length, refusals);
    t.true(refused.every((one) => one.reason.code === 'too_many_requests' && one.reason.retryAfter > 0));
    t.false(await passwords.verify(null, 'x', HERE), 'later passwords are checked');
  }
});

eachEngine(
  test.serial,
  'users can read their own account, log out, and end their other logins with a new password',
  async (t, database) => {
    const rest = await startRest(t, database.url);
    const { id, token } = await rest.account('a@example.com');
    const me = async (bearer: unknown) => (await rest.call('GET', '/api/auth/me', { token: String(bearer) })).status;
    t.is((await rest.call('GET', '/api/auth/me', { token })).body.id, id);

    const login = async (password: string) =>
      (await rest.call('POST', '/api/auth/login', { body: { email: 'a@example.com', password } })).body.token;
    const second = await login(PASSWORD);
    const third = await login(PASSWORD);
    const { body: made } = await rest.call('POST', '/api/auth/tokens', { token, body: { name: 'ci' } });
    t.is((await rest.call('POST', '/api/auth/logout', { token: third })).status, 204);
    t.is(await me(third), 401);
    t.is(await me(second), 200);

    const change = (body: object, bearer = token) => rest.call('PUT', '/api/auth/password', { token: bearer, body });
    const wrong = await change({ current_password: 'not this one', new_password: 'another password' });
    t.is(wrong.status, 400);
    t.is(wrong.body.errors?.[0]?.path, 'current_password');
    t.is((await change({ current_password: PASSWORD, new_password: 'short' })).body.errors?.[0]?.path, 'new_password');
    t.is((await change({ current_password: PASSWORD, new_password: 'another password' }, String(made.token))).status, 403);
    t.is((await change({ current_password: PASSWORD, new_password: 'another password' })).status, 204);
    t.is(await me(token), 200);
    t.is(await me(second), 401);
    t.is(await me(made.token), 200, 'API tokens have their own revocation');
    t.is(await login(PASSWORD), undefined);
    t.truthy(await login('another password'));
  },
);

eachEngine(
  test.serial,
  'an API token needs a login, is shown once, counts against a limit, and is revoked at once',
  async (t, database) => {
    const rest = await startRest(t, database.url, { API_TOKEN_LIMIT: '3' });
    const { token } = await rest.account('admin@example.com');
    const user = await rest.account('user@example.com');
    const create = (bearer: string | undefined, name: unknown = 'ci') =>
      rest.call('POST', '/api/auth/tokens', { token: bearer, body: { name } });

    const made = await create(user.token);
    t.is(made.status, 201);
    t.deepEqual(Object.keys(made.body), ['api_token', 'token']);
    const shown = made.body['api_token'] as { id: string };
    t.deepEqual(Object.keys(shown), ['id', 'name', 'created_at', 'expires_at', 'limits']);
    const listed = await rest.call('GET', '/api/auth/tokens', { token: made.body.token });
    t.deepEqual(listed.body as unknown, [shown]);

    t.is((await create(made.body.token)).status, 403);
    t.is((await rest.call('DELETE', `/api/auth/tokens/${shown.id}`, { token: made.body.token })).status, 403);
    t.is((await rest.call('POST', '/api/auth/logout', { token: made.body.token })).status, 403);

    const racing = await Promise.all(Array.from({ length: 5 }, () => create(user.token)));
    t.deepEqual(racing.map((answer) => answer.status).sort(), [201, 201, 409, 409, 409]);

    // Others see and end them only as administrators.
    const other = await rest.account('other@example.com');
    t.is((await rest.call('GET', `/api/auth/tokens?user_id=${user.id}`, { token: other.token })).status, 403);
    t.is((await rest.call('DELETE', `/api/auth/tokens/${shown.id}`, { token: other.token })).status, 404);
    t.is((await rest.call('GET', `/api/auth/tokens?user_id=${user.id}`, { token })).body['length'], 3);
    t.is((await rest.call('DELETE', `/api/auth/tokens/${shown.id}`, { token })).status, 204);
    t.is((await rest.call('DELETE', `/api/auth/tokens/${shown.id}`, { token })).status, 404);
    const refused = await rest.call('GET', '/api/auth/me', { token: made.body.token });
    t.is(refused.status, 401);
    t.is(refused.body.code, 'invalid_token');
    t.is((await rest.call('GET', '/api/auth/tokens?user=x', { token })).status, 400);
    t.is((await rest.call('GET', '/api/auth/tokens?user_id=x', { token })).status, 400);

    const [change] = (await rest.changes.page(1, null)).changes;
    t.is(change?.action, 'token.revoke');
    t.is(change?.object_id, shown.id);
    t.true((await create(user.token)).status === 201, 'a revoked token makes room');
  },
);

eachEngine(
  test.serial,
  'only the newest API tokens that ended stay in the list of a user who makes many',
  async (t, database) => {
    const rest = await startRest(t, database.url);
    const user = await rest.account('user@example.com');
    const other = await rest.account('other@example.com');
    const now = Date.now();
    const base = { kind: 'api', name: 'n', kid: 'k', created_at: now, expires_at: null, revoked_at: null, limits: null } as const;
    const store = tokenStore(rest.database.knex);
    const idOf = (i: number): string => `0000-${String(i).padStart(3, '0')}`;
    await store.insert({ ...base, id: 'oldest, valid', user_id: user.id });
    await store.insert({ ...base, id: 'of another user', user_id: other.id, revoked_at: now });
    for (let i = 0; i < 130; i++) {
      const ended = i % 2 === 0 ? { expires_at: now - 1 } : { revoked_at: now - 1 };
      await store.insert({ ...base, id: idOf(i), user_id: user.id, ...ended });
    }
    const made = await rest.call('POST', '/api/auth/tokens', { token: user.token, body: { name: 'ci' } });
    const left = await rest.database.knex('tokens').where({ kind: 'api' }).pluck('id');
    const newest = Array.from({ length: 100 }, (_, i) => idOf(30 + i));
    const { id } = made.body['api_token'] as { id: string };
    t.deepEqual(left.sort(), [...newest, id, 'of another user', 'oldest, valid'].sort());
    const listed = await rest.call('GET', '/api/auth/tokens', { token: user.token });
    t.is(listed.body['length'], 50 + 2);
  },
);

eachEngine(
  test.serial,
  'a user who makes many API tokens must wait, can still revoke them, and does not affect others',
  async (t, database) => {
    const rest = await startRest(t, database.url, { CHANGE_RATE_LIMIT: '3' });
    const user = await rest.account('user@example.com');
    const other = await rest.account('other@example.com');
    const create = (token: string) => rest.call('POST', '/api/auth/tokens', { token, body: { name: 'ci' } });
    const made = await Promise.all(Array.from({ length: 3 }, () => create(user.token)));
    t.deepEqual(
      made.map(({ status }) => status),
      [201, 201, 201],
    );
    const refused = await create(user.token);
    t.is(refused.status, 429);
    t.is(refused.body.code, 'too_many_requests');
    t.regex(String(refused.body['detail']), /3 times a minute \(CHANGE_RATE_LIMIT\): try again in \d+ s/);
    t.true(Number(refused.headers['retry-after']) >= 1);
    t.is((await create(other.token)).status, 201);

    const { sequence } = await rest.changes.position();
    for (const { body } of made) {
      const { id } = body['api_token'] as { id: string };
      t.is((await rest.call('DELETE', `/api/auth/tokens/${id}`, { token: user.token })).status, 204);
      let attempts = 0;
      rest.database.knex.on('query', ({ sql }: { sql: string }) => {
        if (/^update .tokens/.test(sql)) attempts++;
      });
      t.is((await rest.call('DELETE', `/api/auth/tokens/${id}`, { token: user.token })).status, 404);
      rest.database.knex.removeAllListeners('query');
      t.is(attempts, 0, 'what is revoked already takes no turn among the changes');
    }
    t.is((await rest.changes.position()).sequence, sequence + 3);
  },
);

eachEngine(
  test.serial,
  'the tokens of a disabled user are refused, and valid again when the user is enabled',
  async (t, database) => {
    const rest = await startRest(t, database.url);
    const admin = await rest.account('admin@example.com');
    const user = await rest.account('user@example.com');
    const api = (await rest.call('POST', '/api/auth/tokens', { token: user.token, body: { name: 'x' } })).body.token;
    const enable = (enabled: boolean) => rest.call('PUT', `/api/users/${user.id}`, { token: admin.token, body: { enabled } });
    const statuses = () =>
      Promise.all([user.token, api].map(async (token) => (await rest.call('GET', '/api/auth/me', { token })).status));
    t.is((await enable(false)).status, 200);
    t.deepEqual(await statuses(), [401, 401]);
    t.is((await enable(true)).status, 200);
    t.deepEqual(await statuses(), [200, 200]);
  },
);

eachEngine(test.serial, 'login tokens end after 12 hours, API tokens do not', async (t, database) => {
  const rest = await startRest(t, database.url);
  const { token } = await rest.account('a@example.com');
  const api = (await rest.call('POST', '/api/auth/tokens', { token, body: { name: 'x' } })).body.token;
  const status = async (bearer: string | undefined) => (await rest.call('GET', '/api/auth/me', { token: bearer })).status;
  rest.pass(12 * 3_600_000 - 60_000);
  t.is(await status(token), 200);
  rest.pass(120_000);
  t.is(await status(token), 401);
  rest.pass(10 * 365 * 86_400_000);
  t.is(await status(api), 200);
});

eachEngine(test.serial, 'a change of the password ends every login with the old one', async (t, database) => {
  const rest = await startRest(t, database.url);
  const { token } = await rest.account('a@example.com');
  const login = () => rest.call('POST', '/api/auth/login', { body: { email: 'a@example.com', password: PASSWORD } });
  const change = rest.call('PUT', '/api/auth/password', {
    token,
    body: { current_password: PASSWORD, new_password: 'another password' },
  });
  // Some are checked before the new password is stored and finish after it.
  const racing = [];
  for (let i = 0; i < 24; i++) {
    racing.push(login());
    await new Promise((resolve) => setTimeout(resolve, 4));
  }
  t.is((await change).status, 204);
  const answers = await Promise.all(racing);
  t.true(answers.every(({ status }) => status === 200 || status === 401));
  for (const { body } of answers.filter(({ status }) => status === 200)) {
    t.is((await rest.call('GET', '/api/auth/me', { token: body.token })).status, 401);
  }
});
