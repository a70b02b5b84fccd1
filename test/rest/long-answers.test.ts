/** Answers that are written as their clients read them. */
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { type User, userStore } from '../../src/users/user-store.ts';
import { person, startGatewayWithDatabase } from '../support/gateway.ts';

/** More than fits into the buffers between gateway and client. */
const USERS = 2_500;
const EMAIL_LENGTH = 8_000;
/** How long an answer goes on without a check, and a little more. */
const CHECKED_EVERY_MS = 250;

async function manyUsers(t: ExecutionContext) {
  const gateway = await startGatewayWithDatabase(t);
  const { knex } = gateway.database;
  const admin = await person(gateway, 'admin@example.com');
  const auditor = await person(gateway, 'auditor@example.com');
  const known = await userStore(knex).find(auditor.id);
  await knex.transaction(async (trx) => {
    for (let i = 0; i < USERS; i++) {
      const email = `${'x'.repeat(EMAIL_LENGTH)}${i}@example.com`;
      await userStore(trx).insert({ ...(known as User), id: `user ${i}`, subject: `user ${i}`, email }, 'hash');
    }
  });
  const as = { token: admin.token };
  const { body: target } = await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
    ...as,
    body: { name: 'x', transport: 'sse', url: 'http://127.0.0.1:9/sse' },
  });
  const all = { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
  const { body: policy } = await gateway.rest<{ id: string }>(201, 'POST', '/api/policies', { ...as, body: all });
  const ask = (path: string, { token } = auditor) => fetch(gateway.url + path, { headers: { authorization: `Bearer ${token}` } });
  return {
    policy,
    target,
    admin,
    ask,
    as: <T>(method: string, path: string, body: object) => gateway.rest<T>(200, method, path, { ...as, body }),
    setRole: (role: string) => gateway.rest(200, 'PUT', `/api/users/${auditor.id}`, { ...as, body: { role } }),
    /** Reads an answer of the auditor. `then`: what happens when its first part has arrived. */
    async read(path: string, then: () => Promise<unknown>): Promise<string> {
      const answer = await ask(path);
      t.is(answer.status, 200, path);
      let length = 0;
      try {
        for await (const chunk of answer.body ?? []) {
          if (length === 0) await then();
          length += (chunk as Uint8Array).length;
        }
        return `whole: ${length > USERS * EMAIL_LENGTH}`;
      } catch {
        return 'broken off';
      }
    },
  };
}

const CSV = '/api/policies/access?format=csv';

test('the list of all users and the CSV of access break off when their reader may no longer read them', async (t) => {
  const { read, setRole } = await manyUsers(t);
  for (const path of ['/api/users', CSV]) {
    await setRole('auditor');
    t.is(await read(path, async () => undefined), 'whole: true', path);
    const loseRight = async (): Promise<void> => {
      await setRole('user');
      await sleep(CHECKED_EVERY_MS);
    };
    t.is(await read(path, loseRight), 'broken off', path);
  }
});

test('the CSV of access breaks off when policies or targets change, so that nobody is in it who never had access', async (t) => {
  const { read, setRole, policy, target, as } = await manyUsers(t);
  await setRole('auditor');
  const body = { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
  t.is(await read(CSV, () => as('PUT', `/api/policies/${policy.id}`, { ...body, enabled: false })), 'broken off');
  await as('PUT', `/api/policies/${policy.id}`, body);
  t.is(await read(CSV, () => as('PUT', `/api/targets/${target.id}`, { name: 'y' })), 'broken off', 'the rows have names');
  t.is(await read('/api/users', () => as('PUT', `/api/targets/${target.id}`, { name: 'x' })), 'whole: true');
});

test('a user reads only a few long answers at once', async (t) => {
  const { ask, setRole, admin } = await manyUsers(t);
  await setRole('auditor');
  const answers = await Promise.all(Array.from({ length: 8 }, () => ask('/api/users')));
  t.true(answers.every(({ status }) => status === 200));
  for (const path of ['/api/users', CSV]) {
    const refused = await ask(path);
    t.is(refused.status, 429);
    t.regex(await refused.text(), /8 long answers at once/);
  }
  t.is((await ask('/api/users?limit=1')).status, 200, 'short ones');
  const other = await ask('/api/users', admin);
  t.is(other.status, 200, 'others');
  for (const { body } of [...answers, other]) await body?.cancel();
  let status = 429;
  while (status === 429) {
    const again = await ask('/api/users');
    status = again.status;
    await again.body?.cancel();
  }
  t.is(status, 200);
});
