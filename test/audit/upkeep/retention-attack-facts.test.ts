/** The attacks of `retention-attack.test.ts` on the tables of version 2, and those that facts and ids make possible. */
import test from 'ava';
import { hexOf, idOf } from '../../../src/audit/chain/binary-form.ts';
import { timeOf } from '../../../src/audit/chain/chain.ts';
import { hexOfBytes, LOG_TABLES, literalId, tailOf } from '../../../src/audit/chain/tables/log-tables.ts';
import type { Connection, Database } from '../../../src/db/database.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { decision, quietWriter, verified } from '../records.ts';
import { checkpointAt, DAY, idAt, keeperOf, NOW } from './keeper.ts';

const OLD = NOW - 50 * DAY;
const TABLES = Object.values(LOG_TABLES);

/** A chain with a decision, its list and its outcome for each age; returns its id. */
async function write(database: Database, ages: readonly number[]): Promise<string> {
  let at = NOW;
  const writer = quietWriter(database, { now: () => at });
  for (const days of ages) {
    at = NOW - days * DAY;
    const record = decision({ id: idAt(at), created_at: at, user_role: `of ${days}` });
    await writer.decision(record);
    await writer.shown({ decision_id: record.id, resource_type: 'tool', names: ['a', String(days)], hidden: 0 });
    writer.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: 1 });
    await writer.flush();
  }
  const chain = writer.head()?.chain_id ?? '';
  await writer.close();
  return chain;
}

type Row = Readonly<Record<string, unknown>>;
/** The driver of SQLite gives an ArrayBuffer, and takes a Buffer. */
const bindable = (value: unknown) => (value instanceof ArrayBuffer ? Buffer.from(value) : value) as string;
const bound = (row: Row): Row => Object.fromEntries(Object.entries(row).map(([name, value]) => [name, bindable(value)]));
const inChain = (knex: Connection, table: string, chain: string) => knex(table).whereRaw(`chain = x'${tailOf(chain)}'`);
const tail = (chain: string) => Buffer.from(tailOf(chain), 'hex');

/** The decision of each MAC that is left. */
async function macs(knex: Connection): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const table of TABLES) {
    const id = table === LOG_TABLES.outcome ? 'substr(outcomes, 1, 16) as id' : 'id';
    const rows: Row[] = await knex(table).select(knex.raw(id), 'mac');
    for (const { id, mac } of rows) found.set(`${table} ${hexOfBytes(mac)}`, idOf(hexOfBytes(id)));
  }
  return found;
}

interface Victim {
  /** Records 1 to 6 were removed, 7 to 9 are 50 days old, 10 to 15 are five days and one. */
  readonly mixed: string;
  /** This chain has only young records. */
  readonly young: string;
}

interface Attack {
  /** Whether the gateway must say that it has kept records. */
  readonly noticed: boolean;
  do(knex: Connection, victim: Victim): Promise<unknown>;
}

const agedBy = async (knex: Connection, chain: string, from: number): Promise<void> => {
  for (const table of ['log_decisions', 'log_outcomes']) {
    await inChain(knex, table, chain).andWhere('seq', '>=', from).update({ created_at: OLD });
  }
};

const attacks: Readonly<Record<string, Attack>> = {
  'the times of young records set back': {
    noticed: true,
    do: (knex, { young, mixed }) => Promise.all([agedBy(knex, young, 1), agedBy(knex, mixed, 10)]),
  },
  'times and ids set back': {
    noticed: true,
    async do(knex, { young }) {
      await agedBy(knex, young, 1);
      const ends: Row[] = await inChain(knex, 'log_outcomes', young).select('seq', 'outcomes');
      for (const { seq, outcomes } of ends) {
        const bytes = Buffer.from(bindable(outcomes));
        bytes.write(hexOf(idAt(OLD)) ?? '', 'hex');
        await inChain(knex, 'log_outcomes', young).andWhere({ seq }).update({ outcomes: bytes, since: OLD });
      }
      const rows: Row[] = await inChain(knex, 'log_decisions', young).select('id');
      for (const { id } of rows) {
        const old = knex.raw(literalId(idAt(OLD)));
        for (const table of [LOG_TABLES.decision, LOG_TABLES.shown])
          await knex(table).where('id', bindable(id)).update({ id: old });
      }
    },
  },
  'young records pointed at the facts of old ones': {
    noticed: true,
    async do(knex, { mixed, young }) {
      await agedBy(knex, young, 1);
      const facts: Row = await inChain(knex, 'log_decisions', mixed).orderBy('seq').first('principal', 'object', 'verdict');
      await inChain(knex, 'log_decisions', young).update(bound(facts));
    },
  },
  'the facts of young records said to be old': {
    noticed: true,
    do: (knex) => knex('log_principals').update({ since: OLD }),
  },
  'the contents of old and young records exchanged': {
    noticed: true,
    async do(knex, { mixed }) {
      for (const [old, late] of [
        [7, 10],
        [8, 11],
        [9, 12],
      ] as const) {
        for (const table of TABLES) {
          const place = (seq: number) => inChain(knex, table, mixed).andWhere({ seq });
          if ((await place(old)).length === 0) continue;
          await place(old).update({ seq: 99 });
          await place(late).update({ seq: old });
          await place(99).update({ seq: late });
        }
      }
    },
  },
  'the MAC of an old record copied to a young one with its time': {
    noticed: true,
    async do(knex, { mixed, young }) {
      const { mac, id } = await inChain(knex, 'log_decisions', mixed).orderBy('seq').first('mac', 'id');
      const created_at = timeOf(idOf(hexOfBytes(id)));
      await inChain(knex, 'log_decisions', young).update({ mac: bindable(mac), created_at });
    },
  },
  'young records moved into the place of old ones of another chain': {
    noticed: true,
    async do(knex, { mixed, young }) {
      for (const table of TABLES) {
        await inChain(knex, table, mixed).andWhere('seq', '<=', 9).delete();
        // The places from 10 on are taken.
        await inChain(knex, table, young)
          .andWhere('seq', '<=', 3)
          .update({ chain: tail(mixed), seq: knex.raw('seq + 6') });
      }
      await agedBy(knex, mixed, 1);
    },
  },
  'young records moved before the first place of another chain': {
    noticed: false,
    async do(knex, { mixed, young }) {
      await agedBy(knex, young, 1);
      for (const table of TABLES) await inChain(knex, table, young).update({ chain: tail(mixed), seq: knex.raw('seq - 1000') });
    },
  },
  'the removal of a chain moved on to young records': {
    noticed: true,
    async do(knex, { mixed }) {
      await agedBy(knex, mixed, 10);
      const { mac } = await inChain(knex, 'log_decisions', mixed).andWhere({ seq: 10 }).first('mac');
      await knex('audit_retention')
        .where('chain_id', mixed)
        .update({ seq: 10, mac: Buffer.from(bindable(mac)).toString('base64url') });
    },
  },
  'the removal of a chain taken away, and the numbers begun anew': {
    noticed: true,
    async do(knex, { mixed }) {
      await agedBy(knex, mixed, 1);
      await knex('audit_retention').where('chain_id', mixed).delete();
      for (const table of TABLES) await inChain(knex, table, mixed).update({ seq: knex.raw('seq - 6') });
    },
  },
  'the version of the chain changed': {
    noticed: true,
    async do(knex, { young }) {
      await agedBy(knex, young, 1);
      await knex('audit_chains').where('chain_id', young).update({ version: 1 });
    },
  },
};

async function victim(database: Database): Promise<Victim> {
  const mixed = await write(database, [70, 60, 50, 5, 1]);
  const young = await write(database, [3, 2, 1]);
  await keeperOf(database, { days: 55 }).run();
  return { mixed, young };
}

for (const [name, { noticed, do: attack }] of Object.entries(attacks)) {
  eachEngine(test.serial, `no young record of version 2 can be removed without being missed: ${name}`, async (t, at) => {
    const database = await openTestDatabase(t, at);
    const target = await victim(database);
    t.true((await verified(database, [await checkpointAt(database, NOW)])).intact);
    await attack(database.knex, target);
    const before = await macs(database.knex);
    const { run, errors, kept } = keeperOf(database);
    await run();
    const after = await macs(database.knex);
    const removed = [...before].filter(([mac]) => !after.has(mac)).map(([, id]) => id);
    // Only records that were written 50 days ago may be removed.
    for (const id of removed) t.is(timeOf(id), OLD);
    t.false((await verified(database)).intact);
    t.is(errors.length, noticed ? 1 : 0);
    t.true(noticed ? (kept[0] ?? 0) > 0 : kept[0] === 0);
  });
}

eachEngine(
  test.serial,
  'no attack on the ids of records makes the gateway remove a fact that an unaltered record needs',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    await write(database, [35, 1]);
    const facts = async (): Promise<number> => (await database.knex('log_principals').select('id')).length;
    t.is(await facts(), 2);
    const [youngest]: Row[] = await database.knex('log_decisions').orderBy('id', 'desc').limit(1);
    // A record of the year 2100 and one of 1970 do not move the days of the others.
    for (const [i, time] of [Date.UTC(2100, 1), 0].entries()) {
      await database
        .knex('log_decisions')
        .insert({ ...bound(youngest ?? {}), id: database.knex.raw(literalId(idAt(time))), seq: 50 + i });
    }
    await keeperOf(database).run();
    t.is(await facts(), 2);
    // Neither does a clock of the gateway that is far ahead, as long as the records are there.
    await database.knex('log_decisions').where('seq', '>=', 50).delete();
    await keeperOf(database, { now: () => NOW + 3 * DAY, days: 60 }).run();
    t.is(await facts(), 2);
    t.true((await verified(database)).intact);
  },
);
