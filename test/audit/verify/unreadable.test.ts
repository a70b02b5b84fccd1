/** Texts in the log that the driver of SQLite cannot read. */
import test from 'ava';
import { unreadableIn } from '../../../src/audit/verify/unreadable.ts';
import { portcullis } from '../../cli/cli.ts';
import { openTestDatabase } from '../../support/database.ts';
import { createSqlite } from '../../support/databases/sqlite.ts';
import { decision, quietWriter } from '../records.ts';

const READ_AS_TEXT = ['audit_chains', 'audit_decisions', 'audit_erasures', 'audit_outcomes', 'audit_retention', 'audit_sets'];
const OTHERS = ['audit_shown', 'audit_verification', 'log_counted', 'log_counts', 'log_segments', 'log_terms'];

test.serial('a text that is not UTF-8 is found in each column, without reading it', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { knex } = await openTestDatabase(t, at);
  t.deepEqual(await unreadableIn(knex), []);
  for (const table of [...READ_AS_TEXT, ...OTHERS]) {
    const columns: { name: string; type: string }[] = await knex.raw('select name, type from pragma_table_info(?)', [table]);
    t.true(columns.length > 1, table);
    const put = (strange: string | null, text: string) =>
      knex.raw(
        `insert into ${table} (${columns.map(({ name }) => name).join()}) values (${columns
          .map(({ name }) => (name === strange ? text : READ_AS_TEXT.includes(table) ? `'${name} é'` : '1'))
          .join()})`,
      );
    await put(null, '');
    t.deepEqual(await unreadableIn(knex), [], table);
    await knex(table).delete();
    for (const { name, type } of columns) {
      // An integer that is the key of its table takes no text.
      if (table === 'audit_verification' && type.toLowerCase() === 'integer') continue;
      await put(name, "cast(x'c3ff' as text)");
      const found = await unreadableIn(knex);
      t.is(found.length, 1, `${table}.${name}`);
      t.regex(found[0]?.detail ?? '', new RegExp(`^the column ${name} of ${table} has a text that is not UTF-8`));
      await knex(table).delete();
    }
  }
});

test.serial('a view in the place of a table is not read', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { knex } = await openTestDatabase(t, at);
  await knex.raw('alter table audit_chains rename to other_chains');
  await knex.raw('create view audit_chains as select * from other_chains');
  t.deepEqual(
    (await unreadableIn(knex)).map(({ detail }) => detail),
    ['audit_chains is not the table that the gateway made, so nothing else was checked'],
  );
});

test.serial('a verification names such a text instead of ending with the driver', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const database = await openTestDatabase(t, at);
  const writer = quietWriter(database);
  await writer.decision(decision());
  await writer.close();
  await database.knex('audit_chains').update({ host: database.knex.raw("cast(x'ff' as text)") });
  await database.close();
  const environment = { DATABASE_URL: at.url, MASTER_KEY: Buffer.alloc(32, 1).toString('base64') };
  const { code, out, err } = await portcullis(environment, 'audit', 'verify');
  t.is(code, 1, err);
  t.regex(out, /NOT intact/);
  t.regex(out, /altered: the column host of audit_chains has a text that is not UTF-8/);
});

test.serial('every row is searched, whatever its rowid', async (t) => {
  const at = await createSqlite();
  t.teardown(at.drop);
  const { knex } = await openTestDatabase(t, at);
  const put = (rowid: string, names: string) =>
    knex.raw(`insert into audit_sets (rowid, hash, names) values (${rowid}, '${rowid}', ${names})`);
  for (const rowid of ['-9223372036854775808', '-9007199254740993', '9007199254740993', '9223372036854775807'])
    await put(rowid, "'é'");
  t.deepEqual(await unreadableIn(knex), []);
  for (const rowid of ['-9223372036854775807', '9223372036854775806']) {
    await put(rowid, "cast(x'ff' as text)");
    t.is((await unreadableIn(knex)).length, 1);
    await knex.raw(`delete from audit_sets where rowid = ${rowid}`);
  }
  await knex.raw('alter table audit_sets add column rowid text');
  t.regex((await unreadableIn(knex))[0]?.detail ?? '', /^audit_sets is not the table/);
});
