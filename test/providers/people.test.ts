/** The records of people at a provider when many arrive at once. */
import test, { type ExecutionContext } from 'ava';
import { browserStore } from '../../src/auth/browser-store.ts';
import type { Administer, Authority, Caller } from '../../src/auth/caller.ts';
import { grantStore } from '../../src/auth/grant-store.ts';
import type { Provider } from '../../src/auth/provider.ts';
import { tokenStore } from '../../src/auth/token-store.ts';
import { createVault } from '../../src/auth/vault.ts';
import { AppError } from '../../src/base/errors.ts';
import { type Changes, createChanges } from '../../src/db/changes.ts';
import type { Presented } from '../../src/providers/claims.ts';
import { readProvider } from '../../src/providers/document.ts';
import { clientSecret, createProviderEdits, resealProviders } from '../../src/providers/edit.ts';
import { createPeople } from '../../src/providers/people.ts';
import { providerStore } from '../../src/providers/provider-store.ts';
import { EVERYBODY } from '../../src/users/local-sign-in.ts';
import { LOCAL_ISSUER, type User, userStore } from '../../src/users/user-store.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import type { TestDatabase } from '../support/databases/engines.ts';
import { createSqlite } from '../support/databases/sqlite.ts';

const PROVIDER: Provider = readProvider(
  { name: 'company', preset: 'openid', issuer: 'https://login.example.com', client_id: 'the-gateway' },
  { id: 'p', created_at: 0, updated_at: 0 },
).provider;

const presented = (subject: string, iat = 100): Presented => ({
  ...{ subject, iat, hasUnverifiedEmail: false },
  claims: { email: null, roles: [], groups: [] },
});

/** People whose changes wait until the test lets them go on. */
async function world(t: ExecutionContext, on: TestDatabase | null = null) {
  const sqlite = on === null ? await createSqlite() : null;
  t.teardown(() => sqlite?.drop());
  const database = await openTestDatabase(t, on ?? (sqlite as TestDatabase));
  await providerStore(database.knex).insert(PROVIDER);
  const changes = await createChanges(database, Date.now);
  const waiting: (() => void)[] = [];
  const actors: string[] = [];
  const arrivals: (() => void)[] = [];
  const change: Changes['change'] = async (actor, work) => {
    actors.push(actor.id);
    arrivals.shift()?.();
    await new Promise<void>((resolve) => waiting.push(resolve));
    return changes.change(actor, work);
  };
  return {
    database,
    changes,
    people: createPeople({ database, changes: { change }, now: Date.now }),
    waiting,
    actors,
    /** Settles without a wait. */
    settling: (provider: Provider, one: Presented) =>
      createPeople({ database, changes, now: Date.now }).settle(provider, one, 'a token'),
    users: userStore(database.knex),
    providers: providerStore(database.knex),
    /** Resolves when the next change wants to begin. */
    arrival: () => new Promise<void>((resolve) => arrivals.push(resolve)),
  };
}

function editsBy(changes: Changes) {
  const administer: Administer = (_caller, _need, work) =>
    changes.change({ id: 'admin', email: 'admin', request_id: 'r', reason: null }, (trx) => work(trx, {} as Authority));
  return createProviderEdits({
    ...{ administer, vault: createVault(Buffer.alloc(32, 1)), addresses: () => null, publicUrl: 'http://127.0.0.1' },
    ...{ localSignIn: EVERYBODY, newId: () => 'new', now: Date.now },
  });
}

test('strangers of a provider take one place in the line of changes, and not too many wait', async (t) => {
  const { people, waiting, actors, users, arrival } = await world(t);
  const first = arrival();
  const all = Array.from({ length: 150 }, (_, index) => people.settle(PROVIDER, presented(`s${index}`), 'a token'));
  const settled = Promise.allSettled(all);
  await first;
  t.is(actors.length, 1, 'one stranger at a time');
  let isDone = false;
  void settled.then(() => {
    isDone = true;
  });
  while (!isDone) {
    const next = arrival();
    waiting.shift()?.();
    await Promise.race([next, settled]);
    t.true(waiting.length <= 1);
  }
  const results = await settled;
  const made = results.filter(({ status }) => status === 'fulfilled').length;
  const late = results.filter((one): one is PromiseRejectedResult => one.status === 'rejected');
  t.is(made, 100);
  t.is(late.length, 50);
  for (const { reason } of late) t.like(reason as AppError, { code: 'unavailable', retryAfter: 1 });
  t.is((await users.page(1_000, null)).length, 100);
});

test('requests of one account settle it once', async (t) => {
  const { people, waiting, actors, arrival } = await world(t);
  const first = arrival();
  const all = Array.from({ length: 20 }, () => people.settle(PROVIDER, presented('alice'), 'a token'));
  await first;
  waiting.shift()?.();
  const users = await Promise.all(all);
  t.is(actors.length, 1);
  t.is(new Set(users.map((user) => ('id' in user ? user.id : ''))).size, 1);
  t.false(users.some((user) => user instanceof AppError));
});

test('a record is never written from claims that were read under earlier settings of the provider', async (t) => {
  const { settling, users, providers } = await world(t);
  const settle = (provider: Provider, subject: string, iat: number, groups: readonly string[]) =>
    settling(provider, { ...presented(subject, iat), claims: { email: null, roles: [], groups } });
  const alice = () => users.findBySubject(PROVIDER.issuer, 'alice');
  await settle(PROVIDER, 'alice', 100, ['staff']);
  const first = await alice();
  t.deepEqual(first?.groups, ['staff']);

  const changed: Provider = { ...PROVIDER, groups_claim: ['memberOf'] };
  await providers.update(changed);
  t.like(await settle(PROVIDER, 'alice', 101, []), { fault: 'provider_changed' });
  t.like(await settle(PROVIDER, 'bob', 101, []), { fault: 'provider_changed' }, 'a stranger');
  t.like(await settle(PROVIDER, 'alice', 102, ['staff']), { fault: 'provider_changed' }, 'the token repeats the record');
  t.deepEqual(await alice(), first);
  t.is(await users.findBySubject(PROVIDER.issuer, 'bob'), null);

  await settle(changed, 'alice', 102, ['contractors']);
  t.deepEqual((await alice())?.groups, ['contractors'], 'the same token counts under the present settings');
});

test('a token that was read without groups confirms nothing after groups come from tokens again', async (t) => {
  const { settling, users, providers, changes } = await world(t);
  const directory: Provider = { ...PROVIDER, groups_from: 'directory', clock_skew_seconds: 0 };
  await settling(PROVIDER, presented('alice'));
  await providers.update(directory);
  const edits = editsBy(changes);
  // A change that takes long: a newer token is read under the old settings before the record is locked.
  const alice = (await users.findBySubject(PROVIDER.issuer, 'alice')) as User;
  t.true(await users.confirmFacts(alice.id, 100, 101));
  await edits.update({} as Caller, directory.id, { groups_from: 'token' }, undefined);
  t.false(await users.confirmFacts(alice.id, 101, 102));
  t.is((await users.findBySubject(PROVIDER.issuer, 'alice'))?.facts?.claims_iat, 0);
});

eachEngine(test, 'a change of a provider ends the sign-ins of many users with few statements', async (t, db) => {
  const { users, providers, changes, database } = await world(t, db);
  const { knex } = database;
  await providers.update({ ...PROVIDER, groups_from: 'directory' });
  const count = 90;
  const now = Date.now();
  const signIn = async (user_id: string, facts: User['facts']): Promise<void> => {
    const issuer = facts === null ? LOCAL_ISSUER : PROVIDER.issuer;
    const text = { subject: user_id, email: facts === null ? `${user_id}@example.com` : null, role: 'user', groups: [] };
    const times = { valid_after: user_id.endsWith('1') ? now * 2 : null, created_at: now, updated_at: now };
    await users.insert({ id: user_id, issuer, ...text, facts, enabled: true, ...times }, null);
    for (const kind of ['login', 'api'] as const) {
      const token = { id: `${kind} of ${user_id}`, user_id, kind, name: kind === 'api' ? 'a token' : null, kid: 'k' };
      await tokenStore(knex).insert({ ...token, created_at: now, expires_at: null, revoked_at: null, limits: null });
    }
    const session = { id: user_id, user_id, method: 'password', role: 'user', agent: '', address: '', proved_at: now };
    await browserStore(knex).insert({ ...session, signed_in_at: now, seen_at: now }, user_id);
    const grant = { id: `grant of ${user_id}`, user_id, client: 'c', resources: {}, openid: '', redirect_uri: '' };
    await grantStore(knex).insert({ ...grant, created_at: now, used_at: now, expires_at: now });
  };
  const directory = { active: true, email: null, groups: ['staff'] };
  const claims = { email: null, roles: [], groups: [] };
  const given = { given_role: null, given_groups: [], rule_groups: [], role_from: 'default', refusal: null } as const;
  for (let i = 0; i < count; i++) await signIn(`user ${i}`, { claims, claims_iat: i, ...given, directory });
  await signIn('not sent', { claims, claims_iat: 1, ...given, directory: null });
  await signIn('too many groups', { claims, claims_iat: 1, ...given, directory: { ...directory, groups: null } });
  await signIn('local', null);
  let statements = 0;
  knex.on('query', () => statements++);
  await editsBy(changes).update({} as Caller, PROVIDER.id, { groups_from: 'token' }, undefined);
  t.true(statements < count, `${statements} statements`);
  for (const user of await users.page(1_000, null)) {
    if (user.facts === null) continue;
    t.is(user.facts.claims_iat, 0);
    t.true((user.valid_after ?? 0) >= (user.id.endsWith('1') ? now * 2 : now));
    t.deepEqual(user.groups, user.id.startsWith('user') ? ['staff'] : []);
  }
  t.deepEqual(await knex('browser_sessions').pluck('user_id'), ['local']);
  t.deepEqual(await knex('grants').pluck('user_id'), ['local']);
  const valid: string[] = await knex('tokens').whereNull('revoked_at').pluck('id');
  const ofSent = ['local', ...Array.from({ length: count }, (_, i) => `user ${i}`)].map((id) => `api of ${id}`);
  t.deepEqual(valid.filter((id) => id.startsWith('api')).toSorted(), ofSent.toSorted(), 'only of users with groups');
  t.deepEqual(
    valid.filter((id) => id.startsWith('login')),
    ['login of local'],
  );
  t.is((await knex('changes').where({ object_type: 'grant' })).length, count + 2);
  t.is((await knex('changes').where({ action: 'token.revoke' })).length, 2);
});

test('a client secret that is set while a replica starts with a new master key is kept', async (t) => {
  const { providers, database } = await world(t);
  const [former, key] = [Buffer.alloc(32, 1), Buffer.alloc(32, 2)];
  const running = createVault(former, [key]);
  const starting = createVault(key, [former]);
  const identity = JSON.stringify(['provider', PROVIDER.id, PROVIDER.issuer]);
  const setSecret = (secret: string) => providers.setSealedSecret(PROVIDER.id, running.seal(identity, Buffer.from(secret)));
  const secret = () => clientSecret(database.knex, starting, PROVIDER);
  await setSecret('old');
  await resealProviders(database.knex, starting);
  t.is(await clientSecret(database.knex, createVault(key), PROVIDER), 'old');
  await setSecret('old');
  let set: Promise<void> = Promise.resolve();
  const slow = (id: string, sealed: string): string | null => {
    set = setSecret('new');
    return starting.reseal(id, sealed);
  };
  await resealProviders(database.knex, { ...starting, reseal: slow });
  await set;
  t.is(await secret(), 'new');
});

test('a record in which no token has told the groups does not stand for an assertion without them', async (t) => {
  const { settling, users, people } = await world(t);
  await settling(PROVIDER, presented('alice'));
  const alice = (await users.findBySubject(PROVIDER.issuer, 'alice')) as User;
  t.is((await people.known(PROVIDER, 'alice'))?.id, alice.id);
  t.is(await people.known(PROVIDER, 'bob'), null);
  await users.update({ ...alice, facts: alice.facts && { ...alice.facts, claims_iat: 0 } });
  t.is(await people.known(PROVIDER, 'alice'), null);
  t.is((await people.known({ ...PROVIDER, groups_from: 'directory' }, 'alice'))?.id, alice.id);
});
