/** Erasures while several processes write: each has facts in memory, and must not bring erased data back. */
import test from 'ava';
import { auditStore } from '../../../src/audit/audit-store.ts';
import { firstIdOf } from '../../../src/audit/chain/chain.ts';
import { createErasure } from '../../../src/audit/upkeep/erasure.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine, eachServer } from '../../support/databases/each-engine.ts';
import { decision, KEY, quietWriter, verified } from '../records.ts';

const NOW = 1_800_000_000_000;
const MINUTE = 60_000;

const idAt = (time: number): string => firstIdOf(time).slice(0, 14) + decision().id.slice(14);

eachEngine(
  test.serial,
  'a process that has not heard of an erasure writes no personal data, and its records verify for a minute',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const [here, there] = [quietWriter(database), quietWriter(database)];
    const write = async (writer: typeof here, time: number, user_id = 'ann'): Promise<string> => {
      const id = idAt(time);
      await writer.decision(decision({ id, created_at: time, user_id }));
      return id;
    };
    const email = async (id: string) => (await auditStore(database.knex).find(id))?.user_email;
    const before = [await write(here, NOW - MINUTE), await write(there, NOW - MINUTE), await write(there, NOW, 'bob')];
    let time = NOW;
    const erasure = createErasure({ database, key: KEY, forget: here.forget, now: () => time });
    const { result } = await database.knex.transaction((trx) => erasure.begin(trx, 'ann'));
    t.is(await erasure.finish(result), 2, 'one row of each process');
    const [late, fresh] = [await write(there, NOW + MINUTE / 2), await write(here, NOW + 1_000)];
    t.deepEqual(await Promise.all([...before, late, fresh].map(email)), [
      ...['', '', 'Someone@example.com', ''],
      'Someone@example.com',
    ]);
    t.like(await verified(database), { intact: true, erased: 3 });

    // It runs again after a minute, and leaves what was recorded after the erasure.
    time = NOW + 2 * MINUTE;
    await erasure.resume();
    t.deepEqual(await Promise.all([late, fresh].map(email)), ['', 'Someone@example.com']);
    t.deepEqual(await database.knex('audit_erasures').whereNull('done_at'), []);
    there.forget(new Set(['ann']));
    t.is(await email(await write(there, NOW + 2 * MINUTE)), 'Someone@example.com');
    t.like(await verified(database), { intact: true, erased: 3 });
    await Promise.all([here.close(), there.close()]);
  },
);

eachEngine(test.serial, 'an erasure leaves later records of a process whose clock is late', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  const write = async (time: number): Promise<string> => {
    const id = idAt(time);
    await writer.decision(decision({ id, created_at: time }));
    return id;
  };
  await write(NOW - MINUTE);
  let time = NOW;
  const erasure = createErasure({ database, key: KEY, now: () => time });
  const { result } = await database.knex.transaction((trx) => erasure.begin(trx, 'u1'));
  writer.forget(new Set(['u1']));
  await erasure.finish(result);
  await write(NOW - 5_000);
  const later = await write(NOW + 2 * MINUTE);
  time = NOW + 60 * MINUTE;
  await erasure.resume();
  t.is((await auditStore(database.knex).find(later))?.user_email, 'Someone@example.com');
  t.like(await verified(database), { intact: true, erased: 2 });
  await writer.close();
});

eachEngine(
  test.serial,
  'an erasure covers the records of a process whose clock was ahead and has been set right',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const writer = quietWriter(database);
    const write = async (time: number): Promise<string> => {
      const id = idAt(time);
      await writer.decision(decision({ id, created_at: time }));
      return id;
    };
    const email = async (id: string) => (await auditStore(database.knex).find(id))?.user_email;
    const ids = [await write(NOW + 8 * 60 * MINUTE), await write(NOW - 2_000), await write(NOW - 1_000)];
    const erase = async (now: number): Promise<number> => {
      const erasure = createErasure({ database, key: KEY, forget: writer.forget, now: () => now });
      const { result } = await database.knex.transaction((trx) => erasure.begin(trx, 'u1'));
      return erasure.finish(result);
    };
    t.is(await erase(NOW), 1, 'the two share a fact');
    t.deepEqual(await Promise.all(ids.map(email)), ['Someone@example.com', '', '']);
    t.is(await erase(NOW + 9 * 60 * MINUTE), 1);
    t.deepEqual(await Promise.all(ids.map(email)), ['', '', '']);
    t.like(await verified(database), { intact: true, erased: 3 });
    await writer.close();
  },
);

eachEngine(test.serial, 'arguments of a call after an erasure cannot be taken out', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  const write = (time: number): Promise<void> =>
    writer.decision(decision({ id: idAt(time), created_at: time, arguments: '{"value":1,"cut":false}' }));
  await write(NOW - MINUTE);
  const erasure = createErasure({ database, key: KEY, now: () => NOW });
  const { result } = await database.knex.transaction((trx) => erasure.begin(trx, 'u1'));
  await erasure.finish(result);
  await write(NOW + MINUTE / 2);
  t.like(await verified(database), { intact: true, erased: 2 });
  await database.knex('log_arguments').update({ arguments: null, salt: null });
  t.like((await verified(database)).problems, [{ problem: 'altered', seq: 2 }]);
  await writer.close();
});

eachEngine(test.serial, 'records of a process that never hears of an erasure are reported', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  const write = (time: number): Promise<void> => writer.decision(decision({ id: idAt(time), created_at: time }));
  await write(NOW - MINUTE);
  const erasure = createErasure({ database, key: KEY, now: () => NOW });
  const { result } = await database.knex.transaction((trx) => erasure.begin(trx, 'u1'));
  await erasure.finish(result);
  await write(NOW + 2 * MINUTE);
  const [problem] = (await verified(database)).problems;
  t.is(problem?.problem, 'altered');
  t.regex(problem?.detail ?? '', /personal data is missing/);
  await writer.close();
});

eachEngine(
  test.serial,
  'an erasure of a user reads few rows at a time, however many others captured arguments',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const writer = quietWriter(database);
    const records = Array.from({ length: 1_300 }, (_, i) =>
      decision({ user_id: i % 600 === 7 ? 'ann' : 'bob', arguments: `{"value":${i},"cut":false}` }),
    );
    await Promise.all(records.map((record) => writer.decision(record)));
    await writer.close();
    const erasure = createErasure({ database, key: KEY, now: Date.now });
    const { result } = await database.knex.transaction((trx) => erasure.begin(trx, 'ann'));
    t.is(await erasure.finish(result), 4, 'three with arguments, and the row of the user');
    t.is(await erasure.finish(result), 0);
    t.like(await verified(database), { intact: true, erased: 3 });
    const left: { salt: string | null }[] = await database.knex('log_arguments').whereNull('salt').select('salt');
    t.is(left.length, 3);
  },
);

eachEngine(test.serial, 'facts that a failover lost are stored again', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  const stored = async (): Promise<string | undefined> => {
    const record = decision();
    await writer.decision(record);
    return (await auditStore(database.knex).find(record.id))?.user_email;
  };
  t.is(await stored(), 'Someone@example.com');
  for (const table of ['log_principals', 'log_objects', 'log_verdicts']) await database.knex(table).delete();
  writer.forget(null);
  t.is(await stored(), 'Someone@example.com');
  await writer.close();
});

eachServer(
  test.serial,
  'facts are stored again when the connections break, because a failover may have lost them',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const writer = quietWriter(database);
    database.whenConnected(() => writer.forget(null));
    await writer.decision(decision());
    await writer.decision(decision());
    for (const table of ['log_principals', 'log_objects', 'log_verdicts']) await database.reader(table).delete();
    const [[mine]] = await database.reader.raw('select connection_id() as id, database() as name');
    const [all] = await database.reader.raw('show processlist');
    for (const { Id: id, db } of all)
      if (db === mine.name && id !== mine.id) await database.reader.raw(`kill ${id}`).catch(() => {});
    const record = decision();
    await writer.decision(record);
    const later = decision();
    await writer.decision(later);
    for (const { id } of [record, later]) {
      t.is((await auditStore(database.knex).find(id))?.user_email, 'Someone@example.com');
    }
    await writer.close();
  },
);

eachEngine(
  test.serial,
  'an erasure that a replica of an older version finished is carried out in the new tables',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const writer = quietWriter(database);
    const id = idAt(NOW - MINUTE);
    await writer.decision(decision({ id, created_at: NOW - MINUTE, user_id: 'ann' }));
    const erasure = createErasure({ database, key: KEY, now: () => NOW });
    await database.knex.transaction((trx) => erasure.begin(trx, 'ann'));
    // That replica knows only the tables of version 1.
    await database.knex('audit_erasures').update({ done_at: NOW });
    const email = async () => (await auditStore(database.knex).find(id))?.user_email;
    t.is(await email(), 'Someone@example.com');
    await erasure.resume();
    t.is(await email(), '');
    t.like(await verified(database), { intact: true, erased: 1 });
    await writer.close();
  },
);
