/** A change of a provider that has many users. */
import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import { type User, userStore } from '../../src/users/user-store.ts';
import { person, startGatewayWithDatabase } from '../support/gateway.ts';
import { registration, startProvider } from '../support/provider.ts';

test('other work runs while the roles of many users are derived', async (t) => {
  const gateway = await startGatewayWithDatabase(t);
  const { database } = gateway;
  const admin = await person(gateway, 'admin@example.com');
  const company = await startProvider(t);
  const { body } = await gateway.rest<{ id: string; issuer: string }>(201, 'POST', '/api/providers', {
    token: admin.token,
    body: registration(company),
  });
  const groups = Array.from({ length: 200 }, (_, i) => `group ${i}`);
  const user = (i: number): User => ({
    ...{ id: `user ${i}`, issuer: body.issuer, subject: `subject ${i}`, email: null, role: 'user', groups },
    facts: {
      ...{ claims: { email: null, roles: [], groups }, claims_iat: 0, given_role: null, given_groups: [], rule_groups: [] },
      ...{ role_from: 'default', refusal: null, directory: null },
    },
    ...{ valid_after: null, enabled: true, created_at: 1, updated_at: 1 },
  });
  await database.knex.transaction(async (trx) => {
    for (let i = 0; i < 400; i++) await userStore(trx).insert(user(i), null);
  });
  let turns = 0;
  let isRead = false;
  let isWritten = false;
  database.knex.on('query-response', (_rows: unknown, { sql }: { sql: string }) => {
    isRead ||= sql.includes('`users` where `issuer`');
  });
  database.knex.on('query', ({ sql }: { sql: string }) => {
    isWritten ||= isRead && sql.startsWith('update `users`');
  });
  const others = (async () => {
    for (; !isWritten; turns += isRead ? 1 : 0) await setImmediate();
  })();
  const rules = Array.from({ length: 200 }, (_, i) => ({ if_group: `unknown ${i}`, if_role: null, role: 'visitor', groups: [] }));
  await gateway.rest(200, 'PUT', `/api/providers/${body.id}`, {
    token: admin.token,
    body: { rules: [...rules, { if_group: 'group 1', if_role: null, role: 'developer', groups: [] }] },
  });
  await others;
  t.is((await userStore(database.knex).find('user 7'))?.role, 'developer');
  t.true(turns >= 3, `${turns} turns of the event loop`);
});
