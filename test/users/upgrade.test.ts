/** A database from before users had an issuer and a subject is upgraded with its users and tokens. */
import test from 'ava';
import { readConfig } from '../../src/config/config.ts';
import { makeCounter } from '../../src/db/changes.ts';
import { openDatabase } from '../../src/db/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { apiToken, person, rest, startGateway } from '../support/gateway.ts';
import { registration, startProvider } from '../support/provider.ts';

eachEngine(test.serial, 'users, passwords and tokens of an older database stay valid', async (t, at, engine) => {
  const isMysql = engine !== 'sqlite';
  const older = await startGateway(t, at.url);
  const ann = await person(older, 'Ann@example.com');
  const bob = await person(older, 'bob@example.com');
  const { token } = await apiToken(older, bob);
  await older.gateway.close();

  const { knex, close } = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, makeCounter);
  const dropIndex = (name: string) => knex.raw(`drop index ${name}${isMysql ? ' on users' : ''}`);
  for (const name of ['users_identity', 'users_local_email', 'users_email']) await dropIndex(name);
  for (const name of [...(isMysql ? ['local_email'] : []), 'issuer', 'subject', 'claims_iat', 'valid_after', 'facts'])
    await knex.raw(`alter table users drop column ${name}`);
  await knex.raw('create unique index users_email_key_unique on users (email_key)');
  await knex.schema.dropTable('providers');
  await knex('migrations').where({ name: '0016-identities' }).delete();
  t.is((await knex('users').select()).length, 2);
  await close();

  const gateway = await startGateway(t, at.url);
  const me = await rest<{ id: string; issuer: string; subject: string }>(gateway.url, 'GET', '/api/auth/me', { token });
  t.like(me.body, { id: bob.id, issuer: 'portcullis', subject: bob.id });
  const login = await gateway.rest<{ token: string }>(200, 'POST', '/api/auth/login', {
    body: { email: 'ANN@example.com', password: ann.password },
  });
  t.is((await rest(gateway.url, 'GET', '/api/auth/me', { token: ann.token })).status, 200, 'a login from before goes on');

  // E-mails stay unique among local accounts, and only among them.
  const again = { email: 'bob@EXAMPLE.com', password: 'a long passphrase' };
  t.is((await rest(gateway.url, 'POST', '/api/auth/register', { body: again })).status, 409);
  const provider = await startProvider(t);
  await gateway.rest(201, 'POST', '/api/providers', { token: login.body.token, body: registration(provider) });
  for (const sub of ['one', 'two']) {
    const presented = await provider.token({ sub, email: 'bob@example.com' });
    t.is((await rest(gateway.url, 'GET', '/api/auth/me', { token: presented })).status, 200);
  }
  t.is((await rest(gateway.url, 'POST', '/api/auth/register', { body: again })).status, 409);
  // A replica of the older version inserts accounts without an issuer and a subject.
  const open = isMysql ? await openDatabase(readConfig({ DATABASE_URL: at.url }).database, makeCounter) : null;
  if (open === null) return;
  await open.knex('users').insert({
    ...{ id: '0190163d-8694-739b-aea5-966c26f8ad90', email: 'c@d', email_key: 'c@d', password_hash: 'x', role: 'user' },
    ...{ groups: '[]', enabled: true, created_at: 1, updated_at: 1 },
  });
  await open.close();
  const of = await gateway.rest<{ subject: string; issuer: string }>(
    200,
    'GET',
    '/api/users/0190163d-8694-739b-aea5-966c26f8ad90',
    { token: login.body.token },
  );
  t.like(of.body, { issuer: 'portcullis', subject: '0190163d-8694-739b-aea5-966c26f8ad90' });
});
