/** Verification from a checkpoint: which records it reads, what it finds, and what only a verification of the whole log finds. */
import test, { type ExecutionContext } from 'ava';
import { type Checkpoint, checkpointMac } from '../../../src/audit/chain/checkpoint.ts';
import { chainStore } from '../../../src/audit/chain/tables/chain-store.ts';
import { literalId } from '../../../src/audit/chain/tables/log-tables.ts';
import { createRetention } from '../../../src/audit/upkeep/retention.ts';
import { auditLines, lineText, readLine } from '../../../src/audit/verify/lines.ts';
import type { ProblemKind } from '../../../src/audit/verify/report.ts';
import { createVerification } from '../../../src/audit/verify/verify.ts';
import type { Connection, Database } from '../../../src/db/database.ts';
import { statement } from '../../../src/db/statement.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import type { TestDatabase } from '../../support/databases/engines.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, KEY, quietWriter, verified } from '../records.ts';

const DAY = 24 * 60 * 60 * 1000;
const NOW = 1_800_000_000_000;

async function checkpointOf(database: Database): Promise<Checkpoint> {
  const heads = (await chainStore(database.knex).openHeads(KEY)).map(({ chain_id, seq, mac }) => [chain_id, seq, mac] as const);
  const content = { time: NOW, revision: 1, heads };
  return { ...content, key_id: KEY.id, mac: checkpointMac(KEY, content) };
}

/** The output of `portcullis audit verify --since`, and the number of records that it has read from the database. */
async function since(knex: Connection, checkpoint: Checkpoint) {
  const verification = createVerification([KEY]);
  verification.since(checkpoint);
  for await (const line of auditLines(knex, NOW, null, verification.skips)) verification.take(line);
  return { ...verification.finish().report, read: verification.taken() };
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
  const log = { info: () => {}, warn: () => {}, error: () => {} };
  const parts = { database, key: KEY, previousKeys: [], days: 40, resume: async () => {}, onKept: () => {}, log };
  const retention = createRetention({ ...parts, now: () => NOW });
  t.is(await retention.run(), 50);
  await retention.stop();
  t.like(await since(database.knex, checkpoint), { intact: true, shortened: 2, unproven: 0, records: { decision: 9 } });
});

eachEngine(test.serial, 'an export can also be verified from a checkpoint on', async (t, at) => {
  const { database, checkpoint, open } = await logOf(t, at);
  const lines: string[] = [];
  for await (const line of auditLines(database.knex, NOW, null)) lines.push(lineText(line));
  const check = (texts: readonly string[]) => {
    const verification = createVerification([KEY]);
    verification.since(checkpoint);
    for (const text of texts) {
      const line = readLine(text);
      if (line) verification.take(line);
    }
    return verification.finish().report;
  };
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
