/** Long answers, whose readers lose their right to them. */
import { setTimeout as sleep } from 'node:timers/promises';
import test from 'ava';
import { type Database, openDatabase } from '../../src/db/database.ts';
import { type User, userStore } from '../../src/users/user-store.ts';
import { person, startGateway } from '../support/gateway.ts';

/** More than fits into the buffers between gateway and client. */
const USERS = 2_500;
const EMAIL_LENGTH = 8_000;
/** How long an answer goes on without a check, and a little more. */
const CHECKED_EVERY_MS = 250;

test('the list of all users and the CSV of access break off when their reader may no longer read them', async (t) => {
  const opened: Database[] = [];
  const gateway = await startGateway(
    t,
    null,
    {},
    {
      async open(...given) {
        const database = await openDatabase(...given);
        opened.push(database);
        return database;
      },
    },
  );
  const [{ knex }] = opened as [Database];
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
  const target = { name: 'x', transport: 'sse', url: 'http://127.0.0.1:9/sse' };
  await gateway.rest(201, 'POST', '/api/targets', { ...as, body: target });
  const all = { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
  await gateway.rest(201, 'POST', '/api/policies', { ...as, body: all });
  const role = (name: string) => gateway.rest(200, 'PUT', `/api/users/${auditor.id}`, { ...as, body: { role: name } });
  const read = async (path: string, then: () => Promise<unknown>): Promise<string> => {
    const answer = await fetch(gateway.url + path, { headers: { authorization: `Bearer ${auditor.token}` } });
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
  };
  for (const path of ['/api/users', '/api/policies/access?format=csv']) {
    await role('auditor');
    t.is(await read(path, async () => undefined), 'whole: true', path);
    const loseRight = async (): Promise<void> => {
      await role('user');
      await sleep(CHECKED_EVERY_MS);
    };
    t.is(await read(path, loseRight), 'broken off', path);
  }
});
