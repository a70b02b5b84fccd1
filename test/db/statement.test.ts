import test from 'ava';
import fc from 'fast-check';
import { isDuplicate, literalOf, statement } from '../../src/db/statement.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine, eachServer } from '../support/databases/each-engine.ts';
import { withAdmin } from '../support/databases/own.ts';

const HOSTILE = [
  "'",
  "''",
  "\\'",
  '\\',
  "\\\\'",
  '"`',
  "'; drop table counter; -- ",
  "' or '1'='1",
  '?',
  '??',
  ':name',
  '-- x\n/* y */ # z',
  '\b\t\n\r\u001a%_\\%\\_',
  '\\0\\n\\x27\\u0027',
  '\u00bf\u0027\u00bf\\\u0027',
  '\u02bc\u2018\uff07',
  'e\u0301\u00e9 \u{1f600}\u{10ffff}\ufeff\u2028',
  ' trailing ',
  '',
];
const text = fc.oneof(
  fc.string({ unit: 'binary' }),
  fc.string({ unit: fc.constantFrom("'", '\\', '"', '%', '?', '-', '*', '/', '\n', 'a', '\u{1f600}') }),
);

eachEngine(test.serial, 'a literal stands for its value, byte for byte', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  await knex.schema.createTable('things', (table) => {
    table.integer('id').primary();
    table.text('value').notNullable();
    table.integer('number');
  });
  const literal = literalOf(knex);
  const same = async (values: readonly string[]): Promise<void> => {
    const rows = values.map((value, id) => ({ id, value, number: id % 2 === 0 ? null : -2147483648 }));
    const tuples = rows.map((row) => `(${literal(row.id)},${literal(row.value)},${literal(row.number)})`);
    await statement(knex, `insert into things (id, value, number) values ${tuples.join()}`);
    t.deepEqual(
      (await knex('things').orderBy('id')).map((row) => ({ ...row })),
      rows,
    );
    await knex('things').delete();
  };
  await same(HOSTILE);
  const values = fc.array(
    text.map((value) => value.replaceAll('\0', '')),
    { minLength: 1 },
  );
  await fc.assert(fc.asyncProperty(values, same), { numRuns: 40 });
});

eachEngine(test.serial, 'no value of a literal can end its statement', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  await knex.schema.createTable('things', (table) => {
    table.text('value');
    table.string('after');
  });
  const literal = literalOf(knex);
  const values = ['a\0b', "\0'", '\ud800', "'\udc00"];
  await statement(knex, `insert into things values ${values.map((value) => `(${literal(value)},'after')`).join()}`);
  t.deepEqual((await knex('things').where('after', 'after')).length, values.length);
});

eachEngine(test.serial, 'errors and transactions of statements are those of knex', async (t, at, engine) => {
  const { knex } = await openTestDatabase(t, at);
  await knex.schema.createTable('things', (table) => {
    table.integer('id').primary();
    table.string('name', 10).notNullable();
  });
  const insert = (id: number, name: string | null) => `insert into things (id, name) values (${id}, ${literalOf(knex)(name)})`;
  await statement(knex, insert(1, 'one'));

  const twice = await t.throwsAsync(statement(knex, insert(1, 'again')));
  t.true(isDuplicate(twice));
  const missing = await t.throwsAsync(statement(knex, insert(2, null)));
  const wanted = await t.throwsAsync(knex('things').insert({ id: 2, name: null }));
  const marks = (error: unknown) => {
    const { code, sqlState } = error as { code?: string; sqlState?: string };
    return { code, sqlState };
  };
  t.deepEqual(marks(missing), marks(wanted));
  t.truthy(marks(missing).code);

  await t.throwsAsync(
    knex.transaction(async (trx) => {
      await statement(trx, insert(3, 'three'));
      t.is((await trx('things')).length, 2);
      throw new Error('no');
    }),
    { message: 'no' },
  );
  t.is((await knex('things')).length, 1);

  const ended = await knex.transaction(async (trx) => ({ trx }));
  await t.throwsAsync(statement(ended.trx, insert(4, 'four')), { message: /ended/ });
  t.is((await knex('things')).length, 1);
  if (engine === 'sqlite') return;
  // More statements at once than the pool has connections.
  await Promise.all(Array.from({ length: 40 }, (_, i) => statement(knex, insert(10 + i, 'many'))));
  t.is((await knex('things')).length, 41);
});

eachServer(test.serial, 'the server ends a connection, and with it the locks, of a replica that has frozen', async (t, at) => {
  const { knex, reader } = await openTestDatabase(t, at);
  for (const pool of [knex, reader]) {
    const [[row]] = (await statement(pool, 'select @@session.wait_timeout as seconds')) as [[object]];
    t.deepEqual({ ...row }, { seconds: 60 });
  }
});

eachServer(test.serial, 'a broken connection is not used again', async (t, at) => {
  const { knex, reader } = await openTestDatabase(t, at);
  const current = async (): Promise<number> => {
    const [[{ id }]] = (await statement(reader, 'select connection_id() as id')) as [[{ id: number }]];
    return id;
  };
  const first = await current();
  t.is(await current(), first);
  await knex.raw(`kill connection ${first}`);
  // It may not have been seen to end yet.
  await current().catch((error: { code?: string }) =>
    t.regex(error.code ?? '', /^(PROTOCOL_CONNECTION_LOST|ECONNRESET|EPIPE|ER_CONNECTION_KILLED)$/),
  );
  t.not(await current(), first);
  const [[{ mode }]] = (await statement(reader, 'select @@sql_mode as mode')) as [[{ mode: string }]];
  t.is(mode, 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION');
});

eachServer(test.serial, 'placeholders are filled only in statements with values', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  const [[row]] = (await knex.raw('select ? as a, ? as c, ?? from (select 1 as d) t', ["it's \\ ?", 7, 'd'])) as [[object]];
  t.deepEqual({ ...row }, { a: "it's \\ ?", c: 7, d: 1 });
  const [[none]] = (await statement(knex, "select '?' as a, '??' as b")) as [[object]];
  t.deepEqual({ ...none }, { a: '?', b: '??' });
});

eachServer(
  test.serial,
  'no default of the server changes the meaning of a literal, leaves rows out, or keeps changes from being committed',
  async (t, at) => {
    const user = `init_${process.pid}_${Date.now()}`;
    const inits = ['set names gbk', 'set names latin1', "set session sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'"];
    const limits = ['set session sql_select_limit = 2', 'set session sql_safe_updates = 1'];
    const commits = ['set session autocommit = 0', "set session completion_type = 'CHAIN'"];
    await withAdmin(at, async (admin) => {
      await admin.query(`create user '${user}'@'%' identified by 'a password of a test'`);
      await admin.query(`grant all on \`${new URL(at.url).pathname.slice(1)}\`.* to '${user}'@'%'`);
      t.teardown(() => withAdmin(at, (again) => again.query(`drop user '${user}'@'%'`)));
      // init_connect applies only to users without administrative rights.
      const url = new URL(at.url);
      url.username = user;
      url.password = encodeURIComponent('a password of a test');
      const values = [...HOSTILE, "\u7f1e' or 1=1", '\u0410\u0411', '\u0412\u0413'];
      for (const init of [...inits, ...limits, ...commits]) {
        await admin.query('set global init_connect = ?', [init]);
        try {
          const { knex } = await openTestDatabase(t, { ...at, url: url.href });
          await knex.schema.createTable('things', (table) => {
            table.integer('id').primary();
            table.text('value').notNullable();
          });
          const literal = literalOf(knex);
          await statement(knex, `insert into things values ${values.map((value, id) => `(${id},${literal(value)})`).join()}`);
          t.deepEqual(await knex('things').orderBy('id').pluck('value'), values, init);
          await knex('things').update({ value: '' });
          const { knex: other } = await openTestDatabase(t, { ...at, url: url.href });
          t.is(
            await other('things')
              .where({ value: '' })
              .pluck('id')
              .then(({ length }) => length),
            values.length,
            init,
          );
          await knex.schema.dropTable('things');
        } finally {
          await admin.query("set global init_connect = ''");
        }
      }
    });
  },
);
