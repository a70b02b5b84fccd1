/** Rows that are written without the query builder. */
import test from 'ava';
import { deleteRows, insertRows } from '../../src/db/rows.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';

const ODD = [
  "'",
  "''",
  '\\',
  "\\'",
  '"',
  '`',
  '?',
  '??',
  ':name',
  '--',
  '/*',
  '\n\r\t',
  '\u{1f600}',
  'é',
  '%_',
  ' trailing ',
  '',
];

eachEngine(test.serial, 'what is written is read back, whatever its texts contain', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  await knex.schema.createTable('odd', (table) => {
    table.string('id', 40).primary();
    table.text('text');
    table.boolean('is_set');
    table.bigInteger('number');
  });
  const rowsOf = (salt: string) =>
    ODD.map((text, i) => ({
      id: `${i}${text.replaceAll(/[^'?\\`"]/g, '')}`,
      text: text + salt,
      is_set: i % 2 === 0,
      number: i - 5,
    }));
  const read = async () =>
    (await knex('odd').select('id', 'text', 'is_set', 'number')).map((row) => ({
      ...row,
      is_set: Boolean(row.is_set),
      number: Number(row.number),
    }));
  const inOrder = <T extends { id: string }>(rows: T[]): T[] => rows.sort((a, b) => (a.id < b.id ? -1 : 1));
  await insertRows(knex, 'odd', rowsOf(''));
  t.deepEqual(inOrder(await read()), inOrder(rowsOf('')));
  await t.throwsAsync(insertRows(knex, 'odd', rowsOf('')));
  await insertRows(knex, 'odd', rowsOf(' changed'), 'id');
  t.deepEqual(inOrder(await read()), inOrder(rowsOf(' changed')));
  await deleteRows(
    knex,
    'odd',
    'id',
    rowsOf('')
      .slice(1)
      .map(({ id }) => id),
  );
  t.deepEqual(await read(), rowsOf(' changed').slice(0, 1));
  await insertRows(knex, 'odd', [{ id: 'none', text: null, is_set: undefined, number: null }]);
  t.like(await knex('odd').where('id', 'none').first(), { text: null, is_set: null, number: null });
  await insertRows(knex, 'odd', []);
  await deleteRows(knex, 'odd', 'id', []);
});

eachEngine(test.serial, 'many rows are written in order, and a failure in the middle rejects', async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  await knex.schema.createTable('many', (table) => {
    table.integer('id').primary();
    table.text('text');
  });
  const rows = Array.from({ length: 3_000 }, (_, id) => ({ id, text: 'x'.repeat(200) }));
  await insertRows(knex, 'many', rows);
  t.is(Number((await knex('many').count({ n: '*' }))[0]?.['n']), 3_000);
  await knex('many').whereNot('id', 2_900).delete();
  await t.throwsAsync(knex.transaction((trx) => insertRows(trx, 'many', rows)));
  t.is(Number((await knex('many').count({ n: '*' }))[0]?.['n']), 1);
});
