import test from 'ava';
import { auditStore } from '../../../src/audit/audit-store.ts';
import { firstIdOf, timeOf } from '../../../src/audit/chain/chain.ts';
import { literalId } from '../../../src/audit/chain/tables/log-tables.ts';
import { segmentKey } from '../../../src/audit/chain/tables/segment-store.ts';
import { readConfig } from '../../../src/config/config.ts';
import { openDatabase } from '../../../src/db/database.ts';
import { decision, quietWriter, stamper } from '../../audit/records.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { person, startGateway } from '../../support/gateway.ts';

interface Entry {
  readonly id: string;
  readonly outcome: string | null;
  readonly shown: object | null;
}

eachEngine(test.serial, 'administrators and auditors read the log, newest first', async (t, at) => {
  // Written before the gateway starts: SQLite serves one process and, in it, one pool.
  const database = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, async () => {});
  const store = auditStore(database.knex);
  const chain = stamper();
  const id = '0190163d-8694-739b-aea5-966c26f8ad90';
  const records = Array.from({ length: 150 }, (_, i) => decision({ resource_name: `tool ${i}` }));
  const list = decision({
    method: 'tools/list',
    effect: 'allow',
    reason: 'matched',
    target_id: id,
    policy_id: id,
    policy_name: 'p',
    policy_priority: 5,
    resource_type: null,
    resource_name: null,
  });
  await store.insert({ decisions: [...records, list].map(chain.decision) });
  await store.insert({ shown: [chain.shown({ decision_id: list.id, resource_type: 'tool', names: ['echo'], hidden: 2 })] });
  await store.insert({ outcomes: [chain.outcome({ decision_id: list.id, outcome: 'ok', duration_ms: 3 }, 1)] });
  await database.close();

  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  const auditor = await person(gateway, 'auditor@example.com');
  const other = await person(gateway, 'other@example.com');
  await gateway.rest(200, 'PUT', `/api/users/${auditor.id}`, { token: admin.token, body: { role: 'auditor' } });
  for (const path of ['/api/logs', `/api/logs/${list.id}`, '/api/changes']) {
    await gateway.rest(401, 'GET', path);
    await gateway.rest(403, 'GET', path, { token: other.token });
    await gateway.rest(200, 'GET', path, { token: auditor.token });
  }
  const read = (path: string, expected = 200) => gateway.rest<Entry[]>(expected, 'GET', path, { token: admin.token });

  const first = await read('/api/logs');
  t.is(first.body.length, 100);
  t.deepEqual(first.body[0], {
    ...list,
    created_at: '2023-11-14T22:13:20.000Z',
    outcome: 'ok',
    duration_ms: 3,
    shown: { count: 1, hidden: 2, names: ['echo'] },
  } as unknown as Entry);
  t.like(first.body[1], { id: records.at(-1)?.id, outcome: null, shown: null, effect: 'deny', reason: 'default' });
  const next = /^<(\/api\/logs\?.*)>; rel="next"$/.exec(first.headers.get('link') ?? '')?.[1] ?? '';
  const second = await read(next);
  t.is(second.body.length, 51);
  t.is(second.headers.get('link'), null);
  t.is(new Set([...first.body, ...second.body].map((entry) => entry.id)).size, 151);
  const whole = await read('/api/logs?limit=1000');
  t.deepEqual(whole.body, [...first.body, ...second.body]);
  t.is(whole.headers.get('content-type'), 'application/json; charset=utf-8');
  t.deepEqual((await read('/api/logs?target_name=missing')).body, []);

  const one = await gateway.rest<Entry>(200, 'GET', `/api/logs/${list.id}`, { token: admin.token });
  t.deepEqual(one.body, first.body[0] as Entry);
  await read('/api/logs/nothing', 404);
  await read(`/api/logs/${id}`, 404);
  for (const query of [
    'limit=1001',
    'limit=0',
    'cursor=eA',
    'user=x',
    'effect=maybe',
    'from=yesterday',
    'user_id=a&user_id=b',
    'limit=1&limit=2',
  ])
    await read(`/api/logs?${query}`, 400);
  await gateway.rest(405, 'DELETE', `/api/logs/${list.id}`, { token: admin.token });
});

eachEngine(test.serial, 'changes are read page by page, with actor and request id', async (t, at) => {
  const gateway = await startGateway(t, at.url);
  const admin = await person(gateway, 'admin@example.com');
  for (let i = 0; i < 3; i++) {
    await gateway.rest(201, 'POST', '/api/targets', { token: admin.token, body: { name: `t${i}`, url: 'http://127.0.0.1:9/' } });
  }
  const read = (path: string) =>
    gateway.rest<{ object_id: string; request_id: string; actor: object; sequence: number }[]>(200, 'GET', path, {
      token: admin.token,
    });
  const first = await read('/api/changes?limit=2');
  t.deepEqual(
    first.body.map(({ sequence }) => sequence),
    [3, 2],
  );
  t.like(first.body[0], { action: 'target.create', object_type: 'target', before: null, after: { name: 't2' }, revision: 0 });
  t.deepEqual(first.body[0]?.actor, { id: admin.id, email: admin.email });
  const next = /^<(.*)>; rel="next"$/.exec(first.headers.get('link') ?? '')?.[1] ?? '';
  t.deepEqual(
    (await read(next)).body.map(({ sequence }) => sequence),
    [1],
  );
  await gateway.rest(400, 'GET', '/api/changes?cursor=eA', { token: admin.token });
});

eachEngine(test.serial, 'a search whose first parts find nothing goes on to a match', async (t, at) => {
  const database = await openDatabase(readConfig({ DATABASE_URL: at.url }).database, async () => {});
  const writer = quietWriter(database);
  const record = decision({ resource_name: 'zebra' });
  await writer.decision(record);
  await writer.close();
  // Each of these newer segments has as many rows as a part may search.
  for (const n of [1, 2, 3]) {
    const [low, high] = [firstIdOf(timeOf(record.id) + n * 1_000), firstIdOf(timeOf(record.id) + n * 1_000 + 1)].map(literalId);
    await database.knex.raw(
      `insert into log_segments (id, last_seq, low, high) values (x'${segmentKey(record.id, n)}', 1000000, ${low}, ${high})`,
    );
  }
  const part = await auditStore(database.knex).page({ resource_name_prefix: 'zeb' }, 100, null);
  t.deepEqual([part.entries, part.next === null], [[], false]);
  await database.close();

  const gateway = await startGateway(t, at.url);
  const { token } = await person(gateway, 'admin@example.com');
  const { body } = await gateway.rest<Entry[]>(200, 'GET', '/api/logs?resource_name_prefix=zeb', { token });
  t.deepEqual(
    body.map(({ id }) => id),
    [record.id],
  );
});
