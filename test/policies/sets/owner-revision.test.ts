/** The revision that an apply expects counts for its owner. */
import test, { type ExecutionContext } from 'ava';
import { readConfig } from '../../../src/config/config.ts';
import { makeCounter, newestOf } from '../../../src/db/changes.ts';
import { openDatabase } from '../../../src/db/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { person, rest, startGateway } from '../../support/gateway.ts';
import { policyBody } from '../policies.ts';
import { file, type ProblemAnswer, policySets } from '../sets.ts';

async function start(t: ExecutionContext, url: string) {
  const gateway = await startGateway(t, url);
  const { token } = await person(gateway, 'admin@example.com');
  return { gateway, token, ...policySets(gateway, token) };
}

const filesOf = (priority: number, name = 'One') => ({ 'one.yaml': file({ name, priority }) });

eachEngine(test.serial, 'an apply is refused if its owner changed something, and not if a different owner did', async (t, at) => {
  const { apply, plan, refused, call, revision, policies, gateway, token } = await start(t, at.url);
  const expecting = (owner: string, expected_revision: number, more: object = {}) => ({ owner, expected_revision, ...more });
  t.is((await plan(filesOf(1), { owner: 'a' })).owner_revision, 0);
  t.like(await apply(filesOf(1), expecting('a', 0)), { revision: 1, owner_revision: 1 });
  await apply(filesOf(1), { owner: 'b' });
  await call(201, 'POST', '', policyBody({ name: 'Free' }));
  t.like(await plan(filesOf(2), { owner: 'a' }), { revision: 3, owner_revision: 1 });
  t.like(await plan(filesOf(2)), { owner_revision: 0 }, 'default is an owner like the others');
  t.is((await plan(filesOf(2), expecting('a', 1))).changes.length, 1);
  t.like(await apply(filesOf(2), expecting('a', 1)), { revision: 4, owner_revision: 4 });
  t.like(await apply(filesOf(2), expecting('a', 4)), { changes: [], revision: 4, owner_revision: 4 });

  for (const before of [0, 1, 3]) {
    t.regex((await refused(412, filesOf(3), expecting('a', before))).detail, /policies of the owner a changed at revision 4/);
  }
  t.regex((await refused(412, filesOf(3), expecting('a', 5))).detail, /Revision 5 does not exist: the newest is 4/);
  // A revision in which the owner's policies were the same means the same.
  await apply(filesOf(7), { owner: 'b' });
  await plan(filesOf(3), expecting('a', 5));

  // Overrides, rollbacks and drafts count, too.
  const id = (await policies()).find(({ managed_as }) => managed_as === 'a/one')?.id;
  await call(200, 'PUT', `/${id}?override=true`, { priority: 9 });
  await refused(412, filesOf(3), expecting('a', 5));
  await plan(filesOf(3), expecting('b', 5));
  await call(200, 'POST', '/rollback', { revision: 1, owner: 'a' });
  await refused(412, filesOf(3), expecting('a', 6));
  await call(412, 'POST', '/rollback', { revision: 1, owner: 'a', expected_revision: 6 });
  await gateway.rest(201, 'PUT', '/api/policies/drafts/d', { token, body: { files: filesOf(8), owner: 'a' } });
  await apply(filesOf(9), { owner: 'b' });
  const activate = (status: number, expected_revision: number) =>
    gateway.rest<ProblemAnswer>(status, 'POST', '/api/policies/drafts/d/activate', { token, body: { expected_revision } });
  await activate(412, 6);
  await activate(200, 7);

  // An adoption takes policies without an owner, so every change counts.
  const adopting = { 'free.yaml': file({ name: 'Free' }) };
  const now = await revision();
  t.is((await plan(adopting, { owner: 'b', adopt: true })).owner_revision, now);
  await refused(412, adopting, expecting('b', now - 1, { adopt: true }));
  await apply(adopting, expecting('b', now, { adopt: true }));
  // The owner that has a policy counts, and the one that has lost it.
  await refused(412, filesOf(1), expecting('b', now));
  await call(200, 'POST', '/rollback', { revision: now });
  await refused(412, filesOf(1), expecting('b', now + 1));
  await plan(filesOf(1), expecting('a', now));
});

eachEngine(test.serial, 'a policy that goes from one owner to the other counts for both', async (t, at) => {
  const { apply, plan, call, revision } = await start(t, at.url);
  await call(201, 'POST', '', policyBody({ name: 'One' }));
  await apply(filesOf(1), { owner: 'a', adopt: true });
  await call(200, 'POST', '/rollback', { revision: 1 });
  await apply(filesOf(1), { owner: 'b', adopt: true });
  await call(200, 'POST', '/rollback', { revision: 2 });
  for (const owner of ['a', 'b']) t.is((await plan(filesOf(2), { owner })).owner_revision, await revision());
});

eachEngine(
  test.serial,
  'owners who apply at the same time do not refuse each other, and an owner refuses itself',
  async (t, at, engine) => {
    const one = await start(t, at.url);
    const other = engine === 'sqlite' ? one.gateway : await startGateway(t, at.url);
    const revisions: Record<string, number> = { a: 0, b: 0 };
    for (let n = 1; n <= 5; n++) {
      const answers = await Promise.all(
        ['a', 'b'].flatMap((owner) =>
          [one.gateway, other, one.gateway].map(async ({ url }, i) => {
            const body = { files: filesOf(10 * n + i), owner, expected_revision: revisions[owner] };
            return {
              owner,
              ...(await rest<{ revision: number }>(url, 'POST', '/api/policies/apply', { token: one.token, body })),
            };
          }),
        ),
      );
      for (const owner of ['a', 'b']) {
        const its = answers.filter((answer) => answer.owner === owner);
        t.deepEqual(its.map(({ status }) => status).sort(), [200, 412, 412]);
        revisions[owner] = its.find(({ status }) => status === 200)?.body.revision ?? -1;
      }
    }
  },
);

eachEngine(test.serial, 'a change by an older version counts for every owner, and an index finds it', async (t, at, engine) => {
  const older = await start(t, at.url);
  await older.apply(filesOf(1), { owner: 'a' });
  await older.apply(filesOf(1), { owner: 'b' });
  await older.gateway.gateway.close();
  const { knex, close } = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, makeCounter);
  // The older version writes no owner.
  await knex('changes').where({ revision: 2, object_type: 'policy' }).update({ owner: null, override: null });
  const asked: { sql: string; bindings: readonly string[] }[] = [];
  const listener = (query: (typeof asked)[number]): void => void asked.push(query);
  knex.on('query', listener);
  t.is(await newestOf(knex, 'a'), 2);
  knex.removeListener('query', listener);
  t.is(asked.length, 2);
  for (const { sql, bindings } of asked) {
    const plan = await knex.raw(`explain ${engine === 'sqlite' ? 'query plan ' : ''}${sql}`, bindings);
    t.regex(JSON.stringify(plan), /changes_owner/);
    t.notRegex(JSON.stringify(plan), /filesort|TEMP B-TREE|SCAN/);
  }
  await close();

  const gateway = await startGateway(t, at.url);
  const { plan, refused } = policySets(gateway, older.token);
  t.is((await plan(filesOf(2), { owner: 'a' })).owner_revision, 2);
  await refused(412, filesOf(2), { owner: 'a', expected_revision: 1 });
  await plan(filesOf(2), { owner: 'a', expected_revision: 2 });
});
