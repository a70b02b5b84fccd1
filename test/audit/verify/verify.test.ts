/** Each way of tampering that an owner of the tables has, and that verification names where. */
import test, { type ExecutionContext } from 'ava';
import { createChainKey, firstIdOf } from '../../../src/audit/chain/chain.ts';
import { CHECKPOINT_TYPE, type Checkpoint, checkpointMac } from '../../../src/audit/chain/checkpoint.ts';
import { chainStore } from '../../../src/audit/chain/tables/chain-store.ts';
import { type AuditLine, auditLines, lineText, readLine } from '../../../src/audit/verify/lines.ts';
import type { ProblemKind } from '../../../src/audit/verify/report.ts';
import { createVerification } from '../../../src/audit/verify/verify.ts';
import type { Connection, Database } from '../../../src/db/database.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import type { TestDatabase } from '../../support/databases/engines.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { storedDecision } from '../legacy-rows.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, KEY, LATER, quietWriter, verified } from '../records.ts';

const LIST = 3;

/** Writes the records of one process: ten decisions with outcomes. The fourth decision is a list, with its names. */
async function start(database: Database) {
  const writer = legacyWriter(database);
  const records = Array.from({ length: 10 }, (_, i) =>
    decision({ user_id: `u${i % 2}`, resource_name: `Zürich \u{1f600} ${i} "'\\ `, policy_name: i % 3 === 0 ? 'p' : null }),
  );
  for (const [i, record] of records.entries()) {
    await writer.decision(record);
    if (i === LIST) await writer.shown({ decision_id: record.id, resource_type: 'tool', names: ['a', 'b'], hidden: 1 });
  }
  for (const { id } of records) writer.outcome({ decision_id: id, outcome: 'ok', duration_ms: 5 });
  await writer.flush();
  const head = writer.head();
  if (head === null) throw new Error('no chain');
  await writer.close();
  return { ids: records.map(({ id }) => id), chain: head.chain_id, head };
}

type Started = Awaited<ReturnType<typeof start>>;

async function twoStarts(t: ExecutionContext, at: TestDatabase) {
  const database = await openTestDatabase(t, at);
  const [first, second] = [await start(database), await start(database)];
  t.like(await verified(database), { intact: true, chains: 2, records: { decision: 20, shown: 2, outcome: 20 }, problems: [] });
  return { database, first, second };
}

async function checkpointOf(database: Database): Promise<Checkpoint> {
  const heads = (await chainStore(database.knex).openHeads(KEY)).map(({ chain_id, seq, mac }) => [chain_id, seq, mac] as const);
  const content = { time: 5, revision: 1, heads };
  return { ...content, key_id: KEY.id, mac: checkpointMac(KEY, content) };
}

eachEngine(test.serial, 'a chain that begins while a checkpoint is made hides no head from it', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const first = await start(database);
  const knex = new Proxy(database.knex, {
    apply(target, self, args) {
      const query = Reflect.apply(target, self, args);
      // The checkpoint reads this table last.
      if (args[0] === 'audit_chains') {
        const { select } = query;
        query.select = (...columns: unknown[]) => start(database).then(() => select.apply(query, columns));
      }
      return query;
    },
  });
  t.deepEqual(await chainStore(knex).openHeads(KEY), [first.head]);
});

interface Tampering {
  readonly problem: ProblemKind;
  readonly says: RegExp;
  /** Tampers with the log, and returns the id of the decision that the report must name. */
  do(knex: Connection, at: Started): Promise<string | undefined>;
}

const edited = (table: string, column: string, value: unknown): Tampering => ({
  problem: 'altered',
  says: /not what was written|after an erasure/,
  async do(knex, { ids }) {
    const id = ids[table === 'audit_decisions' ? 5 : LIST] ?? '';
    await knex(table)
      .where(table === 'audit_decisions' ? 'id' : 'decision_id', id)
      .update({ [column]: value });
    return id;
  },
});

/** A decision that appears in the log although the gateway did not make it. */
const copied = (at: object, says: RegExp): Tampering => ({
  problem: 'added',
  says,
  async do(knex, { ids }) {
    const row = await knex('audit_decisions').where('id', ids[4]).first();
    const { id } = decision();
    await knex('audit_decisions').insert({ ...row, id, ...at });
    return id;
  },
});

const columns: readonly (readonly [table: string, column: string, value: unknown])[] = [
  ['audit_decisions', 'created_at', 1],
  ['audit_decisions', 'issuer', 'other'],
  ['audit_decisions', 'user_id', 'other'],
  ['audit_decisions', 'user_email', 'other@example.com'],
  ['audit_decisions', 'user_role', 'admin'],
  ['audit_decisions', 'user_groups', '[]'],
  ['audit_decisions', 'target_id', 't'],
  ['audit_decisions', 'target_name', 'other'],
  ['audit_decisions', 'method', 'other'],
  ['audit_decisions', 'resource_type', null],
  ['audit_decisions', 'resource_name', 'echo'],
  ['audit_decisions', 'effect', 'allow'],
  ['audit_decisions', 'reason', 'matched'],
  ['audit_decisions', 'policy_id', 'p'],
  ['audit_decisions', 'policy_name', 'p'],
  ['audit_decisions', 'policy_priority', 0],
  ['audit_decisions', 'revision', 4],
  ['audit_decisions', 'data_hash', 'x'],
  ['audit_decisions', 'engine_hash', 'x'],
  ['audit_decisions', 'salt', 'x'],
  ['audit_decisions', 'salt', null],
  ['audit_decisions', 'person_hash', 'x'],
  ['audit_decisions', 'resource_key', 'x'],
  ['audit_decisions', 'arguments', '{}'],
  ['audit_decisions', 'mac', 'x'],
  ['audit_shown', 'resource_type', 'prompt'],
  ['audit_shown', 'shown', 1],
  ['audit_shown', 'hidden', 0],
  ['audit_outcomes', 'outcome', 'denied'],
  ['audit_outcomes', 'duration_ms', 6],
  ['audit_outcomes', 'created_at', 1],
];

const tamperings: Readonly<Record<string, Tampering>> = {
  ...Object.fromEntries(columns.map(([table, column, value]) => [`${table}.${column} = ${value}`, edited(table, column, value)])),
  'e-mail, groups and salt taken out by hand': {
    problem: 'altered',
    says: /no erasure of this user was recorded/,
    async do(knex, { ids }) {
      await knex('audit_decisions').where('id', ids[5]).update({ user_email: '', user_groups: '[]', salt: null });
      return ids[5];
    },
  },
  'other names shown': {
    problem: 'altered',
    says: /the listed names/,
    async do(knex, { ids }) {
      await knex('audit_sets').update({ names: '["a"]' });
      return ids[LIST];
    },
  },
  'the names shown deleted': {
    problem: 'missing',
    says: /the listed names/,
    async do(knex, { ids }) {
      await knex('audit_sets').delete();
      return ids[LIST];
    },
  },
  'deleted in the middle': {
    problem: 'missing',
    says: /^record 6 is missing/,
    async do(knex, { chain, ids }) {
      await knex('audit_decisions').where({ chain_id: chain, chain_seq: 6 }).delete();
      return ids[5];
    },
  },
  'an outcome deleted': {
    problem: 'missing',
    says: /^record 15 is missing/,
    async do(knex, { chain }) {
      await knex('audit_outcomes').where({ chain_id: chain, chain_seq: 15 }).delete();
      return undefined;
    },
  },
  'deleted in front': {
    problem: 'missing',
    says: /^records 1 to 3 are missing/,
    async do(knex, { chain, ids }) {
      await knex('audit_decisions').where('chain_id', chain).andWhere('chain_seq', '<=', 3).delete();
      return ids[3];
    },
  },
  'two rows swapped': {
    problem: 'altered',
    says: /its position in the chain/,
    async do(knex, { ids }) {
      const [a, b] = [ids[6] ?? '', ids[7] ?? ''];
      const at = async (id: string) => await knex('audit_decisions').where({ id }).first('chain_seq', 'mac');
      const [first, second] = [await at(a), await at(b)];
      await knex('audit_decisions').where('id', a).update(second);
      await knex('audit_decisions').where('id', b).update(first);
      return b;
    },
  },
  'a copy inserted': {
    problem: 'added',
    says: /a different record already has this position/,
    async do(knex, { ids }) {
      const row = await knex('audit_decisions').where('id', ids[4]).first();
      const { id } = decision();
      await knex('audit_decisions').insert({ ...row, id });
      // Both records have the same position, and either of them may be read first.
      return undefined;
    },
  },
  'a row of no chain inserted': {
    problem: 'added',
    says: /^1 records belong to no chain/,
    async do(knex, { ids }) {
      const row = await knex('audit_decisions').where('id', ids[4]).first();
      await knex('audit_decisions').insert({ ...row, id: decision().id, chain_id: null, chain_seq: null, mac: null });
      return undefined;
    },
  },
  'a row inserted before the first place': copied({ chain_seq: 0 }, /no number/),
  'a row inserted at a position below all others': copied({ chain_seq: -7 }, /no number/),
  // JavaScript rounds this number down to an even one, so a search up to the rounded number does not reach it.
  'a row inserted beyond all exact numbers': copied({ chain_seq: '9007199254740993' }, /no number/),
  'a row inserted without a position': copied({ chain_seq: null }, /no number/),
  'a row inserted for a chain without a name': copied({ chain_id: '' }, /a chain that never existed/),
  'a row inserted for another chain without a position': copied({ chain_id: 'x', chain_seq: null }, /a chain that never existed/),
  'a row inserted for another chain below all positions': copied({ chain_id: 'x', chain_seq: -7 }, /a chain that never existed/),
  'a row of a made-up chain inserted': {
    problem: 'added',
    says: /a chain that never existed/,
    async do(knex, { ids }) {
      const row = await knex('audit_decisions').where('id', ids[4]).first();
      const { id } = decision();
      await knex('audit_decisions').insert({ ...row, id, chain_id: id });
      return id;
    },
  },
  'a whole start removed': {
    problem: 'missing',
    says: /^the whole chain is missing/,
    async do(knex, { chain }) {
      for (const table of ['audit_decisions', 'audit_shown', 'audit_outcomes', 'audit_chains']) {
        await knex(table).where('chain_id', chain).delete();
      }
      return undefined;
    },
  },
  'the head of a chain removed': {
    problem: 'missing',
    says: /the header of the chain is missing/,
    async do(knex, { chain }) {
      await knex('audit_chains').where('chain_id', chain).delete();
      return undefined;
    },
  },
  'the head of a chain altered': {
    problem: 'altered',
    says: /the header of the chain/,
    async do(knex, { chain }) {
      await knex('audit_chains').where('chain_id', chain).update({ started_at: 1 });
      return undefined;
    },
  },
  'what a start found altered': {
    problem: 'altered',
    says: /the header of the chain/,
    async do(knex, { chain }) {
      await knex('audit_chains').whereNot('chain_id', chain).update({ found: '[]' });
      return undefined;
    },
  },
  'the tail cut off before a later start': {
    problem: 'cut_off',
    says: /^records 20 to 21 are missing at the end; chain /,
    async do(knex, { chain }) {
      await knex('audit_outcomes').where('chain_id', chain).andWhere('chain_seq', '>=', 20).delete();
      return undefined;
    },
  },
  'all records of a start removed': {
    problem: 'cut_off',
    says: /^records 1 to 21 are missing/,
    async do(knex, { chain }) {
      for (const table of ['audit_decisions', 'audit_shown', 'audit_outcomes'])
        await knex(table).where('chain_id', chain).delete();
      return undefined;
    },
  },
  'a removal by age made up': {
    problem: 'altered',
    says: /removal by age/,
    async do(knex, { chain }) {
      await knex('audit_decisions').where('chain_id', chain).andWhere('chain_seq', '<=', 2).delete();
      const { mac } = await knex('audit_decisions').where({ chain_id: chain, chain_seq: 3 }).first('mac');
      await knex('audit_retention').insert({ chain_id: chain, seq: 2, mac, removed_at: 1, key_id: KEY.id, signature: 'x' });
      return undefined;
    },
  },
};

eachEngine(test.serial, 'verification names each kind of tampering and its place', async (t, at) => {
  const { database, first } = await twoStarts(t, at);
  class Undo extends Error {}
  for (const [name, { problem, says, do: tamper }] of Object.entries(tamperings)) {
    await t.throwsAsync(
      database.knex.transaction(async (trx) => {
        const id = await tamper(trx, first);
        const { intact, problems } = await verified({ ...database, knex: trx });
        t.false(intact, name);
        const [bad] = problems;
        t.is(bad?.problem, problem, name);
        t.regex(bad?.detail ?? '', says, name);
        if (id !== undefined) t.is(bad?.decision_id, id, name);
        throw new Undo();
      }),
      { instanceOf: Undo },
      name,
    );
  }
  t.true((await verified(database)).intact);
});

test.serial('a text in a numeric column of SQLite does not hide a record', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { database, first } = await twoStarts(t, at);
  const row = await database.knex('audit_decisions').where('id', first.ids[4]).first();
  await database.knex('audit_decisions').insert({ ...row, id: decision().id, chain_seq: 'x' });
  const report = await verified(database);
  t.like(report.problems, [{ problem: 'added', chain: first.chain }]);
  t.is(report.records.decision, 20, 'the other records are read all the same');
});

test.serial('a number that is not finite does not pass for an absent one in SQLite', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { database } = await twoStarts(t, at);
  const { knex } = database;
  const changed = await knex('audit_decisions')
    .whereNull('policy_priority')
    .whereNotNull('chain_id')
    .update({ policy_priority: knex.raw('9e999') });
  t.true(changed > 0);
  t.false((await verified(database)).intact);
});

test.serial('nothing that follows a NUL in a text of SQLite is hidden', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { database, first } = await twoStarts(t, at);
  const { knex } = database;
  const places = [
    ...columns.map(([table, column]) => [table, column] as const),
    ...['audit_decisions', 'audit_shown', 'audit_outcomes', 'audit_chains'].map((table) => [table, 'chain_id'] as const),
    ...['key_id', 'host', 'found', 'mac'].map((column) => ['audit_chains', column] as const),
    ['audit_sets', 'names'] as const,
  ];
  for (const [table, column] of places) {
    const row = await knex(table)
      .whereNotNull(column)
      .modify((rows) => void (table === 'audit_sets' || rows.where('chain_id', first.chain)))
      .first('rowid as at', `${column} as written`);
    // Some columns are empty in every row.
    if (row === undefined) continue;
    const place = () => knex(table).where('rowid', row.at);
    await place().update({ [column]: knex.raw("? || char(0) || 'x'", [row.written]) });
    t.false((await verified(database)).intact, `${table}.${column}`);
    await place().update({ [column]: row.written });
  }
  t.true((await verified(database)).intact);
});

eachEngine(
  test.serial,
  'no forged header or removal hides a chain from the checkpoints made while it is there',
  async (t, at) => {
    const { database, first, second } = await twoStarts(t, at);
    const { knex } = database;
    const found = JSON.stringify([first.head, second.head].map(({ chain_id, seq, mac }) => [chain_id, seq, mac]));
    const header = await knex('audit_chains').where('chain_id', second.chain).first();
    const removal = { chain_id: second.chain, mac: 'x', removed_at: 1, key_id: KEY.id, signature: 'x' };
    const forged: [table: string, row: object][] = [
      ['audit_chains', { ...header, chain_id: 'x', found }],
      ['audit_chains', { ...header, chain_id: 'x', found: 'x' }],
      ['audit_retention', { ...removal, seq: '9007199254740993' }],
      ...(at.url.startsWith('sqlite') ? [['audit_retention', { ...removal, seq: 'x' }] as [string, object]] : []),
    ];
    for (const [table, row] of forged) {
      await knex(table).insert(row);
      const checkpoint = await checkpointOf(database);
      await knex(table).where('mac', 'x').orWhere('chain_id', 'x').delete();
      t.true(
        checkpoint.heads.some(([chain]) => chain === second.chain),
        JSON.stringify(row),
      );
      t.true(
        checkpoint.heads.every(([, seq]) => Number.isSafeInteger(seq)),
        'the checkpoint can be read',
      );
    }
  },
);

eachEngine(test.serial, 'a record with the number of another record is found at the end of a page', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const writer = legacyWriter(database);
  for (let n = 0; n < 450; n++) await writer.decision(decision());
  await writer.close();
  t.like(await verified(database), { intact: true, records: { decision: 450 } });
  for (const chain_seq of [199, 200, 201, 399, 400, 401, 449, 450]) {
    const { id, ...row } = await database.knex('audit_decisions').where({ chain_seq }).first();
    const { chain_id, mac } = row;
    const outcome = { decision_id: id, outcome: 'denied', duration_ms: 1, created_at: 1, chain_id, chain_seq, mac };
    const listed = { decision_id: id, resource_type: 'tool', shown: 0, hidden: 0, set_hash: 'x', chain_id, chain_seq, mac };
    for (const [table, forged] of [
      ['audit_decisions', { ...row, id: decision().id }],
      ['audit_outcomes', outcome],
      ['audit_shown', listed],
    ] as const) {
      await database.knex(table).insert(forged);
      const [found] = (await verified(database)).problems;
      t.is(found?.seq, chain_seq, table);
      // Databases return rows of the same number in any order: the forged row may come first.
      t.true(found?.problem === 'added' || found?.problem === 'altered', `${table} ${chain_seq}`);
      await database
        .knex(table)
        .where(table === 'audit_decisions' ? { id: forged['id' as keyof typeof forged] } : { decision_id: id })
        .delete();
    }
  }
});

eachEngine(test.serial, 'only a checkpoint shows that the last records are missing', async (t, at) => {
  const { database, second } = await twoStarts(t, at);
  const checkpoint = await checkpointOf(database);
  t.true((await verified(database, [checkpoint])).intact);
  const { chain } = second;
  await database.knex('audit_outcomes').where({ chain_id: chain, chain_seq: 21 }).delete();
  t.true((await verified(database)).intact, 'nothing after the last head is promised');
  const [cut] = (await verified(database, [checkpoint])).problems;
  t.like(cut, { problem: 'cut_off', chain, seq: 21 });
  for (const table of ['audit_decisions', 'audit_shown', 'audit_outcomes', 'audit_chains']) {
    await database.knex(table).where('chain_id', chain).delete();
  }
  const [gone] = (await verified(database, [checkpoint])).problems;
  t.like(gone, { problem: 'missing', chain });
  const forged = { ...checkpoint, heads: [] };
  t.like((await verified(database, [forged])).problems[0], { problem: 'altered' });
});

eachEngine(test.serial, 'a record without a chain must be older than the first chain', async (t, at) => {
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  const DAY = 24 * 3_600_000;
  const old = decision({ id: `${firstIdOf(Date.now() - 30 * DAY).slice(0, 24)}000000000001`, created_at: Date.now() - 30 * DAY });
  await knex('audit_decisions').insert(storedDecision(old).row);
  const chain = legacyWriter(database, { now: () => Date.now() - 20 * DAY });
  await chain.decision(decision());
  await chain.close();
  const checkpoint = await checkpointOf(database);
  t.like(await verified(database, [checkpoint]), { intact: true, unchained: 1 });
  const strange =
    database.kind === 'sqlite' ? [{ created_at: 'x' }, { created_at: Buffer.from('1') }, { id: Buffer.from(old.id) }] : [];
  for (const change of [{ id: decision().id }, { created_at: Date.now() }, { id: 'zzz' }, ...strange]) {
    await knex('audit_decisions').whereNull('chain_id').update(change);
    const { problems } = await verified(database, [checkpoint]);
    t.like(problems, [{ problem: 'added', detail: /younger than the first chain/.exec(problems[0]?.detail ?? '')?.input }]);
    await knex('audit_decisions').whereNull('chain_id').update({ id: old.id, created_at: old.created_at });
  }
  t.true((await verified(database, [checkpoint])).intact);
});

test('a line of an export whose kind is no text is not read', (t) => {
  for (const kind of ['decision', 'chain', 'retention', 'erasure']) {
    t.truthy(readLine(JSON.stringify({ kind, id: 'x' })));
    t.is(readLine(JSON.stringify({ kind: [kind], id: 'x' })), null, kind);
  }
});

test('a line of an export that is no row has exactly its members', (t) => {
  for (const frame of [
    { kind: 'audit', version: 2, created_at: 1, checkpoint: 'x' },
    { kind: 'unchained', count: 0 },
    { kind: 'end', records: 3 },
  ] as const) {
    t.truthy(readLine(JSON.stringify(frame)));
    t.is(readLine(JSON.stringify({ ...frame, note: 'x' })), null);
    for (const member of Object.keys(frame)) {
      if (member === 'kind') continue;
      for (const value of [undefined, -1, 0.5, [], {}, true])
        t.is(readLine(JSON.stringify({ ...frame, [member]: value })), null, `${member} ${value}`);
    }
  }
});

eachEngine(test.serial, 'an export without its checkpoint is not intact, because its end may be cut off', async (t, at) => {
  const { database } = await twoStarts(t, at);
  const checkpoint = await checkpointOf(database);
  const part = (value: object): string => Buffer.from(JSON.stringify(value)).toString('base64url');
  const jws = `${part({ typ: CHECKPOINT_TYPE })}.${part(checkpoint)}.`;
  const lines: AuditLine[] = [];
  for await (const line of auditLines(database.knex, 1, jws)) lines.push(line);
  const check = (given: readonly AuditLine[]) => {
    const verification = createVerification([KEY], LATER);
    for (const line of given) verification.takeExported(line);
    return verification.finish().report.problems.map(({ problem }) => problem);
  };
  t.deepEqual(check(lines), []);
  const [first, end] = [lines[0], lines.at(-1)];
  if (first?.kind !== 'audit' || end?.kind !== 'end') throw new Error('no export');
  const last = lines.findLastIndex(({ kind }) => kind === 'outcome');
  const shorter = [...lines.slice(1, last), { ...end, records: end.records - 1 }];
  t.deepEqual(check([first, ...shorter]), ['cut_off']);
  for (const stripped of [null, '', 'x', 'a.b.c', jws.slice(1)]) {
    t.deepEqual(check([{ ...first, checkpoint: stripped }, ...shorter]), ['cut_off'], String(stripped));
  }
});

eachEngine(test.serial, 'an export verifies like the database, and shows where it was changed or cut off', async (t, at) => {
  const { database } = await twoStarts(t, at);
  const lines: string[] = [];
  for await (const line of auditLines(database.knex, 1, null)) lines.push(lineText(line));
  const check = (texts: readonly string[]) => {
    const verification = createVerification([KEY], LATER);
    for (const text of texts) {
      const line = readLine(text);
      if (line) verification.take(line);
    }
    return verification.finish().report;
  };
  t.like(check(lines), { intact: true, chains: 2, records: { decision: 20, shown: 2, outcome: 20 } });
  for (const [i, line] of lines.entries()) {
    if (!/"kind":"(decision|shown|outcome|chain)"/.test(line)) continue;
    const without = check(lines.toSpliced(i, 1));
    t.false(without.intact, `without line ${i}`);
    const next = lines[i + 1] ?? '';
    if (/"kind":"(decision|shown|outcome)"/.test(line) && /"kind":"(decision|shown|outcome)"/.test(next)) {
      t.false(check(lines.toSpliced(i, 2, next, line)).intact, `lines ${i} and ${i + 1} swapped`);
    }
  }
  t.is(check(lines.slice(0, -1)).problems.at(-1)?.problem, 'cut_off');
});

eachEngine(
  test.serial,
  'the header of a chain that comes after other records does not hide what it knows of these',
  async (t, at) => {
    const database = await openTestDatabase(t, at);
    const [first, second] = [quietWriter(database), quietWriter(database)];
    await Promise.all([first.start(), second.start()]);
    for (let i = 0; i < 3; i++) await first.decision(decision());
    await second.decision(decision());
    await Promise.all([first.close(), second.close()]);
    await start(database);
    const checkpoint = await checkpointOf(database);
    const lines: AuditLine[] = [];
    for await (const line of auditLines(database.knex, 1, null)) lines.push(line);
    const check = (given: readonly AuditLine[]) => {
      const verification = createVerification([KEY], LATER);
      verification.expect(checkpoint);
      for (const line of given) verification.take(line.kind === 'end' ? { ...line, records: line.records - 1 } : line);
      return verification.finish().report.problems.map(({ problem }) => problem);
    };
    const headers = lines.filter(({ kind }) => kind === 'chain');
    const of = (chain: string | undefined) =>
      lines.filter((line) => 'row' in line && 'chain_seq' in line.row && line.row.chain_id === chain);
    const [one, two] = [first, second].map((writer) => writer.head()?.chain_id);
    const three = headers.at(-1);
    if (three?.kind !== 'chain') throw new Error('no chain');
    const begin = lines.slice(0, lines.indexOf(three));
    const records = [...of(one).slice(0, -1), ...of(two)];
    const end = lines.filter(({ kind }) => kind === 'end');
    t.deepEqual(check([...begin, three, ...records, ...of(three.row.chain_id), ...end]), ['cut_off']);
    t.deepEqual(check([...begin, ...records, three, ...of(three.row.chain_id), ...end]), ['added']);
  },
);

eachEngine(
  test.serial,
  'a different master key checks nothing; a previous one checks what was written under it',
  async (t, at) => {
    const { database } = await twoStarts(t, at);
    const other = createChainKey(Buffer.alloc(32, 1));
    t.is((await verified(database, [], [other])).problems[0]?.problem, 'unknown_key');
    t.true((await verified(database, [], [other, KEY])).intact);
    const verification = createVerification([other], LATER);
    for await (const line of auditLines(database.knex, 1, null)) verification.take(line);
    t.false(verification.finish().keyFits);
  },
);
