/** Groups of thousands of members, and changes that break off in the middle. */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { type Database, openDatabase } from '../../src/db/database.ts';
import { directoryStore, nameKey } from '../../src/providers/directory-store.ts';
import { userStore } from '../../src/users/user-store.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, startGateway } from '../support/gateway.ts';
import { registration, startProvider } from '../support/provider.ts';
import { connectDirectory, GROUP, type Refusal } from './support.ts';

/** A gateway whose directory has sent this many users. The rows are inserted, because requests would take long. */
async function crowdedWorld(t: ExecutionContext, url: string | null, count: number) {
  const opened: Database[] = [];
  const open: typeof openDatabase = async (...given) => {
    const database = await openDatabase(...given);
    opened.push(database);
    return database;
  };
  const gateway = await startGateway(t, url, {}, { open });
  const [database] = opened as [Database];
  const company = await startProvider(t);
  const admin = await person(gateway, 'admin@example.com');
  const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token: admin.token,
    body: registration(company, { groups_from: 'directory' }),
  });
  const directory = await connectDirectory(t, gateway, admin, body.id);
  const ids = Array.from({ length: count }, () => randomUUID());
  const first = (await directory.user('first')).id;
  await database.knex.transaction(async (trx) => {
    // MySQL takes no value for a generated column.
    const { local_email: _, ...model } = await trx('users').where({ id: first }).first();
    const entry = await trx('directory_users').where({ user_id: first }).first();
    for (let at = 0; at < count; at += 100) {
      const some = ids.slice(at, at + 100);
      await trx('users').insert(some.map((id) => ({ ...model, id, subject: id })));
      await trx('directory_users').insert(
        some.map((id) => ({ ...entry, user_id: id, external_id: id, user_name: id, name_key: nameKey(id) })),
      );
    }
  });
  return { gateway, admin, directory, database, providerId: body.id, ids };
}

eachEngine(test.serial, 'a group of 5,000 members is made, renamed and deleted while others are served', async (t, at) => {
  const { gateway, directory, database, ids } = await crowdedWorld(t, at.url, 5_000);
  const groupsOf = async (some: readonly string[]) => {
    const users = await userStore(database.knex).findAll(some);
    return new Set(users.map(({ groups }) => groups.join()));
  };
  const sample = [ids[0], ids[2_500], ids[4_999]] as string[];
  let longest = 0;
  let isOver = false as boolean;
  // Without a pause, these requests would take half of the CPU time.
  const others = (async () => {
    for (; !isOver; await sleep(10)) {
      const from = performance.now();
      await gateway.rest(200, 'GET', '/health/ready');
      longest = Math.max(longest, performance.now() - from);
    }
  })();
  const timed = async (what: string, work: () => Promise<unknown>): Promise<number> => {
    const from = performance.now();
    await work();
    const took = performance.now() - from;
    t.log(what, Math.round(took), 'ms');
    return took;
  };
  const members = ids.map((value) => ({ value }));
  let id = '';
  const made = await timed('made', async () => {
    id = (
      await directory.send(201, 'POST', '/Groups?excludedAttributes=members', { schemas: [GROUP], displayName: 'All', members })
    ).body.id;
  });
  t.deepEqual([...(await groupsOf(sample))], ['All']);
  await timed('renamed', () => directory.patch(204, `/Groups/${id}`, { op: 'Replace', path: 'displayName', value: 'Everybody' }));
  t.deepEqual([...(await groupsOf(sample))], ['Everybody']);
  const half = members.slice(0, 2_500);
  await timed('halved', () =>
    directory.send(200, 'PUT', `/Groups/${id}`, { schemas: [GROUP], displayName: 'Everybody', members: half }),
  );
  t.deepEqual([await groupsOf(sample.slice(0, 1)), await groupsOf(sample.slice(1))], [new Set(['Everybody']), new Set([''])]);
  await timed('read', async () => t.is((await directory.send(200, 'GET', `/Groups/${id}`)).body.members?.length, 2_500));
  await timed('deleted', () => directory.send(204, 'DELETE', `/Groups/${id}`));
  t.deepEqual([...(await groupsOf(sample))], ['']);
  isOver = true;
  await others;
  t.log('longest wait of others', Math.round(longest), 'ms');
  t.true(longest < made / 4, `${longest} of ${made}: one transaction would keep others waiting for as long as the request takes`);
  const strangers = Array.from({ length: 10_000 }, () => ({ value: randomUUID() }));
  const group = await directory.group('Other');
  const patch = {
    schemas: ['urn:ietf:params:scim:api:messages:2.0:PatchOp'],
    Operations: [{ op: 'add', path: 'members', value: strangers }],
  };
  await directory.send<Refusal>(400, 'PATCH', `/Groups/${group.id}`, patch);
  const many = { ...patch, Operations: [{ op: 'add', path: 'members', value: [...strangers, ...strangers, { value: ids[0] }] }] };
  await directory.send<Refusal>(400, 'PATCH', `/Groups/${group.id}`, many);
  t.deepEqual([...(await groupsOf(sample))], ['']);
});

eachEngine(test.serial, 'the next change of any group finishes a new name that did not reach all members', async (t, at) => {
  const { directory, database, ids, providerId } = await crowdedWorld(t, at.url, 120);
  const { body: group } = await directory.send(201, 'POST', '/Groups', {
    schemas: [GROUP],
    displayName: 'Before',
    members: ids.map((value) => ({ value })),
  });
  // As a replica leaves it that ends after the first transaction.
  await database.knex('directory_groups').where({ id: group.id }).update({ name: 'After', name_key: 'after', stale: true });
  await directory.group('Other');
  const users = await userStore(database.knex).findAll(ids);
  t.deepEqual([...new Set(users.map(({ groups }) => groups.join()))], ['After']);
  t.is(await directoryStore(database.knex).groups.stale(providerId), null);
});

test.serial('a member who leaves a group with a new name never gets that name, even if the change breaks off', async (t) => {
  const { directory, database, ids } = await crowdedWorld(t, null, 2);
  const [stays, leaves] = ids as [string, string];
  const groupsOf = async (id: string) => (await userStore(database.knex).find(id))?.groups;
  const body = (displayName: string, ...members: string[]) => ({
    ...{ schemas: [GROUP], displayName, members: members.map((value) => ({ value })) },
  });
  const { id } = (await directory.send(201, 'POST', '/Groups', body('Readers', stays, leaves))).body;
  await directory.group('Taken');
  const path = `/Groups/${id}`;
  await directory.send<Refusal>(409, 'PUT', path, body('Taken', stays));
  await directory.send<Refusal>(412, 'PUT', path, body('Writers', stays), { 'If-Match': 'W/"99"' });
  t.deepEqual(await groupsOf(leaves), ['Readers'], 'a refused request changes nothing');

  const { version } = (await directory.send(200, 'GET', path)).body.meta;
  await database.knex.raw("create trigger fault before delete on directory_members begin select raise(abort, 'fault'); end");
  await directory.send<Refusal>(500, 'PUT', path, body('Writers', stays));
  await database.knex.raw('drop trigger fault');
  // It finishes what an earlier request could not.
  await directory.group('Other');
  t.deepEqual(await groupsOf(leaves), ['Readers']);
  await directory.send(200, 'PUT', path, body('Writers', stays), { 'If-Match': version });
  t.deepEqual([await groupsOf(stays), await groupsOf(leaves)], [['Writers'], []]);
});
