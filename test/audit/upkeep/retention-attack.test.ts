/** An attacker who can write to every table, but has no key, tries to make the gateway remove young records. */
import test from 'ava';
import { createChainKey, retentionSignature } from '../../../src/audit/chain/chain.ts';
import { type Checkpoint, checkpointMac } from '../../../src/audit/chain/checkpoint.ts';
import type { Connection, Database, Transaction } from '../../../src/db/database.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, KEY, verified } from '../records.ts';
import { checkpointAt, DAY, idAt, keeperOf, NOW } from './keeper.ts';

const OLD = NOW - 50 * DAY;
const TABLES = ['audit_decisions', 'audit_shown', 'audit_outcomes'] as const;

/** A chain with a decision, its list and its outcome for each age; returns its id. */
async function write(database: Database, ages: readonly number[], key = KEY): Promise<string> {
  let at = NOW;
  const writer = legacyWriter(database, { now: () => at, key });
  for (const days of ages) {
    at = NOW - days * DAY;
    const record = decision({ id: idAt(at), created_at: at });
    await writer.decision(record);
    await writer.shown({ decision_id: record.id, resource_type: 'tool', names: ['a', String(days)], hidden: 0 });
    writer.outcome({ decision_id: record.id, outcome: 'ok', duration_ms: 1 });
    await writer.flush();
  }
  const chain = writer.head()?.chain_id ?? '';
  await writer.close();
  return chain;
}

async function macs(knex: Connection): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (const table of TABLES) {
    const rows: { decision: string; mac: string }[] = await knex(table).select(
      table === 'audit_decisions' ? 'id as decision' : 'decision_id as decision',
      'mac',
    );
    for (const { decision, mac } of rows) found.set(`${table} ${mac}`, decision);
  }
  return found;
}

interface Victim {
  /** Records 1 to 6 were removed, 7 to 9 are 50 days old, 10 to 15 are five days and one. */
  readonly mixed: string;
  /** This chain has only young records. */
  readonly young: string;
  /** The record of a removal from `mixed` as it was before the last one. */
  readonly earlier: Record<string, unknown>;
}

interface Attack {
  /** Whether the gateway must say that it has kept records. */
  readonly noticed: boolean;
  do(knex: Connection, victim: Victim): Promise<unknown>;
}

const agedBy = (knex: Connection, chain: string, from: number) =>
  Promise.all([
    knex('audit_decisions').where('chain_id', chain).andWhere('chain_seq', '>=', from).update({ created_at: OLD }),
    knex('audit_outcomes').where('chain_id', chain).andWhere('chain_seq', '>=', from).update({ created_at: OLD }),
  ]);

const retentionOf = (knex: Connection, chain: string): Promise<Record<string, unknown>> =>
  knex('audit_retention').where('chain_id', chain).first();

const attacks: Readonly<Record<string, Attack>> = {
  'the times of young records set back': {
    noticed: true,
    do: (knex, { young, mixed }) => Promise.all([agedBy(knex, young, 1), agedBy(knex, mixed, 10)]),
  },
  'the times of decisions alone set back': {
    noticed: true,
    do: (knex, { young }) => knex('audit_decisions').where('chain_id', young).update({ created_at: OLD }),
  },
  'the time of one outcome in the middle set back': {
    noticed: false,
    do: (knex, { mixed }) => knex('audit_outcomes').where({ chain_id: mixed, chain_seq: 12 }).update({ created_at: 1 }),
  },
  'times and ids set back': {
    noticed: true,
    async do(knex, { young }) {
      await agedBy(knex, young, 1);
      for (const { id } of await knex('audit_decisions').where('chain_id', young).select('id')) {
        const old = idAt(OLD);
        await knex('audit_decisions').where({ id }).update({ id: old });
        for (const table of ['audit_shown', 'audit_outcomes']) {
          await knex(table).where('decision_id', id).update({ decision_id: old });
        }
      }
    },
  },
  'the contents of old and young records exchanged': {
    noticed: true,
    async do(knex, { mixed }) {
      for (const [old, late] of [
        [7, 10],
        [9, 12],
      ] as const) {
        for (const table of TABLES) {
          const at = (seq: number) => knex(table).where({ chain_id: mixed, chain_seq: seq });
          const [a, b] = [await at(old).first(), await at(late).first()];
          if (!a || !b) continue;
          await at(old).delete();
          await at(late).update({ chain_seq: old });
          await knex(table).insert({ ...a, chain_seq: late });
        }
      }
    },
  },
  'the MAC of an old record copied to a young one with its time': {
    noticed: true,
    async do(knex, { mixed, young }) {
      const { mac, created_at } = await knex('audit_decisions').where('chain_id', mixed).orderBy('chain_seq').first();
      await knex('audit_decisions').where('chain_id', young).update({ mac, created_at });
    },
  },
  'young records moved into the place of old ones of another chain': {
    noticed: true,
    async do(knex, { mixed, young }) {
      for (const table of TABLES) {
        await knex(table).where('chain_id', mixed).andWhere('chain_seq', '<=', 9).delete();
        await knex(table)
          .where('chain_id', young)
          .update({ chain_id: mixed, chain_seq: knex.raw('chain_seq + 6') });
      }
      await agedBy(knex, mixed, 1);
    },
  },
  'young records moved before the first place of another chain': {
    noticed: false,
    async do(knex, { mixed, young }) {
      await agedBy(knex, young, 1);
      for (const table of TABLES) {
        await knex(table)
          .where('chain_id', young)
          .update({ chain_id: mixed, chain_seq: knex.raw('chain_seq - 1000') });
      }
    },
  },
  'a removal made up with the MAC of a young record': {
    noticed: true,
    async do(knex, { young }) {
      const { mac } = await knex('audit_decisions').where({ chain_id: young, chain_seq: 4 }).first('mac');
      const made = { chain_id: young, seq: 4, mac, removed_at: NOW, newest: OLD, key_id: KEY.id };
      await knex('audit_retention').insert({ ...made, signature: mac });
    },
  },
  'a signed removal of one chain put in for another': {
    noticed: true,
    async do(knex, { mixed, young }) {
      await agedBy(knex, young, 1);
      await knex('audit_retention').insert({ ...(await retentionOf(knex, mixed)), chain_id: young });
    },
  },
  'an earlier signed removal of the chain put back': {
    noticed: true,
    async do(knex, { mixed, earlier }) {
      await agedBy(knex, mixed, 10);
      await knex('audit_retention').where('chain_id', mixed).update(earlier);
    },
  },
  'the removal of a chain moved on to young records': {
    noticed: true,
    async do(knex, { mixed }) {
      await agedBy(knex, mixed, 10);
      const { mac } = await knex('audit_decisions').where({ chain_id: mixed, chain_seq: 10 }).first('mac');
      await knex('audit_retention').where('chain_id', mixed).update({ seq: 10, mac });
    },
  },
  'the removal of a chain taken away, and the numbers begun anew': {
    noticed: true,
    async do(knex, { mixed }) {
      await agedBy(knex, mixed, 1);
      await knex('audit_retention').where('chain_id', mixed).delete();
      for (const table of TABLES) {
        await knex(table)
          .where('chain_id', mixed)
          .update({ chain_seq: knex.raw('chain_seq - 6') });
      }
    },
  },
  'the head of the chain altered with its records': {
    noticed: true,
    async do(knex, { young }) {
      await agedBy(knex, young, 1);
      await knex('audit_chains').where('chain_id', young).update({ started_at: OLD });
    },
  },
  'the key of the chain renamed': {
    noticed: true,
    async do(knex, { young }) {
      await agedBy(knex, young, 1);
      await knex('audit_chains').where('chain_id', young).update({ key_id: 'x' });
    },
  },
  'the version of the chain changed': {
    noticed: true,
    async do(knex, { young }) {
      await agedBy(knex, young, 1);
      await knex('audit_chains').where('chain_id', young).update({ version: 0 });
    },
  },
};

async function victim(database: Database): Promise<Victim> {
  const mixed = await write(database, [70, 60, 50, 5, 1]);
  const young = await write(database, [3, 2, 1]);
  // In two steps, so that an earlier signed row is there to be put back.
  await keeperOf(database, { days: 65 }).run();
  const earlier = await database.knex('audit_retention').where('chain_id', mixed).first();
  await keeperOf(database, { days: 55 }).run();
  return { mixed, young, earlier };
}

for (const [name, { noticed, do: attack }] of Object.entries(attacks)) {
  eachEngine(test.serial, `no young record can be removed without being missed: ${name}`, async (t, at) => {
    const database = await openTestDatabase(t, at);
    const target = await victim(database);
    const checkpoint = await checkpointAt(database, NOW);
    t.true((await verified(database, [checkpoint])).intact);
    await attack(database.knex, target);
    const before = await macs(database.knex);
    const { run, errors, kept } = keeperOf(database);
    await run();
    const after = await macs(database.knex);
    const removed = [...before].filter(([mac]) => !after.has(mac)).map(([, id]) => id);
    // Only records that were written 50 days ago may be removed.
    for (const id of removed) t.is(Number.parseInt(id.slice(0, 8) + id.slice(9, 13), 16), OLD);
    t.false((await verified(database)).intact);
    t.is(errors.length, noticed ? 1 : 0);
    t.true(noticed ? (kept[0] ?? 0) > 0 : kept[0] === 0);
  });
}

eachEngine(test.serial, 'records are removed up to the first altered one, and the log says where', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const chain = await write(database, [60, 55, 50, 45]);
  const other = await write(database, [60, 1]);
  await database.knex('audit_decisions').where({ chain_id: chain, chain_seq: 7 }).update({ effect: 'allow' });
  const keeper = keeperOf(database);
  t.is(await keeper.run(), 9);
  const left: { chain_seq: number }[] = await database.knex('audit_decisions').where('chain_id', chain).orderBy('chain_seq');
  t.deepEqual(
    left.map(({ chain_seq }) => chain_seq),
    [7, 10],
  );
  t.like(keeper.errors, [{ chains: 1, kept: [{ chain, seq: 7, why: 'the record does not fit its MAC' }] }]);
  t.deepEqual(keeper.kept, [1]);
  t.like((await verified(database)).problems, [{ problem: 'altered', chain, seq: 7 }]);
  t.is((await retentionOf(database.knex, other))['newest'], NOW - 60 * DAY);

  // When the record is restored, it is removed, too, and no error is reported.
  await database.knex('audit_decisions').where({ chain_id: chain, chain_seq: 7 }).update({ effect: 'deny' });
  const later = keeperOf(database);
  t.is(await later.run(), 6);
  t.deepEqual([later.errors.length, later.kept], [0, [0]]);
  t.true((await verified(database)).intact);
});

eachEngine(test.serial, 'a chain under a replaced master key can be shortened only with that key', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const before = createChainKey(Buffer.alloc(32, 1));
  const chain = await write(database, [60, 50, 1], before);
  const without = keeperOf(database);
  t.is(await without.run(), 0);
  t.like(without.errors, [{ kept: [{ chain, seq: null }] }]);
  const keeper = keeperOf(database, { previousKeys: [before] });
  t.is(await keeper.run(), 6);
  t.true((await verified(database, [], [KEY, before])).intact);
  const later = keeperOf(database);
  await later.run();
  t.is(later.errors.length, 0, 'what is left is young: the key is not missed');
});

eachEngine(test.serial, 'a record that was inserted among the removed ones stops the removal', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const chain = await write(database, [60, 1]);
  const young = await write(database, [2]);
  const knex = new Proxy(database.knex, {
    get(target, name) {
      if (name !== 'transaction') return Reflect.get(target, name);
      return async (work: (trx: Transaction) => Promise<unknown>) => {
        await target('audit_decisions').where('chain_id', young).update({ chain_id: chain, chain_seq: 2 });
        return target.transaction(work);
      };
    },
  });
  const keeper = keeperOf({ ...database, knex });
  t.is(await keeper.run(), 0);
  t.is((await macs(database.knex)).size, 9);
  t.like(keeper.errors, [{ kept: [{ chain, seq: 1, why: 'records were added or removed in the meantime' }] }]);
});

/** The record of a removal, signed as the previous version did it. */
async function removedByVersion1(knex: Connection, chain: string, seq: number, removed_at: number): Promise<void> {
  for (const table of TABLES) {
    const last = await knex(table).where({ chain_id: chain, chain_seq: seq }).first('mac');
    if (!last) continue;
    const signature = KEY.mac(JSON.stringify([1, 'retention', chain, seq, last.mac, removed_at]));
    await knex('audit_retention').insert({ chain_id: chain, seq, mac: last.mac, removed_at, key_id: KEY.id, signature });
  }
  for (const table of TABLES) await knex(table).where('chain_id', chain).andWhere('chain_seq', '<=', seq).delete();
}

eachEngine(test.serial, 'a removal by the first version verifies, and its age stays unproven', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const chain = await write(database, [100, 90, 60, 50, 1]);
  const checkpoint = await checkpointAt(database, NOW);
  await removedByVersion1(database.knex, chain, 3, NOW - 20 * DAY);
  t.like(await verified(database, [checkpoint]), { intact: true, shortened: 1, unproven: 1 });
  t.is(await keeperOf(database, { days: 80 }).run(), 3);
  t.is(await keeperOf(database, { days: 55 }).run(), 3);
  const row = await retentionOf(database.knex, chain);
  t.like(row, { seq: 9, newest: NOW - 60 * DAY, unproven: JSON.stringify([3, NOW - 20 * DAY]) });
  t.like(await verified(database, [checkpoint]), { intact: true, shortened: 1, unproven: 1 });
  for (const change of [{ newest: NOW - 70 * DAY }, { newest: null }, { unproven: null }, { removed_at: NOW + 1 }]) {
    await database.knex('audit_retention').update(change);
    t.false((await verified(database)).intact, JSON.stringify(change));
    await database.knex('audit_retention').update(row);
  }
  t.true((await verified(database)).intact);
  // A replica of the first version may still run: it leaves the columns that it does not know.
  const { mac } = await database.knex('audit_decisions').where({ chain_id: chain, chain_seq: 10 }).first('mac');
  const removed_at = NOW;
  const signature = KEY.mac(JSON.stringify([1, 'retention', chain, 10, mac, removed_at]));
  await database.knex('audit_retention').update({ seq: 10, mac, removed_at, signature });
  await database.knex('audit_decisions').where({ chain_id: chain, chain_seq: 10 }).delete();
  t.like(await verified(database), { intact: true, unproven: 1 });
});

eachEngine(
  test.serial,
  'a removal by the first version is refused if a checkpoint proves that the records were young',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    // The hole of the first version: somebody set the times back, and the gateway removed and signed.
    const chain = await write(database, [100, 3, 2]);
    const content = { time: NOW - 4 * DAY, revision: 1, heads: [[chain, 3, 'm']] as const };
    const checkpoint: Checkpoint = { ...content, key_id: KEY.id, mac: checkpointMac(KEY, content) };
    await removedByVersion1(database.knex, chain, 6, NOW);
    t.like(await verified(database), { intact: true, unproven: 1 });
    const [found] = (await verified(database, [checkpoint])).problems;
    t.like(found, { problem: 'missing', chain, seq: 4 });
    t.regex(found?.detail ?? '', /too young/);
    // It stays known when a later version has gone on from there, a year later.
    t.is(await keeperOf(database, { now: () => NOW + 365 * DAY }).run(), 3);
    t.like((await verified(database, [checkpoint])).problems[0], { problem: 'missing', chain, seq: 4 });
  },
);

eachEngine(
  test.serial,
  'a removal from a chain that began less than 30 days before is refused without a checkpoint',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const chain = await write(database, [3, 2, 1]);
    await removedByVersion1(database.knex, chain, 3, NOW);
    t.like((await verified(database)).problems[0], { problem: 'missing', chain, seq: 1 });
  },
);

eachEngine(test.serial, 'a signed removal that claims more than a checkpoint knows is refused', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const chain = await write(database, [100, 90, 3]);
  const content = { time: NOW - 80 * DAY, revision: 1, heads: [[chain, 6, 'm']] as const };
  const checkpoint: Checkpoint = { ...content, key_id: KEY.id, mac: checkpointMac(KEY, content) };
  const { mac } = await database.knex('audit_decisions').where({ chain_id: chain, chain_seq: 7 }).first('mac');
  const removal = { chain_id: chain, seq: 7, mac, removed_at: NOW, newest: NOW - 90 * DAY, unproven: null };
  await database.knex('audit_retention').insert({ ...removal, key_id: KEY.id, signature: retentionSignature(KEY, removal) });
  for (const table of TABLES) await database.knex(table).where('chain_id', chain).andWhere('chain_seq', '<=', 7).delete();
  t.true((await verified(database)).intact);
  const [found] = (await verified(database, [checkpoint])).problems;
  t.like(found, { problem: 'missing', chain, seq: 7 });
  t.regex(found?.detail ?? '', /too young/);
});
