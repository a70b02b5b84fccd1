/** Programs that present access tokens of a provider, and attackers who present something similar. */
import test from 'ava';
import { SignJWT } from 'jose';
import { eachEngine } from '../support/databases/each-engine.ts';
import { apiToken, person, rest } from '../support/gateway.ts';
import { AUDIENCE, type Claims, registration, seconds, startProvider } from '../support/provider.ts';
import { type Health, type ProviderDocument, type User, world } from './support.ts';

eachEngine(test.serial, 'a token of the provider makes a user once, who has role and groups by rules', async (t, at) => {
  const rules = [
    { if_group: 'ops', role: 'operator', groups: ['release'] },
    { if_group: 'staff', role: 'user', groups: ['everybody'] },
  ];
  const { gateway, provider, admin, me } = await world(t, { rules, default_role: null }, at.url);
  const claims = { groups: ['staff', 'ops'], email: 'Alice@Example.com' };
  const [first, second] = await Promise.all([
    me(await provider.token(claims)),
    me(await provider.token({ ...claims, jti: '2' })),
  ]);
  t.is(first.status, 200);
  t.is(first.user.id, second.user.id);
  t.like(first.user, { issuer: provider.issuer, subject: 'alice', email: 'Alice@Example.com', role: 'operator' });
  t.deepEqual(first.user.groups, ['ops', 'staff', 'release', 'everybody']);
  const users = await gateway.rest<User[]>(200, 'GET', '/api/users', { token: admin });
  t.is(users.body.length, 2);
  const changes = await gateway.rest<{ action: string; object_id: string; reason: string }[]>(200, 'GET', '/api/changes', {
    token: admin,
  });
  t.like(changes.body[0], {
    action: 'user.create',
    object_id: first.user.id,
    reason: 'presented a token of the provider company',
  });

  const stranger = await me(await provider.token({ sub: 'mallory', groups: [] }));
  t.is(stranger.status, 401);
  t.regex(stranger.detail, /no role here/);
  t.is(
    (await gateway.rest<User[]>(200, 'GET', '/api/users', { token: admin })).body.length,
    2,
    'refused strangers leave no record',
  );
});

test.serial('issuer and subject identify a user: an e-mail never joins accounts', async (t) => {
  const { gateway, provider, me, admin } = await world(t);
  const local = await me(admin);
  const same = await me(await provider.token({ sub: 'mallory', email: 'admin@example.com', email_verified: true }));
  t.is(same.status, 200);
  t.not(same.user.id, local.user.id);
  t.is(same.user.role, 'user');
  const other = await startProvider(t);
  await gateway.rest(201, 'POST', '/api/providers', { token: admin, body: registration(other, { name: 'other' }) });
  const twin = await me(await other.token({ sub: 'mallory' }));
  t.is(twin.status, 200);
  t.not(twin.user.id, same.user.id, 'the same subject of a different issuer is a different user');
  // The local account with this e-mail can still log in.
  const body = { email: 'admin@example.com', password: 'a long passphrase of admin@example.com' };
  await gateway.rest(200, 'POST', '/api/auth/login', { body });
});

test.serial('tokens that are not what they must be are refused, with a reason for the administrator', async (t) => {
  const { provider, me, health } = await world(t, { required_claims: { tid: ['t1'] } });
  const good = { tid: 't1' };
  t.is((await me(await provider.token(good))).status, 200);
  const now = seconds();
  const other = await startProvider(t);
  await provider.addKey('ec', 'ES256');
  const publicPem = provider.publicKey('one').export({ type: 'spki', format: 'pem' });
  const hmac = (secret: string) =>
    new SignJWT({ iss: provider.issuer, aud: AUDIENCE, sub: 'alice', iat: now, exp: now + 60, tid: 't1' })
      .setProtectedHeader({ alg: 'HS256', typ: 'at+jwt', kid: 'one' })
      .sign(Buffer.from(secret));
  const encode = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const payload = { iss: provider.issuer, aud: AUDIENCE, sub: 'alice', iat: now, exp: now + 60, tid: 't1' };
  const signed = await provider.token(good);
  const [head = '', , signature = ''] = signed.split('.');
  const foreignKey = await (async () => {
    await other.addKey('evil');
    return other.token({ iss: provider.issuer, ...good }, { kid: 'evil', header: { kid: 'one' } });
  })();
  const cases: readonly (readonly [name: string, token: string, kind: string])[] = [
    ['alg none', `${encode({ alg: 'none', typ: 'at+jwt', kid: 'one' })}.${encode(payload)}.AA`, 'token_algorithm'],
    ['HS256 with the public key', await hmac(String(publicPem)), 'token_algorithm'],
    ['an algorithm that is not registered', await provider.token(good, { kid: 'ec' }), 'token_algorithm'],
    ['the key of a different provider', foreignKey, 'token_signature'],
    ['an edited payload', `${head}.${encode({ ...payload, sub: 'admin' })}.${signature}`, 'token_signature'],
    ['an unknown key id', await provider.token(good, { header: { kid: 'two' } }), 'token_key'],
    ['a key id that is a path', await provider.token(good, { header: { kid: '../../dev/null' } }), 'token_key'],
    ['a key id of the prototype', await provider.token(good, { header: { kid: '__proto__' } }), 'token_key'],
    ['a wrong audience', await provider.token({ ...good, aud: 'account' }), 'token_audience'],
    ['no audience', await provider.token({ ...good, aud: undefined }), 'token_audience'],
    ['the audience in an object', await provider.token({ ...good, aud: { 0: AUDIENCE } }), 'token_audience'],
    ['an ID token by its type', await provider.token(good, { header: { typ: 'JWT' } }), 'token_type'],
    ['an ID token by its nonce', await provider.token({ ...good, nonce: 'n' }), 'token_type'],
    ['an ID token of Keycloak', await provider.token({ ...good, typ: 'ID' }), 'token_type'],
    ['a logout token', await provider.token({ ...good, events: {} }, { header: { typ: 'logout+jwt' } }), 'token_type'],
    ['a token bound to a key', await provider.token({ ...good, cnf: { jkt: 'x' } }), 'token_bound'],
    ['a missing required claim', await provider.token(), 'token_claim'],
    ['a wrong required claim', await provider.token({ tid: 't2' }), 'token_claim'],
    ['an expired token', await provider.token({ ...good, exp: now - 31 }), 'token_expired'],
    ['a token without expiry', await provider.token({ ...good, exp: undefined }), 'token_claim'],
    ['a token from the future', await provider.token({ ...good, iat: now + 120 }), 'token_early'],
    ['no subject', await provider.token({ ...good, sub: undefined }), 'subject_missing'],
    ['a subject with a line break', await provider.token({ ...good, sub: 'a\nb' }), 'subject_missing'],
    ['a subject that is a number', await provider.token({ ...good, sub: 7 }), 'subject_missing'],
    ['groups that are numbers', await provider.token({ ...good, groups: [7] }), 'claim_malformed'],
    ['too many groups', await provider.token({ ...good, groups: many(600) }), 'facts_too_large'],
    ['overage of Entra', await provider.token({ ...good, _claim_names: { groups: 'src1' } }), 'groups_overage'],
    ['overage in a short token', await provider.token({ ...good, hasgroups: true }), 'groups_overage'],
    ['an unknown critical header', await provider.token(good, { header: { crit: ['x'], x: 1 } }).catch(() => ''), ''],
  ];
  for (const [name, token, kind] of cases) {
    if (token === '') continue;
    const { status, detail } = await me(token);
    t.is(status, 401, name);
    t.truthy(detail, name);
    if (kind !== '') t.is((await health()).faults[0]?.kind, kind, name);
  }
  // Clocks may differ a little.
  t.is((await me(await provider.token({ ...good, exp: now - 5 }))).status, 200);
  t.is((await me(await provider.token({ ...good, iat: now + 20 }))).status, 200);
  t.is((await me(await provider.token({ ...good, aud: ['account', AUDIENCE] }))).status, 200);
  t.is(
    (await me(await provider.token(good, { header: { jku: 'https://evil.example', x5u: 'https://evil.example' } }))).status,
    200,
  );
  const { faults } = await health();
  t.false(JSON.stringify(faults).includes(signed.split('.')[2] ?? ''), 'no token in the report');
  const provided = faults.find(({ kind }) => kind === 'token_audience');
  t.regex(provided?.message ?? '', /tokens\.audiences has api:\/\/portcullis/);
});

const many = (count: number): string[] => Array.from({ length: count }, (_, index) => `group-${index}`);

test.serial('an older token restores nothing, and two tokens do not take turns', async (t) => {
  const rules = [{ if_group: 'ops', role: 'operator', groups: [] }];
  const { gateway, provider, me, admin } = await world(t, { rules });
  const now = seconds();
  const before = await provider.token({ iat: now - 100, groups: ['ops', 'staff'] });
  const after = await provider.token({ iat: now - 50, groups: ['staff'] });
  t.is((await me(before)).user.role, 'operator');
  t.like((await me(after)).user, { role: 'user' });
  const sequence = async () =>
    (await gateway.rest<{ replicas: { sequence: number }[] }>(200, 'GET', '/api/status', { token: admin })).body.replicas[0]
      ?.sequence;
  const reached = await sequence();
  for (let i = 0; i < 3; i++) {
    t.deepEqual((await me(before)).user.groups, ['staff']);
    t.deepEqual((await me(after)).user.groups, ['staff']);
  }
  t.is(await sequence(), reached, 'nothing was written');
  // A newer token that says the same is remembered: a token between the two restores nothing either.
  const newest = await provider.token({ iat: now, groups: ['staff'] });
  const between = await provider.token({ iat: now - 25, groups: ['ops', 'staff'] });
  t.is((await me(newest)).status, 200);
  t.is(await sequence(), reached, 'a token with the same facts is no change');
  t.deepEqual((await me(between)).user.groups, ['staff']);
  const equal = await provider.token({ iat: now, groups: ['ops'] });
  t.deepEqual((await me(equal)).user.groups, ['staff'], 'an equal time is not newer');
});

test.serial('a raw claim gives no right of administration: only a rule does', async (t) => {
  const { provider, me, set } = await world(t, { role_claim: ['realm_access', 'roles'], default_role: 'guest' });
  const as = async (sub: string, roles: unknown, iat = seconds()) =>
    (await me(await provider.token({ sub, iat, realm_access: { roles } }))).user;
  t.is((await as('a', ['admin'])).role, 'guest');
  t.is((await as('b', 'auditor')).role, 'guest');
  t.is((await as('c', ['admin', 'auditor', 'analyst'])).role, 'analyst');
  await set({ rules: [{ if_role: 'admin', role: 'admin' }] });
  t.is((await as('d', ['admin'])).role, 'admin');
  // Role and groups of users who were seen before are derived again by the change.
  t.is((await me(await provider.token({ sub: 'a', iat: seconds() - 100 }))).user.role, 'admin');
  await set({ rules: [] });
  t.is((await me(await provider.token({ sub: 'd', iat: seconds() - 100 }))).user.role, 'guest');
});

test.serial('a user whom the newest facts no longer admit is refused everywhere, until newer facts admit them', async (t) => {
  const rules = [{ if_group: 'staff', role: 'user' }];
  const { gateway, provider, me, admin } = await world(t, { rules, default_role: null });
  const now = seconds();
  const before = await provider.token({ iat: now - 100, groups: ['staff'] });
  const { user } = await me(before);
  const left = await me(await provider.token({ iat: now - 50, groups: [] }));
  t.is(left.status, 401);
  t.regex(left.detail, /no role here/);
  t.is((await me(before)).status, 401, 'the older token too');
  const listed = await gateway.rest<User>(200, 'GET', `/api/users/${user.id}`, { token: admin });
  t.is(listed.body.refusal, 'no_role');
  t.is((await me(await provider.token({ iat: now, groups: ['staff'] }))).status, 200);
});

test.serial('groups and role that administrators give are kept apart from those of the provider', async (t) => {
  const { gateway, provider, me, admin } = await world(t);
  const now = seconds();
  const { user } = await me(await provider.token({ iat: now - 100, groups: ['staff'] }));
  const put = <T>(status: number, body: Claims) =>
    gateway.rest<T>(status, 'PUT', `/api/users/${user.id}`, { token: admin, body });
  await put(400, { groups: ['x'] });
  const given = (await put<User>(200, { given_groups: ['pilots'], role: 'operator' })).body;
  t.like(given, { role: 'operator', given_role: 'operator' });
  t.deepEqual(given.groups, ['staff', 'pilots']);
  t.deepEqual((await put<User>(200, given as never)).body, given, 'what was read can be put back');
  const later = await me(await provider.token({ iat: now, groups: ['other'] }));
  t.deepEqual(later.user.groups, ['other', 'pilots']);
  t.is(later.user.role, 'operator');
  t.is((await put<User>(200, { given_role: null, given_groups: [] })).body.role, 'user');
});

test.serial('a disabled user, a disabled provider and ended tokens are refused with the next request', async (t) => {
  const { gateway, provider, me, admin, set, id } = await world(t);
  const token = await provider.token({ iat: seconds() - 10 });
  const { user } = await me(token);
  const put = (body: Claims) => gateway.rest(200, 'PUT', `/api/users/${user.id}`, { token: admin, body });
  await put({ enabled: false });
  t.is((await me(token)).status, 401);
  await put({ enabled: true });
  t.is((await me(token)).status, 200);
  await set({ enabled: false });
  t.is((await me(token)).status, 401);
  await set({ enabled: true });
  t.is((await me(token)).status, 200);
  await set({ tokens: { audiences: ['something-else'], types: ['at+jwt'] } });
  t.is((await me(token)).status, 401);
  await set({ tokens: { audiences: [AUDIENCE], types: ['at+jwt'] }, clock_skew_seconds: 0 });
  t.is((await me(token)).status, 200);
  await gateway.rest(200, 'POST', `/api/users/${user.id}/end-tokens`, { token: admin });
  const ended = await me(token);
  t.is(ended.status, 401);
  t.regex(ended.detail, /issued before/);
  await gateway.rest(204, 'DELETE', `/api/providers/${id}`, { token: admin });
  t.is((await me(await provider.token())).status, 401);
  // A provider with the same issuer gets its users back, and what ended them still holds.
  await gateway.rest(201, 'POST', '/api/providers', { token: admin, body: registration(provider) });
  t.is((await me(token)).status, 401);
});

test.serial('a token that is presented after a change of the provider is read under the new settings', async (t) => {
  const { provider, me, set } = await world(t, { groups_claim: null });
  const iat = seconds();
  const claims = { groups: ['contractors'], memberOf: ['staff'] };
  t.deepEqual((await me(await provider.token({ ...claims, iat: iat - 2 }))).user.groups, []);
  const [second, third] = [await provider.token({ ...claims, iat: iat - 1 }), await provider.token({ ...claims, iat })];
  await set({ groups_claim: ['groups'] });
  t.deepEqual((await me(second)).user.groups, ['contractors'], 'the claims under the old settings repeat the record');
  await set({ groups_claim: ['memberOf'] });
  t.deepEqual((await me(third)).user.groups, ['staff']);
});

test.serial('a token of the provider makes no tokens and changes no password', async (t) => {
  const { gateway, provider } = await world(t);
  const token = await provider.token();
  for (const [method, path, body] of [
    ['POST', '/api/auth/tokens', { name: 'mine' }],
    ['PUT', '/api/auth/password', { current_password: 'a long passphrase', new_password: 'a long passphrase' }],
    ['POST', '/api/auth/logout', undefined],
  ] as const)
    t.is((await rest(gateway.url, method, path, { token, body })).status, 403, path);
  t.is((await rest(gateway.url, 'GET', '/api/users', { token })).status, 403);
});

test.serial('an administrator by rule may change things, until the rule is gone', async (t) => {
  const rules = [{ if_group: 'admins', role: 'admin' }];
  const { gateway, provider, set } = await world(t, { rules });
  const token = await provider.token({ groups: ['admins'] });
  const body = { email: 'new@example.com', password: 'a long passphrase' };
  await gateway.rest(201, 'POST', '/api/users', { token, body });
  await set({ rules: [] });
  t.is((await rest(gateway.url, 'POST', '/api/users', { token, body: { ...body, email: 'b@c' } })).status, 403);
});

test.serial('provisioning that is off, e-mail domains and missing groups refuse strangers', async (t) => {
  const { provider, me, set } = await world(t, { provisioning: false });
  const token = async (claims: Claims) => (await me(await provider.token(claims))).detail;
  t.regex(await token({}), /no account here/);
  await set({ provisioning: true, email_domains: ['example.com'] });
  t.regex(await token({}), /domain/);
  t.regex(await token({ email: 'a@evil.example' }), /domain/);
  t.regex(await token({ email: 'a@example.com.evil.example' }), /domain/);
  t.regex(await token({ email: 'a@example.com', email_verified: false }), /not been verified/);
  t.is((await me(await provider.token({ email: 'a@EXAMPLE.com', email_verified: true }))).status, 200);
  await set({ groups_required: true });
  t.regex(await token({ sub: 'b', email: 'b@example.com' }), /does not contain your groups/);
});

test.serial('a rotated key is read when a token names it, and a withdrawn key counts no more', async (t) => {
  const { gateway, provider, me, admin, id } = await world(t);
  const old = await provider.token();
  t.is((await me(old)).status, 200);
  const reads = provider.requests.length;
  t.is((await me(old)).status, 200);
  t.is(provider.requests.length, reads, 'the keys are cached');
  await provider.addKey('two');
  const probe = () => gateway.rest<Health>(200, 'POST', `/api/providers/${id}/probe`, { token: admin });
  t.deepEqual(
    (await probe()).body.keys.map(({ kid }) => kid),
    ['one', 'two'],
  );
  t.is((await me(await provider.token({}, { kid: 'two' }))).status, 200);
  t.is((await me(old)).status, 200, 'both count during the overlap');
  provider.removeKey('one');
  await probe();
  t.is((await me(old)).status, 401);
  const asked = provider.requests.length;
  for (let i = 0; i < 5; i++)
    t.is((await me(await provider.token({}, { kid: 'two', header: { kid: `made-up-${i}` } }))).status, 401);
  t.true(provider.requests.length <= asked + 2, 'made-up key ids do not make the gateway ask again and again');
});

test.serial('a provider that was never reached answers 503, and says why to the administrator', async (t) => {
  const { provider, me, health } = await world(t);
  const token = await provider.token();
  await provider.stop();
  const { status, detail } = await me(token);
  t.is(status, 503);
  t.regex(detail, /provider cannot be reached/);
  t.regex((await health()).failure?.message ?? '', /cannot be reached/);
  t.is((await health()).status, 'down');
});

const reply =
  (body: unknown, status = 200, headers: Record<string, string> = {}) =>
  (_req: unknown, res: import('node:http').ServerResponse): void => {
    res.writeHead(status, { 'content-type': 'application/json', ...headers });
    res.end(typeof body === 'string' ? body : JSON.stringify(body));
  };

test.serial('metadata that leads elsewhere is refused', async (t) => {
  const { provider, me, health, gateway, admin, id } = await world(t);
  const inside = await startProvider(t);
  const token = await provider.token();
  const path = '/.well-known/openid-configuration';
  const metadata = { issuer: provider.issuer, jwks_uri: `${provider.issuer}/jwks` };
  const cases: readonly (readonly [name: string, path: string, reply: ReturnType<typeof reply>, reason: RegExp])[] = [
    ['keys on a private address', path, reply({ ...metadata, jwks_uri: `${inside.issuer}/jwks` }), /public internet/],
    ['keys of a cloud', path, reply({ ...metadata, jwks_uri: 'http://169.254.169.254/keys' }), /must begin with https/],
    ['keys in a file', path, reply({ ...metadata, jwks_uri: 'file:///etc/passwd' }), /must begin with https/],
    [
      'keys over a private address with https',
      path,
      reply({ ...metadata, jwks_uri: 'https://10.0.0.1/keys' }),
      /public internet/,
    ],
    [
      'a name that is a private address',
      path,
      reply({ ...metadata, jwks_uri: 'https://localhost:9443/keys' }),
      /public internet/,
    ],
    ['a different issuer', path, reply({ ...metadata, issuer: inside.issuer }), /names the issuer/],
    ['an issuer with a slash more', path, reply({ ...metadata, issuer: `${provider.issuer}/` }), /names the issuer/],
    ['a redirect', path, reply('', 302, { location: `${inside.issuer}${path}` }), /redirect/],
    ['a redirect of the keys', '/jwks', reply('', 307, { location: `${inside.issuer}/jwks` }), /redirect/],
    ['giant keys', '/jwks', reply(`{"keys": [${' '.repeat(300_000)}]}`), /more than 262144 bytes/],
    ['too many keys', '/jwks', reply({ keys: Array.from({ length: 101 }, () => ({})) }), /more than 100 keys/],
    ['no keys', '/jwks', reply({ keys: [] }), /no key/],
    ['a shared key', '/jwks', reply({ keys: [{ kty: 'oct', k: 'c2VjcmV0', kid: 'one', alg: 'HS256' }] }), /no key/],
    ['a weak key', '/jwks', reply({ keys: [weak] }), /no key/],
    ['no JSON', '/jwks', reply('<html>'), /JSON object/],
    ['an error', '/jwks', reply({}, 500), /status 500/],
  ];
  for (const [name, where, answer, reason] of cases) {
    provider.overrides.set(where, answer);
    const probed = await gateway.rest<Health>(200, 'POST', `/api/providers/${id}/probe`, { token: admin });
    t.regex(probed.body.failure?.message ?? '', reason, name);
    t.is((await me(token)).status, 503, name);
    provider.overrides.clear();
  }
  t.deepEqual(inside.requests, [], 'nothing inside was asked');
  await gateway.rest(200, 'POST', `/api/providers/${id}/probe`, { token: admin });
  t.is((await me(token)).status, 200);
  t.is((await health()).status, 'ok');
});

/** An RSA key of 1024 bits. */
const weak = {
  kty: 'RSA',
  kid: 'one',
  e: 'AQAB',
  n: Buffer.alloc(128, 0xab).toString('base64url'),
};

test.serial('an account can be linked to a user, who keeps id, role and groups, and has no password afterwards', async (t) => {
  const { gateway, provider, me, admin, user } = await world(t);
  const bob = await person(gateway, 'bob@example.com');
  await gateway.rest(200, 'PUT', `/api/users/${bob.id}`, { token: admin, body: { role: 'analyst', groups: ['blue'] } });
  const { user: seen } = await me(await provider.token({ sub: 'bob', iat: seconds() - 10, groups: ['staff'] }));
  t.not(seen.id, bob.id);
  const body = { issuer: provider.issuer, subject: 'bob' };
  const linked = await gateway.rest<User>(200, 'POST', `/api/users/${bob.id}/link`, { token: admin, body });
  t.like(linked.body, { id: bob.id, issuer: provider.issuer, subject: 'bob', role: 'analyst', given_role: 'analyst' });
  t.deepEqual(linked.body.groups, ['staff', 'blue']);
  t.false((await user(seen.id)).enabled);
  t.is((await me(bob.token)).status, 401, 'the logins of the local account have ended');
  t.is((await rest(gateway.url, 'POST', '/api/auth/login', { body: { email: bob.email, password: bob.password } })).status, 401);
  const now = await me(await provider.token({ sub: 'bob', groups: ['staff'] }));
  t.is(now.user.id, bob.id);
  // A new account may take the e-mail: it is unique among local accounts only.
  t.not((await person(gateway, 'bob@example.com')).id, bob.id);
  const last = await rest(gateway.url, 'POST', `/api/users/${(await me(admin)).user.id}/link`, {
    token: admin,
    body: { ...body, subject: 'x' },
  });
  t.is(last.status, 409, 'the last local administrator stays local');
});

test.serial('the API tokens of a user of a provider end when the user is linked to a different account', async (t) => {
  const { gateway, provider, me, admin } = await world(t);
  const local = await person(gateway, 'local@example.com');
  const { token } = await apiToken(gateway, local);
  const link = (id: string, subject: string) =>
    gateway.rest(200, 'POST', `/api/users/${id}/link`, { token: admin, body: { issuer: provider.issuer, subject } });
  await link(local.id, 'first');
  t.is((await me(token)).status, 200, 'of a local account they stay: its groups do, too');
  await link(local.id, 'second');
  t.is((await me(token)).status, 401);
});

test.serial('wrong settings of a provider are named by their paths, and its secret is never shown', async (t) => {
  const { gateway, provider, admin, id } = await world(t);
  const refusedAt = async (body: Claims) => {
    const { body: problem } = await gateway.rest<{ errors: { path: string }[] }>(400, 'POST', '/api/providers', {
      token: admin,
      body: registration(provider, { name: 'x', issuer: 'https://login.example.com', ...body }),
    });
    return problem.errors.map(({ path }) => path);
  };
  t.deepEqual(await refusedAt({ issuer: 'http://login.example.com' }), ['issuer']);
  t.deepEqual(await refusedAt({ issuer: 'https://u:p@login.example.com' }), ['issuer']);
  t.deepEqual(await refusedAt({ issuer: 'https://169.254.169.254' }), ['issuer']);
  t.deepEqual(await refusedAt({ issuer: gateway.url }), ['issuer']);
  t.deepEqual(await refusedAt({ issuer: 'portcullis' }), ['issuer']);
  t.deepEqual(await refusedAt({ algorithms: ['HS256'] }), ['algorithms.0']);
  t.deepEqual(await refusedAt({ algorithms: ['none'] }), ['algorithms.0']);
  t.deepEqual(await refusedAt({ default_role: 'admin' }), ['default_role']);
  t.deepEqual(await refusedAt({ scopes: ['email'] }), ['scopes']);
  t.deepEqual(await refusedAt({ rules: [{ if_role: 'x', role: 'y' }] }), ['rules.0.if_role']);
  t.deepEqual(await refusedAt({ rules: [{ if_group: 'x' }] }), ['rules.0']);
  t.deepEqual(await refusedAt({ tokens: { audiences: ['the-gateway'], types: ['JWT'] } }), ['tokens.audiences']);
  t.is((await rest(gateway.url, 'POST', '/api/providers', { token: admin, body: registration(provider) })).status, 409);
  const secret = 'a very secret value';
  const path = `/api/providers/${id}`;
  const set = await gateway.rest<ProviderDocument>(200, 'PUT', path, { token: admin, body: { client_secret: secret } });
  t.true(set.body.client_secret_set);
  t.deepEqual(
    (await gateway.rest(200, 'PUT', path, { token: admin, body: set.body })).body,
    set.body,
    'what was read can be put back',
  );
  await gateway.rest(400, 'PUT', path, { token: admin, body: { issuer: 'https://login.example.com' } });
  const changes = await gateway.rest(200, 'GET', '/api/changes', { token: admin });
  const all = await gateway.rest(200, 'GET', '/api/providers', { token: admin });
  t.false(JSON.stringify([changes.body, all.body]).includes(secret));
});
