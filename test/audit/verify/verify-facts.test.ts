/** Each way of tampering with the tables of version 2 that an owner of the tables has, and that verification names where. */
import test from 'ava';
import { hexOf, OUTCOME_BYTES } from '../../../src/audit/chain/binary-form.ts';
import { type ChainedRecord, withFacts } from '../../../src/audit/chain/known-facts.ts';
import { FACT_TABLES, LOG_TABLES, literalId, tailOf } from '../../../src/audit/chain/tables/log-tables.ts';
import { type AuditLine, auditLines, lineText, readLine } from '../../../src/audit/verify/lines.ts';
import type { ProblemKind } from '../../../src/audit/verify/report.ts';
import { createVerification } from '../../../src/audit/verify/verify.ts';
import type { Connection, Database } from '../../../src/db/database.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { legacyWriter } from '../legacy-writer.ts';
import { decision, KEY, LATER, quietWriter, verified } from '../records.ts';

const LIST = 3;

/** One process start: ten decisions, of which the fourth has a list, and an outcome of each. */
async function start(database: Database) {
  const writer = quietWriter(database);
  const records = Array.from({ length: 10 }, (_, i) =>
    decision({
      user_id: `u${i % 2}`,
      // Even names come twice, so that they become facts; odd ones stay in their records.
      resource_name: i % 2 === 0 ? `Zürich \u{1f600} "'\\ ` : `once ${i}`,
      policy_name: i % 3 === 0 ? 'p' : null,
      arguments: i === 5 ? '{"value":1,"cut":false}' : null,
    }),
  );
  for (const [i, record] of records.entries()) {
    await writer.decision(record);
    if (i === LIST) await writer.shown({ decision_id: record.id, resource_type: 'tool', names: ['a', 'b'], hidden: 1 });
  }
  for (const { id } of records) {
    writer.outcome({ decision_id: id, outcome: 'ok', duration_ms: 5 });
    // Otherwise one record would have all outcomes.
    await writer.flush();
  }
  const head = writer.head();
  if (head === null) throw new Error('no chain');
  await writer.close();
  return { ids: records.map(({ id }) => id), chain: head.chain_id, head };
}

type Started = Awaited<ReturnType<typeof start>>;

interface Tampering {
  readonly problem: ProblemKind;
  readonly says: RegExp;
  do(knex: Connection, at: Started): Promise<unknown>;
}

const inChain = (knex: Connection, table: string, { chain }: Started) => knex(table).whereRaw(`chain = x'${tailOf(chain)}'`);
const withId = (knex: Connection, table: string, id: string | undefined) =>
  knex(table).whereRaw(`${table === 'log_outcomes' ? 'substr(outcomes, 1, 16)' : 'id'} = ${literalId(id ?? '')}`);
/** The driver of SQLite gives an ArrayBuffer, and takes a Buffer. */
const bindable = (value: unknown) => (value instanceof ArrayBuffer ? Buffer.from(value) : value) as string;
const OTHER = Buffer.alloc(16, 7);

const columns: readonly (readonly [table: string, column: string, value: unknown])[] = [
  ['log_decisions', 'created_at', 1],
  ['log_decisions', 'created_at', null],
  ['log_decisions', 'created_at', Number.MAX_SAFE_INTEGER],
  ['log_decisions', 'created_at', -Number.MAX_SAFE_INTEGER],
  ['log_decisions', 'name', 'other'],
  ['log_decisions', 'name', null],
  ['log_decisions', 'mac', OTHER],
  ['log_lists', 'type', 2],
  ['log_lists', 'shown', 1],
  ['log_lists', 'hidden', 0],
  ['log_outcomes', 'since', 1],
  ['log_outcomes', 'created_at', 1],
  ['log_outcomes', 'created_at', Number.MAX_SAFE_INTEGER],
  ['log_outcomes', 'outcomes', OTHER],
  ['log_outcomes', 'outcomes', Buffer.alloc(0)],
  ['log_arguments', 'hash', Buffer.alloc(32)],
  ['log_arguments', 'salt', 'x'],
  ['log_arguments', 'salt', null],
  ['log_arguments', 'arguments', '{}'],
  ['log_principals', 'issuer', 'other'],
  ['log_principals', 'user_id', 'other'],
  ['log_principals', 'user_role', 'admin'],
  ['log_principals', 'since', 1],
  ['log_principals', 'person_hash', 'x'],
  ['log_principals', 'salt', 'x'],
  ['log_principals', 'salt', null],
  ['log_principals', 'user_email', 'other@example.com'],
  ['log_principals', 'user_groups', '[]'],
  ['log_objects', 'target_id', 't'],
  ['log_objects', 'target_name', 'other'],
  ['log_objects', 'method', 'other'],
  ['log_objects', 'resource_type', null],
  ['log_objects', 'resource_name', 'echo'],
  ['log_verdicts', 'effect', 'allow'],
  ['log_verdicts', 'reason', 'matched'],
  ['log_verdicts', 'policy_id', 'p'],
  ['log_verdicts', 'policy_name', 'q'],
  ['log_verdicts', 'policy_priority', 0],
  ['log_verdicts', 'revision', 4],
  ['log_verdicts', 'data_hash', 'x'],
  ['log_verdicts', 'engine_hash', 'x'],
  ['log_names', 'set_hash', 'x'],
  ['log_names', 'names', '["a"]'],
];
/** The fact of a decision. */
const FACTS: Readonly<Record<string, string>> = { log_principals: 'principal', log_objects: 'object', log_verdicts: 'verdict' };

const edited = (table: string, column: string, value: unknown): Tampering => ({
  problem: 'altered',
  says: /not what was written|after an erasure/,
  async do(knex, { ids }) {
    const fact = FACTS[table];
    if (table === 'log_names') return knex(table).update({ [column]: value });
    if (fact === undefined) {
      return withId(knex, table, ids[table === 'log_lists' ? LIST : 5]).update({ [column]: value });
    }
    const [row] = await withId(knex, 'log_decisions', ids[4]).select(fact);
    return knex(table)
      .where('id', bindable(row[fact]))
      .update({ [column]: value });
  },
});

/** Where a record of version 2 is, as the tables of version 1 have it. */
async function legacyStamp(knex: Connection, table: string, id: string | undefined, chain_id: string) {
  const [{ seq, mac }] = await withId(knex, table, id).select('seq', 'mac');
  return { chain_id, chain_seq: seq, mac: Buffer.from(mac).toString('base64url') };
}

/** A decision that appears in the log although the gateway did not make it. */
const copied = (at: object, says: RegExp, problem: ProblemKind = 'added'): Tampering => ({
  problem,
  says,
  async do(knex, { ids }) {
    const [row] = await withId(knex, 'log_decisions', ids[4]).select('*');
    const values = Object.fromEntries(Object.entries(row).map(([name, value]) => [name, bindable(value)]));
    await knex('log_decisions').insert({ ...values, id: knex.raw(literalId(decision().id)), ...at });
  },
});

/** Exchanges a column of two decisions. */
const swapped = (column: string, a: number, b: number, tables = ['log_decisions', 'log_decisions']): Tampering => ({
  problem: 'altered',
  says: /not what was written/,
  async do(knex, { ids }) {
    const [one = '', two = ''] = tables;
    const [first] = await withId(knex, one, ids[a]).select(column);
    const [second] = await withId(knex, two, ids[b]).select(column);
    await withId(knex, one, ids[a]).update({ [column]: bindable(second[column]) });
    await withId(knex, two, ids[b]).update({ [column]: bindable(first[column]) });
  },
});

/** Changes some bytes of a record of outcomes. */
const ended = (change: (outcomes: Buffer) => Buffer): Tampering => ({
  problem: 'altered',
  says: /not what was written/,
  async do(knex, { ids }) {
    const [row] = await withId(knex, 'log_outcomes', ids[5]).select('outcomes');
    await withId(knex, 'log_outcomes', ids[5]).update({ outcomes: change(Buffer.from(row.outcomes)) });
  },
});

const removed = (table: string, says: RegExp): Tampering => ({
  problem: 'missing',
  says,
  do: (knex) => knex(table).delete(),
});

const tamperings: Readonly<Record<string, Tampering>> = {
  ...Object.fromEntries(columns.map(([table, column, value]) => [`${table}.${column} = ${value}`, edited(table, column, value)])),
  ...Object.fromEntries(
    Array.from({ length: OUTCOME_BYTES }, (_, i) => [
      `byte ${i} of an outcome changed`,
      ended((outcomes) => outcomes.fill((outcomes[i] ?? 0) ^ 1, i, i + 1)),
    ]),
  ),
  'an outcome added to a record': ended((outcomes) => Buffer.concat([outcomes, outcomes])),
  'a byte added to an outcome': ended((outcomes) => Buffer.concat([outcomes, Buffer.alloc(1)])),
  'the principals of two records swapped': swapped('principal', 4, 5),
  'the objects of two records swapped': swapped('object', 4, 5),
  'the verdicts of two records swapped': swapped('verdict', 3, 4),
  'the names of two records swapped': swapped('name', 1, 3),
  'all personal data taken out by hand': {
    problem: 'altered',
    says: /no erasure of this user was recorded/,
    do: (knex) => knex('log_principals').update({ user_email: '', user_groups: '[]', salt: null }),
  },
  'arguments taken out by hand': {
    problem: 'altered',
    says: /no erasure of this user was recorded/,
    do: (knex) => knex('log_arguments').update({ arguments: null, salt: null }),
  },
  'arguments deleted': { ...removed('log_arguments', /not what was written/), problem: 'altered' },
  'the listed names deleted': removed('log_names', /the listed names are missing/),
  'the principals deleted': removed('log_principals', /a fact that the record refers to is missing/),
  'the objects deleted': removed('log_objects', /a fact that the record refers to is missing/),
  'the verdicts deleted': removed('log_verdicts', /a fact that the record refers to is missing/),
  'deleted in the middle': {
    problem: 'missing',
    says: /^record 6 is missing/,
    do: (knex, at) => inChain(knex, 'log_decisions', at).andWhere('seq', 6).delete(),
  },
  'an outcome deleted': {
    problem: 'missing',
    says: /^record 15 is missing/,
    do: (knex, at) => inChain(knex, 'log_outcomes', at).andWhere('seq', 15).delete(),
  },
  'deleted in front': {
    problem: 'missing',
    says: /^records 1 to 3 are missing/,
    do: (knex, at) => inChain(knex, 'log_decisions', at).andWhere('seq', '<=', 3).delete(),
  },
  'the positions of two records swapped': {
    problem: 'altered',
    says: /its position in the chain/,
    async do(knex, { ids }) {
      const [first] = await withId(knex, 'log_decisions', ids[6]).select('seq', 'mac');
      const [second] = await withId(knex, 'log_decisions', ids[7]).select('seq', 'mac');
      await withId(knex, 'log_decisions', ids[6]).update({ seq: second.seq, mac: bindable(second.mac) });
      await withId(knex, 'log_decisions', ids[7]).update({ seq: first.seq, mac: bindable(first.mac) });
    },
  },
  'a copy inserted at the same position': copied({}, /a different record already has this position/),
  'a copy inserted before the first position': copied({ seq: 0 }, /no number/),
  'a copy inserted below all positions': copied({ seq: -7 }, /no number/),
  'a copy inserted beyond all exact numbers': copied({ seq: '9007199254740993' }, /no number/),
  'a copy inserted at the end': copied({ seq: 22 }, /not what was written/, 'altered'),
  'a copy inserted far beyond the end': copied({ seq: 2 ** 30 }, /^records 22 to 1073741823 are missing/, 'missing'),
  'copies inserted at one position, more than are read at once': {
    problem: 'added',
    says: /a different record already has this position/,
    async do(knex, { ids }) {
      const [row] = await withId(knex, 'log_decisions', ids[4]).select('*');
      const values = Object.fromEntries(Object.entries(row).map(([name, value]) => [name, bindable(value)]));
      const copies = Array.from({ length: 2_100 }, () => ({ ...values, id: Buffer.from(hexOf(decision().id) ?? '', 'hex') }));
      for (let at = 0; at < copies.length; at += 300) await knex('log_decisions').insert(copies.slice(at, at + 300));
    },
  },
  'a row of version 1 moved into the chain': {
    problem: 'altered',
    says: /not what was written/,
    do: (knex, { chain }) => knex('audit_decisions').update({ chain_id: chain, chain_seq: 6 }),
  },
  'a row of version 1 moved to the end of the chain': {
    problem: 'altered',
    says: /not what was written/,
    do: (knex, { chain }) => knex('audit_decisions').update({ chain_id: chain, chain_seq: 22 }),
  },
  'a list moved to the table of version 1, where no reader looks for it': {
    problem: 'altered',
    says: /not what was written/,
    async do(knex, { ids, chain }) {
      const stamp = await legacyStamp(knex, 'log_lists', ids[LIST], chain);
      const [{ shown, hidden }] = await withId(knex, 'log_lists', ids[LIST]).select('shown', 'hidden');
      const [{ set_hash, names }] = await knex('log_names').select('set_hash', 'names');
      await knex('audit_sets').insert({ hash: set_hash, names });
      const row = { decision_id: ids[LIST], resource_type: 'tool', shown, hidden, set_hash };
      await knex('audit_shown').insert({ ...row, ...stamp });
      await withId(knex, 'log_lists', ids[LIST]).delete();
    },
  },
  'an outcome moved to the table of version 1, where no reader looks for it': {
    problem: 'altered',
    says: /not what was written/,
    async do(knex, { ids, chain }) {
      const stamp = await legacyStamp(knex, 'log_outcomes', ids[4], chain);
      const [{ created_at }] = await withId(knex, 'log_outcomes', ids[4]).select('created_at');
      await knex('audit_outcomes').insert({ decision_id: ids[4], outcome: 'ok', duration_ms: 5, created_at, ...stamp });
      await withId(knex, 'log_outcomes', ids[4]).delete();
    },
  },
  'an outcome that no MAC can cover added without a MAC': {
    problem: 'altered',
    says: /not what was written/,
    async do(knex, { chain }) {
      const row = { decision_id: decision().id, outcome: 'strange', duration_ms: 5, created_at: 1 };
      await knex('audit_outcomes').insert({ ...row, chain_id: chain, chain_seq: 22, mac: null });
    },
  },
  'a record moved into a chain of version 1': {
    problem: 'added',
    says: /a different record already has this position/,
    async do(knex, { ids }) {
      const { chain_id } = await knex('audit_decisions').first('chain_id');
      await withId(knex, 'log_decisions', ids[0]).update({ chain: Buffer.from(tailOf(chain_id), 'hex'), seq: 1 });
    },
  },
  'a copy of a chain that never existed inserted': copied({ chain: Buffer.alloc(4, 9) }, /a chain that never existed/),
  'a copy of another chain below all positions inserted': copied(
    { chain: Buffer.alloc(4, 9), seq: -7 },
    /a chain that never existed/,
  ),
  'a whole start removed': {
    problem: 'missing',
    says: /^the whole chain is missing/,
    async do(knex, at) {
      for (const table of ['log_decisions', 'log_lists', 'log_outcomes']) await inChain(knex, table, at).delete();
      await knex('audit_chains').where('chain_id', at.chain).delete();
    },
  },
  'the header of a chain removed': {
    problem: 'missing',
    says: /the header of the chain is missing/,
    do: (knex, { chain }) => knex('audit_chains').where('chain_id', chain).delete(),
  },
  'the header of a chain altered': {
    problem: 'altered',
    says: /the header of the chain/,
    do: (knex, { chain }) => knex('audit_chains').where('chain_id', chain).update({ version: 1 }),
  },
  'the tail cut off before a later start': {
    problem: 'cut_off',
    says: /^records 20 to 21 are missing at the end; chain /,
    do: (knex, at) => inChain(knex, 'log_outcomes', at).andWhere('seq', '>=', 20).delete(),
  },
  'a removal by age made up': {
    problem: 'altered',
    says: /removal by age/,
    async do(knex, at) {
      await inChain(knex, 'log_decisions', at).andWhere('seq', '<=', 2).delete();
      const row = { chain_id: at.chain, seq: 2, mac: 'x', removed_at: 1, key_id: KEY.id, signature: 'x' };
      await knex('audit_retention').insert(row);
    },
  },
};

async function threeStarts(database: Database) {
  const old = legacyWriter(database);
  await old.decision(decision());
  const [first, second] = [await start(database), await start(database)];
  return { first, second };
}

eachEngine(test.serial, 'verification names each kind of tampering with version 2', async (t, at, engine) => {
  const database = await openTestDatabase(t, at);
  const { first } = await threeStarts(database);
  const records = { decision: 21, shown: 2, outcome: 20 };
  t.like(await verified(database), { intact: true, chains: 3, records, problems: [] });
  class Undo extends Error {}
  for (const [name, { problem, says, do: tamper }] of Object.entries(tamperings)) {
    // The column of a server holds no such number.
    if (engine !== 'sqlite' && name.includes('beyond all exact numbers')) continue;
    await t.throwsAsync(
      database.knex.transaction(async (trx) => {
        await tamper(trx, first);
        const { intact, problems } = await verified({ ...database, knex: trx });
        t.false(intact, name);
        const [bad] = problems;
        t.is(bad?.problem, problem, `${name}: ${bad?.detail}`);
        t.regex(bad?.detail ?? '', says, name);
        throw new Undo();
      }),
      { instanceOf: Undo },
      name,
    );
  }
  t.true((await verified(database)).intact);
});

test.serial('a record without a MAC is not accepted in an export, whatever it contains', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  const { head } = await start(database);
  const forged: readonly object[] = [
    // No MAC can cover a text in place of a number, and an id in capital letters.
    { user_id: 'forged', created_at: '1' },
    { user_id: 'forged', id: decision().id.toUpperCase() },
  ];
  for (const members of forged) {
    const lines: AuditLine[] = [];
    for await (const line of auditLines(database.knex, 1, null)) lines.push(readLine(lineText(line)) as AuditLine);
    const report = (more: readonly AuditLine[]) => {
      const verification = createVerification([KEY], LATER);
      const records = lines.slice(0, -1).concat(more);
      for (const line of records) verification.take(line);
      verification.take({ kind: 'end', records: verification.taken() });
      return verification.finish().report;
    };
    t.true(report([]).intact);
    const [first] = lines.filter(({ kind }) => kind === 'decision') as [ChainedRecord];
    const row = { ...first.row, ...members, chain_seq: head.seq + 1, mac: null as unknown as string };
    t.like(report([{ kind: 'decision', row }]).problems, [{ problem: 'altered', seq: head.seq + 1 }]);
  }
});

test.serial('no member of a line of an export takes a text that the gateway does not write', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  await start(database);
  const lines: AuditLine[] = [];
  for await (const line of auditLines(database.knex, 1, null)) lines.push(readLine(lineText(line)) as AuditLine);
  const report = (change: (row: ChainedRecord['row']) => object | null) => {
    const verification = createVerification([KEY], LATER);
    for (const line of lines) {
      const changed = line.kind === 'decision' ? change(line.row) : null;
      verification.take(
        changed === null ? line : ({ ...line, row: { ...(line as ChainedRecord).row, ...changed } } as AuditLine),
      );
    }
    return verification.finish().report;
  };
  t.true(report(() => null).intact);
  for (const named of ['a', 2, null, true]) {
    t.like(report((row) => (row['named'] === 0 ? { named } : null)).problems[0], { problem: 'altered' }, String(named));
  }
});

test.serial('lines of an export share a short fact, and no long one stays in memory', (t) => {
  const namesOf = (length: number) =>
    withFacts({ kind: 'shown', row: { set_hash: 'h', names: 'n'.repeat(length) } as unknown as ChainedRecord['row'] }).facts[0];
  t.is(namesOf(100), namesOf(100));
  t.not(namesOf(100_000), namesOf(100_000));
});

test.serial('a name with bytes that read like a different name passes for neither in SQLite', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  await writer.decision(decision({ resource_name: 'x\ufffdy' }));
  await writer.close();
  t.true((await verified(database)).intact);
  // The byte ff reads as U+FFFD, but a search for the name does not find it.
  await database.knex('log_decisions').update({ name: database.knex.raw("cast(x'78ff79' as text)") });
  t.false((await verified(database)).intact);
});

test.serial('nothing that follows a NUL in a text of version 2 is hidden in SQLite, nor bytes that are not UTF-8', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  await threeStarts(database);
  const { knex } = database;
  const texts = [
    ...['issuer', 'user_id', 'user_role', 'person_hash', 'salt', 'user_email', 'user_groups'].map((name) => [
      'log_principals',
      name,
    ]),
    ...['target_name', 'method', 'resource_type', 'resource_name'].map((name) => ['log_objects', name]),
    ...['effect', 'reason', 'policy_name', 'data_hash', 'engine_hash'].map((name) => ['log_verdicts', name]),
    ...['set_hash', 'names'].map((name) => ['log_names', name]),
    ...['salt', 'arguments'].map((name) => ['log_arguments', name]),
    ['log_decisions', 'name'],
  ] as [table: string, column: string][];
  for (const [table, column] of texts) {
    const [row] = await knex(table).whereNotNull(column).limit(1).select('id', `${column} as written`);
    const place = () => knex(table).where('id', Buffer.from(row.id));
    for (const form of ["? || char(0) || 'x'", "? || cast(x'ff' as text)"]) {
      await place().update({ [column]: knex.raw(form, [row.written]) });
      t.false((await verified(database)).intact, `${table}.${column}`);
    }
    await place().update({ [column]: row.written });
  }
  t.true((await verified(database)).intact);
});

test.serial('no value of a different type passes for what was written in SQLite', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  await threeStarts(database);
  // The value as it would be read if only its bytes or digits counted, and values next to it.
  const forms: Readonly<Record<string, readonly string[]>> = {
    blob: ['cast(? as text)', "cast(? || x'00' as blob)", 'substr(?, 2)', 'hex(?)', '1'],
    integer: ['cast(? as blob)', "? || 'x'", '? + 0.5', '? + 9007199254740992', '9e999'],
    text: ['cast(? as blob)'],
    null: ['9e999', '-9e999', "''", '0'],
  };
  let tried = 0;
  for (const table of [...Object.values(LOG_TABLES), ...Object.values(FACT_TABLES), 'log_arguments']) {
    const columns: { name: string }[] = await database.knex.raw(`pragma table_info(${table})`);
    for (const { name } of columns) {
      const key = table === 'log_outcomes' ? 'mac' : 'id';
      const types: { type: string; key: Buffer }[] = await database
        .knex(table)
        .select(database.knex.raw('typeof(??) as type', [name]), database.knex.raw('min(??) as ??', [key, 'key']))
        .groupBy('type');
      for (const { form, id } of types.flatMap((row) => (forms[row.type] ?? []).map((each) => ({ form: each, id: row.key })))) {
        class Undo extends Error {}
        const change = database.knex.transaction(async (trx) => {
          const value = trx.raw(form.replaceAll('?', name));
          await trx(table)
            .where(key, Buffer.from(id))
            .update({ [name]: value });
          t.false((await verified({ ...database, knex: trx })).intact, `${table}.${name} = ${form}`);
          throw new Undo();
        });
        await t.throwsAsync(change, { instanceOf: Undo }, `${table}.${name} = ${form}`);
        tried++;
      }
    }
  }
  t.true(tried > 100, `${tried} values`);
  t.true((await verified(database)).intact);
});

test('a value of an export that is no text does not pass for the text that was written', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { knex, ...database } = await openTestDatabase(t, at);
  const writer = quietWriter({ knex, ...database });
  const texts = ['null', 'true', '12'];
  for (const text of texts) await writer.decision(decision({ resource_name: text, user_email: text, user_groups: ['g'] }));
  await writer.close();
  const lines: string[] = [];
  for await (const line of auditLines(knex, Date.now(), null)) lines.push(lineText(line));
  const intact = (change: (line: string) => string): boolean => {
    const verification = createVerification([KEY], LATER);
    for (const line of lines.map(change)) {
      const read = readLine(line);
      if (read === null) return false;
      verification.take(read);
    }
    return verification.finish().report.intact;
  };
  t.true(intact((line) => line));
  for (const text of texts)
    for (const member of ['resource_name', 'user_email']) {
      const written = `"${member}":"${text}"`;
      t.true(lines.some((line) => line.includes(written)));
      t.false(
        intact((line) => line.replace(written, `"${member}":${text}`)),
        `${member} ${text}`,
      );
    }
});
