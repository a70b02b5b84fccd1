import test from 'ava';
import { grantStore } from '../../src/auth/grant-store.ts';
import { tokenStore } from '../../src/auth/token-store.ts';
import { type Identity, judgeIdentity } from '../../src/state/admission.ts';
import { createIdentities } from '../../src/state/identities.ts';
import { readIdentities } from '../../src/state/identity-store.ts';
import { localUser, userStore } from '../../src/users/user-store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';

const of = (token: string, user: string, role = 'user'): Identity => ({
  token: { id: token, user_id: user, kind: 'api', kid: 'k', expires_at: null, limits: null, revoked_at: null },
  user: localUser({ id: user, email: 'u@x', role, groups: [] }, 1),
});

test('forgetting a token or a user forgets only their identities', (t) => {
  const identities = createIdentities(10);
  for (const [token, user] of [
    ['a1', 'a'],
    ['a2', 'a'],
    ['b1', 'b'],
    ['b2', 'b'],
  ] as const)
    identities.remember(of(token, user));
  const known = (): string => ['a1', 'a2', 'b1', 'b2'].filter((token) => identities.get(token) !== undefined).join();
  identities.forgetToken('a1');
  identities.forgetToken('nobody');
  t.is(known(), 'a2,b1,b2');
  identities.forgetUser('b');
  identities.forgetUser('nobody');
  t.is(known(), 'a2');
  identities.remember(of('b1', 'b'));
  identities.clear();
  t.is(known(), '');
  identities.forgetUser('b');
  identities.remember(of('b2', 'b'));
  identities.forgetUser('b');
  t.is(known(), '');
});

test('a token that is remembered again has the newer identity, and is forgotten with its new user', (t) => {
  const identities = createIdentities(10);
  identities.remember(of('a', 'before'));
  identities.remember(of('a', 'after', 'admin'));
  t.is(identities.get('a')?.user.role, 'admin');
  identities.forgetUser('before');
  t.is(identities.get('a')?.user.id, 'after');
  identities.forgetUser('after');
  t.is(identities.get('a'), undefined);
});

test('the oldest identity makes room for a new one, and its user can still be forgotten', (t) => {
  const identities = createIdentities(3);
  for (const token of ['a', 'b', 'c', 'd']) identities.remember(of(token, 'u'));
  t.deepEqual(
    ['a', 'b', 'c', 'd'].map((token) => identities.get(token) !== undefined),
    [false, true, true, true],
  );
  identities.remember(of('b', 'u'));
  identities.remember(of('e', 'v'));
  t.deepEqual(
    ['b', 'c', 'd', 'e'].map((token) => identities.get(token) !== undefined),
    [true, false, true, true],
  );
  identities.forgetUser('u');
  t.deepEqual(
    ['b', 'd', 'e'].map((token) => identities.get(token) !== undefined),
    [false, false, true],
  );
});

eachEngine(test.serial, 'a damaged row enables no user', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  await userStore(knex).insert(localUser({ id: 'u', email: 'u@x', role: 'user', groups: [] }, 1), 'hash');
  const token = {
    id: 't',
    user_id: 'u',
    kind: 'api',
    name: 'n',
    kid: 'k',
    created_at: 1,
    expires_at: null,
    limits: null,
    revoked_at: null,
  } as const;
  await tokenStore(knex).insert(token);
  const isEnabled = async () => (await readIdentities(knex, ['t']))[0]?.user.enabled;
  t.true(await isEnabled());
  await knex('users').update({ enabled: 2 });
  t.false(await isEnabled());
});

eachEngine(test.serial, 'an access token ends with its grant', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  await userStore(knex).insert(localUser({ id: 'u', email: 'u@x', role: 'user', groups: [] }, 1), 'hash');
  await grantStore(knex).insert({
    ...{ id: 'g', user_id: 'u', client: 'c', resources: {}, openid: '', redirect_uri: 'https://client.test/' },
    ...{ created_at: 1, used_at: 1, expires_at: 1_000 },
  });
  const claims = { iss: 'i', sub: 'u', jti: 'g', kid: 'k', exp: 9, resource: '/mcp', provider: null };
  const judge = async (now: number) => judgeIdentity(claims, (await readIdentities(knex, ['g']))[0] ?? null, new Map(), now);
  t.like(await judge(999), { sub: 'u', token_kind: 'access' });
  t.like(await judge(1_000), { refused: 'invalid_token' });
});
