/** Verification from a checkpoint: which records it reads, what it finds, and what only a verification of the whole log finds. */
import test, { type ExecutionContext } from 'ava';
import { v7 as uuidv7 } from 'uuid';
import { auditStore } from '../../../src/audit/audit-store.ts';
import { outcomeBytes } from '../../../src/audit/chain/binary-form.ts';
import { timeOf } from '../../../src/audit/chain/chain.ts';
import { type Checkpoint, checkpointMac } from '../../../src/audit/chain/checkpoint.ts';
import { chainStore } from '../../../src/audit/chain/tables/chain-store.ts';
import { literalBytes, literalId, tailOf } from '../../../src/audit/chain/tables/log-tables.ts';
import { earlyRecords } from '../../../src/audit/verify/early.ts';
import { auditLines, lineText, readLine } from '../../../src/audit/verify/lines.ts';
import type { ProblemKind } from '../../../src/audit/verify/report.ts';
import { createVerification } from '../../../src/audit/verify/verify.ts';
import type { Connection, Database } from '../../../src/db/database.ts';
import { statement } from '../../../src/db/statement.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import type { TestDatabase } from '../../support/databases/engines.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, KEY, LATER, quietWriter, verified } from '../records.ts';
import { DAY, keeperOf, NOW } from '../upkeep/keeper.ts';

async function checkpointOf(database: Database): Promise<Checkpoint> {
  const heads = (await chainStore(database.knex).openHeads(KEY)).map(({ chain_id, seq, mac }) => [chain_id, seq, mac] as const);
  const content = { time: NOW, revision: 1, heads };
  return { ...content, key_id: KEY.id, mac: checkpointMac(KEY, content) };
}

/** The output of `portcullis audit verify --since`, and the number of records that it has read from the database. */
async function since(knex: Connection, checkpoint: Checkpoint) {
  const verification = createVerification([KEY], LATER);
  verification.since(checkpoint);
  for await (const line of auditLines(knex, NOW, null, verification.skipping())) verification.take(line);
  return { ...verification.finish().report, read: verification.taken() };
}

async function exportOf(knex: Connection): Promise<string[]> {
  const lines: string[] = [];
  for await (const line of auditLines(knex, NOW, null)) lines.push(lineText(line));
  return lines;
}

/** The output of `portcullis audit verify --since --export`. */
function sinceExport(texts: readonly string[], checkpoint: Checkpoint) {
  const verification = createVerification([KEY], LATER);
  verification.since(checkpoint);
  for (const text of texts) {
    const line = readLine(text);
    if (line) verification.take(line);
  }
  return verification.finish().report;
}

/** Three chains: one that ended and that the next one names, one that continues after the checkpoint, and one that began later. */
async function logOf(t: ExecutionContext, at: TestDatabase, writerOf: typeof quietWriter | typeof legacyWriter = quietWriter) {
  const database = await openTestDatabase(t, at);
  const write = async (writer: ReturnType<typeof writerOf>, count: number, time: number) => {
    for (let i = 0; i < count; i++) await writer.decision(decision({ created_at: time, resource_name: `n${i}` }));
    return writer.head()?.chain_id ?? '';
  };
  const first = writerOf(database, { now: () => NOW - 60 * DAY });
  const ended = await write(first, 20, NOW - 60 * DAY);
  await first.close();
  const second = writerOf(database, { now: () => NOW - 50 * DAY });
  const open = await write(second, 30, NOW - 50 * DAY);
  const checkpoint = await checkpointOf(database);
  await write(second, 4, NOW);
  await second.close();
  const third = writerOf(database, { now: () => NOW });
  const late = await write(third, 5, NOW);
  await third.close();
  return { database, checkpoint, ended, open, late };
}

type Log = Awaited<ReturnType<typeof logOf>>;

test('a MAC in an export that is missing or not a text does not break the verification', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { database, checkpoint } = await logOf(t, at);
  const texts = await exportOf(database.knex);
  for (const mac of [undefined, null, 5, {}, 'AAAA']) {
    for (const seq of [5, 25]) {
      const index = texts.findIndex((text) => text.includes(`"chain_seq":${seq},`));
      const line = JSON.parse(texts[index] ?? '') as object;
      t.notThrows(() => sinceExport(texts.with(index, JSON.stringify({ ...line, mac })), checkpoint), `${mac} at ${seq}`);
    }
  }
});

eachEngine(test.serial, 'records older than the checkpoint are not read, except the head of each chain', async (t, at) => {
  const { database, checkpoint, ended, open } = await logOf(t, at, legacyWriter);
  t.deepEqual(
    checkpoint.heads.map(([chain]) => chain),
    [open],
    'the ended chain is named by the one that has found it',
  );
  t.like(await since(database.knex, checkpoint), {
    ...{ intact: true, chains: 3, since: NOW, read: 1 + 5 + 5 },
    records: { decision: 9, shown: 0, outcome: 0 },
  });
  t.like(await verified(database), { intact: true, since: null, records: { decision: 59 } });

  // `--since` does not report a change to a record older than the checkpoint.
  await database.knex('audit_decisions').where({ chain_id: ended, chain_seq: 3 }).update({ effect: 'allow' });
  t.true((await since(database.knex, checkpoint)).intact);
  t.false((await verified(database)).intact);
});

interface Tampering {
  readonly problem: ProblemKind;
  do(knex: Connection, log: Log): Promise<unknown>;
}

const removeFrom = (knex: Connection, chain: string, seq: number) =>
  knex('audit_decisions').where('chain_id', chain).andWhere('chain_seq', '>=', seq).delete();

const tamperings: Readonly<Record<string, Tampering>> = {
  'a later record altered': {
    problem: 'altered',
    do: (knex, { open }) => knex('audit_decisions').where({ chain_id: open, chain_seq: 32 }).update({ effect: 'allow' }),
  },
  'a later record deleted': {
    problem: 'missing',
    do: (knex, { open }) => knex('audit_decisions').where({ chain_id: open, chain_seq: 31 }).delete(),
  },
  'the record that the checkpoint saw last deleted': {
    problem: 'missing',
    do: (knex, { open }) => knex('audit_decisions').where({ chain_id: open, chain_seq: 30 }).delete(),
  },
  'that record and all after it deleted': {
    problem: 'cut_off',
    do: (knex, { open }) => removeFrom(knex, open, 30),
  },
  'all of the chain deleted': {
    problem: 'cut_off',
    do: (knex, { open }) => removeFrom(knex, open, 1),
  },
  'the record that the checkpoint saw last exchanged for the one before it': {
    problem: 'altered',
    async do(knex, { open }) {
      const { mac } = await knex('audit_decisions').where({ chain_id: open, chain_seq: 29 }).first('mac');
      await knex('audit_decisions').where({ chain_id: open, chain_seq: 30 }).update({ mac });
    },
  },
  'the end of a chain cut off that a later one has found': {
    problem: 'cut_off',
    do: (knex, { ended }) => removeFrom(knex, ended, 20),
  },
  'a record added to a chain that had ended': {
    problem: 'altered',
    async do(knex, { ended }) {
      const row = await knex('audit_decisions').where({ chain_id: ended, chain_seq: 20 }).first();
      await knex('audit_decisions').insert({ ...row, id: decision().id, chain_seq: 21 });
    },
  },
  'a record added without a place': {
    problem: 'added',
    async do(knex, { ended }) {
      const row = await knex('audit_decisions').where({ chain_id: ended, chain_seq: 20 }).first();
      await knex('audit_decisions').insert({ ...row, id: decision().id, chain_seq: -1 });
    },
  },
  'a record of a made-up chain added': {
    problem: 'added',
    async do(knex, { ended }) {
      const row = await knex('audit_decisions').where({ chain_id: ended, chain_seq: 20 }).first();
      await knex('audit_decisions').insert({ ...row, id: decision().id, chain_id: 'x' });
    },
  },
  'a chain that began later shortened in front': {
    problem: 'missing',
    do: (knex, { late }) => knex('audit_decisions').where({ chain_id: late, chain_seq: 1 }).delete(),
  },
  'the chain of the checkpoint gone': {
    problem: 'missing',
    async do(knex, { open }) {
      await removeFrom(knex, open, 1);
      await knex('audit_chains').where('chain_id', open).delete();
    },
  },
  'a chain said to have stood later than it did': {
    problem: 'altered',
    async do(knex, { late, open }) {
      const { found } = await knex('audit_chains').where('chain_id', open).first('found');
      const { mac } = await knex('audit_decisions').where({ chain_id: late, chain_seq: 4 }).first('mac');
      const claimed = JSON.stringify([...JSON.parse(found), [late, 4, mac]]);
      await knex('audit_chains').where('chain_id', open).update({ found: claimed });
      await knex('audit_decisions').where({ chain_id: late, chain_seq: 2 }).update({ effect: 'allow' });
    },
  },
};

eachEngine(test.serial, 'tampering after the checkpoint is found', async (t, at) => {
  const log = await logOf(t, at, legacyWriter);
  class Undo extends Error {}
  for (const [name, { problem, do: tamper }] of Object.entries(tamperings)) {
    await t.throwsAsync(
      log.database.knex.transaction(async (trx) => {
        await tamper(trx, log);
        const { intact, problems } = await since(trx, log.checkpoint);
        t.false(intact, name);
        t.is(problems[0]?.problem, problem, name);
        throw new Undo();
      }),
      { instanceOf: Undo },
    );
  }
  t.true((await since(log.database.knex, log.checkpoint)).intact);
});

eachEngine(test.serial, 'an unsigned checkpoint is not accepted as a beginning', async (t, at) => {
  const { database, checkpoint, late } = await logOf(t, at);
  const forged: Checkpoint = { ...checkpoint, heads: [...checkpoint.heads, [late, 4, 'm']] };
  t.like(await since(database.knex, forged), { intact: false, since: null, records: { decision: 59 } });
});

eachEngine(test.serial, 'records that were removed by age since the checkpoint are not reported as missing', async (t, at) => {
  const { database, checkpoint } = await logOf(t, at);
  const retention = keeperOf(database, { now: () => NOW });
  t.is(await retention.run(), 50);
  t.like(await since(database.knex, checkpoint), { intact: true, shortened: 2, unproven: 0, records: { decision: 9 } });
});

eachEngine(test.serial, 'an export can also be verified from a checkpoint on', async (t, at) => {
  const { database, checkpoint, open } = await logOf(t, at);
  const lines = await exportOf(database.knex);
  const check = (texts: readonly string[]) => sinceExport(texts, checkpoint);
  t.like(check(lines), { intact: true, since: NOW, records: { decision: 9 } });
  const last = lines.findLastIndex((line) => line.includes(open) && line.includes('"kind":"decision"'));
  t.false(check(lines.toSpliced(last, 1)).intact);
});

eachEngine(test.serial, 'a record that is only compared with the checkpoint does not name the newest decision', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database, { now: () => NOW });
  for (let i = 0; i < 3; i++) await writer.decision(decision({ created_at: NOW }));
  const checkpoint = await checkpointOf(database);
  t.is((await since(database.knex, checkpoint)).newest, null);
  const { id } = decision({ created_at: NOW });
  await writer.decision(decision({ id, created_at: NOW }));
  await writer.close();
  t.is((await since(database.knex, checkpoint)).newest, id);
  await statement(
    database.knex,
    `update log_decisions set id = ${literalId('ffffffff-ffff-7fff-bfff-ffffffffffff')} where seq = 3`,
  );
  t.is((await since(database.knex, checkpoint)).newest, id);
});

const idAt = (time: number): string => uuidv7({ msecs: time });

/**
 * One chain with ids of its times. Numbers 1 to 12 are before the checkpoint: ten decisions with ids up to `ahead` ms after its time, the
 * list of the last, and an outcome. After it: a decision at NOW + 100, its list, and its outcome, and a decision that has neither.
 */
async function timedLog(
  t: ExecutionContext,
  at: TestDatabase,
  writerOf: typeof quietWriter | typeof legacyWriter,
  ahead: number,
) {
  const database = await openTestDatabase(t, at);
  const clock = { at: NOW - 5_000 };
  const writer = writerOf(database, { now: () => clock.at });
  const ids = Array.from({ length: 10 }, (_, i) => idAt(NOW + ahead - 500 * (9 - i)));
  for (const id of ids) await writer.decision(decision({ id, created_at: timeOf(id) }));
  const last = ids.at(-1) ?? '';
  const shown = { resource_type: 'tool', shown: 1, hidden: 1, names: ['a'] } as const;
  await writer.shown({ ...shown, decision_id: last });
  writer.outcome({ decision_id: last, outcome: 'ok', duration_ms: 1 });
  await writer.flush();
  const checkpoint = await checkpointOf(database);
  clock.at = NOW + 100;
  const later = idAt(NOW + 100);
  await writer.decision(decision({ id: later, created_at: NOW + 100 }));
  await writer.shown({ ...shown, decision_id: later });
  writer.outcome({ decision_id: later, outcome: 'ok', duration_ms: 1 });
  await writer.flush();
  const bare = idAt(NOW + 200);
  await writer.decision(decision({ id: bare, created_at: NOW + 200 }));
  const chain = writer.head()?.chain_id ?? '';
  await writer.close();
  return { database, checkpoint, chain, ids, later, bare };
}

type TimedLog = Awaited<ReturnType<typeof timedLog>>;
type Forgery = (knex: Connection, log: TimedLog) => Promise<unknown>;

/** Inserts a record with these outcomes, as an attacker can who has no key. */
function forgeOutcomes(knex: Connection, chain: string, seq: number, ids: readonly string[]): Promise<unknown> {
  const bytes = outcomeBytes(ids.map((decision_id) => ({ decision_id, outcome: 'denied', duration_ms: 0 })))?.toString('hex');
  const since = timeOf(ids[0] ?? '');
  return statement(
    knex,
    `insert into log_outcomes (since, created_at, outcomes, chain, seq, mac) values (${since}, ${since}, x'${bytes}', ${literalBytes(tailOf(chain), 4)}, ${seq}, x'${'0'.repeat(32)}')`,
  );
}

/** Inserts a decision with an id after the checkpoint, at this number of the chain. */
const forgedDecision = (knex: Connection, number: string): Promise<unknown> =>
  statement(
    knex,
    `insert into log_decisions (id, created_at, principal, object, verdict, name, chain, seq, mac) select ${literalId(idAt(NOW + 50))}, null, principal, object, verdict, 'forged', chain, ${number}, mac from log_decisions where seq = 8`,
  );

const forgeries: Readonly<Record<string, Forgery>> = {
  'a decision of now with an old number': (knex) => forgedDecision(knex, '3'),
  'a decision of now with the number of an outcome': (knex) => forgedDecision(knex, '12'),
  'a decision of now with the first number': (knex) => forgedDecision(knex, '1'),
  'the record that the checkpoint saw last, made a decision of now': (knex) =>
    statement(
      knex,
      `insert into log_decisions (id, created_at, principal, object, verdict, name, chain, seq, mac) select ${literalId(idAt(NOW + 50))}, null, d.principal, d.object, d.verdict, null, d.chain, 12, o.mac from log_decisions as d, log_outcomes as o where d.seq = 3 and o.seq = 12`,
    ).then(() => statement(knex, 'delete from log_outcomes where seq = 12')),
  'an old decision made one of now': (knex) =>
    statement(knex, `update log_decisions set id = ${literalId(idAt(NOW + 50))} where seq = 3`),
  'many decisions of now with the same number': async (knex) => {
    for (let i = 0; i < 8; i++) await forgedDecision(knex, '3');
  },
  'a list of a later decision': (knex, { bare }) =>
    statement(
      knex,
      `insert into log_lists (id, type, shown, hidden, names, chain, seq, mac) select ${literalId(bare)}, type, shown, hidden, names, chain, 4, mac from log_lists where seq = 11`,
    ),
  'an outcome of a later decision': (knex, { chain, bare }) => forgeOutcomes(knex, chain, 4, [bare]),
  'an earlier outcome of the later decision': (knex, { chain, later }) => forgeOutcomes(knex, chain, 4, [later]),
  'an earlier outcome in a record that begins with an older decision': (knex, { chain, ids, later }) =>
    forgeOutcomes(knex, chain, 4, [ids.at(-1) ?? '', later]),
};

const legacyForgeries: Readonly<Record<string, Forgery>> = {
  'a decision of version 1 with an old number': async (knex, { chain }) => {
    const row = await knex('audit_decisions').where({ chain_id: chain, chain_seq: 3 }).first();
    await knex('audit_decisions').insert({ ...row, id: idAt(NOW + 50) });
  },
  'a list of version 1 of a later decision': async (knex, { bare }) => {
    const row = await knex('audit_shown').where('chain_seq', 11).first();
    await knex('audit_shown').insert({ ...row, decision_id: bare, chain_seq: 4 });
  },
  'an outcome of version 1 of a later decision': async (knex, { bare }) => {
    const row = await knex('audit_outcomes').where('chain_seq', 12).first();
    await knex('audit_outcomes').insert({ ...row, decision_id: bare, chain_seq: 4 });
  },
};

for (const [version, writerOf, cases] of [
  [2, quietWriter, forgeries],
  [1, legacyWriter, legacyForgeries],
] as const) {
  eachEngine(test.serial, `no forged record of version ${version} passes as later because its number is old`, async (t, at) => {
    const log = await timedLog(t, at, writerOf, -200);
    class Undo extends Error {}
    for (const [name, forge] of Object.entries(cases)) {
      await t.throwsAsync(
        log.database.knex.transaction(async (trx) => {
          await forge(trx, log);
          t.false((await since(trx, log.checkpoint)).intact, name);
          t.false(sinceExport(await exportOf(trx), log.checkpoint).intact, name);
          throw new Undo();
        }),
        { instanceOf: Undo },
      );
    }
    t.true((await since(log.database.knex, log.checkpoint)).intact);
    t.true(sinceExport(await exportOf(log.database.knex), log.checkpoint).intact);
  });

  eachEngine(
    test.serial,
    `records of version ${version} from a clock that was ahead are verified, not reported`,
    async (t, at) => {
      const { database, checkpoint } = await timedLog(t, at, writerOf, 60_000);
      const { knex } = database;
      t.like(await since(knex, checkpoint), { intact: true, records: { decision: 2, shown: 1, outcome: 1 } });
      t.true(sinceExport(await exportOf(knex), checkpoint).intact);
      // Number 7 has an id after the checkpoint, and its MAC covers its content.
      if (version === 1) await knex('audit_decisions').where('chain_seq', 7).update({ effect: 'allow' });
      else await statement(knex, "update log_decisions set name = 'x' where seq = 7");
      t.false((await since(knex, checkpoint)).intact);
      t.false(sinceExport(await exportOf(knex), checkpoint).intact);
    },
  );
}

eachEngine(test.serial, 'a decision without a chain cannot be later than the checkpoint', async (t, at) => {
  const { database, checkpoint } = await timedLog(t, at, legacyWriter, -200);
  const row = await database.knex('audit_decisions').where('chain_seq', 3).first();
  const id = idAt(NOW + 3 * DAY);
  await database.knex('audit_decisions').insert({ ...row, id, chain_id: null, chain_seq: null, mac: null });
  const { problems } = await since(database.knex, checkpoint);
  t.like(
    problems.find(({ decision_id }) => decision_id === id),
    { problem: 'added', chain: null },
  );
});

eachEngine(test.serial, 'early records are found however few rows one read has', async (t, at) => {
  const { database, chain, ids } = await timedLog(t, at, quietWriter, 60_000);
  const { knex } = database;
  const [low = ''] = ids;
  // Several records of outcomes have the same time, and the others follow.
  for (const seq of [2, 3, 4, 5]) await forgeOutcomes(knex, chain, seq, [ids[3] ?? '']);
  for (const seq of [6, 7]) await forgeOutcomes(knex, chain, seq, [ids[8] ?? '']);
  const skipping = { skips: () => 11, start: (of: string) => (of === chain ? 12 : 0), highest: () => 12, floor: () => low };
  const found = async (size: number): Promise<string[]> => {
    const names: string[] = [];
    for await (const { record, before } of earlyRecords(knex, skipping, size)) {
      names.push(`${record.kind} ${record.row.chain_seq}`);
      t.is(before.length > 0, record.row.chain_seq > 1, 'the header of the chain is before the first record');
    }
    return names.sort();
  };
  const all = [...ids.map((_, i) => `decision ${i + 1}`), 'shown 11', ...[2, 3, 4, 5, 6, 7, 12].map((seq) => `outcome ${seq}`)];
  for (const size of [1, 2, 3, 5, 100]) t.deepEqual(await found(size), all.toSorted(), `${size} rows`);
});

eachEngine(test.serial, 'records that a removal by age overtakes are not reported', async (t, at) => {
  const { database, checkpoint, later } = await timedLog(t, at, quietWriter, 60_000);
  const retention = keeperOf(database, { now: () => NOW + 60_000 - 500 * 5 + 1 + 40 * DAY });
  // The first five decisions are old enough.
  t.is(await retention.run(), 5);
  t.true((await since(database.knex, checkpoint)).intact);
  await forgedDecision(database.knex, '12');
  t.false((await since(database.knex, checkpoint)).intact);
  await statement(database.knex, `update log_decisions set seq = 2 where name = 'forged'`);
  t.false((await since(database.knex, checkpoint)).intact, 'its number was removed by age, but it is still there');
  t.truthy(await auditStore(database.knex).find(later));
});

eachEngine(test.serial, 'a record of outcomes does not count for a decision outside of its span', async (t, at) => {
  const { database, chain, ids, later, bare } = await timedLog(t, at, quietWriter, -200);
  const [early = '', near = ''] = [ids.at(-3), ids.at(-1)];
  t.true(timeOf(later) - timeOf(early) > 1_000);
  await forgeOutcomes(database.knex, chain, 4, [early, near, later]);
  const { entries } = await auditStore(database.knex).page({}, 10, null);
  t.deepEqual(
    entries.slice(0, 3).map(({ id, outcome }) => [id, outcome]),
    [
      [bare, null],
      [later, 'ok'],
      [near, 'ok'],
    ],
  );
});
