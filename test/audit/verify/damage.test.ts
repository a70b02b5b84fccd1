/** Changes of tables of the log by which pages show other records than the verification. */
import test from 'ava';
import { damageOf } from '../../../src/audit/verify/damage.ts';
import { openTestDatabase } from '../../support/database.ts';
import { eachEngine } from '../../support/databases/each-engine.ts';
import { decision, quietWriter } from '../records.ts';

eachEngine(test.serial, 'a view in the place of a table of the log, or a trigger on one, is found', async (t, at, engine) => {
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  const writer = quietWriter(database);
  await writer.decision(decision());
  await writer.close();
  const found = async () => (await damageOf(knex)).map(({ problem, detail }) => `${problem}: ${detail}`);
  const soPages = ', so pages of the log may show different records than those that were checked';

  await knex.raw('create view decisions_for_reports as select * from log_decisions');
  t.deepEqual(await found(), [], 'views with other names mean nothing');

  await knex.raw('alter table log_lists rename to hidden_lists');
  await knex.raw(`create view ${engine === 'sqlite' ? 'Log_lists' : 'log_lists'} as select * from hidden_lists where shown > 1`);
  const lists = engine === 'sqlite' ? 'Log_lists' : 'log_lists';
  const view = engine === 'sqlite' ? 'no plain table' : 'no table of InnoDB';
  t.deepEqual(await found(), [`altered: ${lists} is ${view}${soPages}`]);

  const when = `create trigger forget after insert on ${engine === 'sqlite' ? 'LOG_OUTCOMES' : 'log_outcomes'}`;
  await knex.raw(
    engine === 'sqlite'
      ? `${when} begin delete from log_outcomes where since = new.since; end`
      : `${when} for each row set @forgotten = new.since`,
  );
  t.deepEqual(
    (await found()).sort(),
    [
      `altered: forget is a trigger on ${engine === 'sqlite' ? 'LOG_OUTCOMES' : 'log_outcomes'}${soPages}`,
      `altered: ${lists} is ${view}${soPages}`,
    ].sort(),
  );
});

eachEngine(test.serial, 'a generated column, a longer type or a different collation is found', async (t, at, engine) => {
  const database = await openTestDatabase(t, at);
  const { knex } = database;
  const found = async () => (await damageOf(knex)).map(({ detail }) => detail.replace(/, so pages.*/, '')).sort();
  t.deepEqual(await found(), []);
  if (engine === 'sqlite') {
    await knex.raw('alter table log_decisions drop column created_at');
    await knex.raw('alter table log_decisions add column created_at integer as (iif(seq = 1, 1600000000000, null)) virtual');
    await knex.raw('alter table log_names add column more text');
    t.deepEqual(await found(), [
      'the column created_at of log_decisions is generated',
      'the column more of log_names is not one of the gateway',
    ]);
    return;
  }
  await knex.raw('alter table log_decisions drop column created_at');
  await knex.raw(
    'alter table log_decisions add column CREATED_AT bigint generated always as (if(seq = 1, 1600000000000, null)) virtual',
  );
  await knex.raw('alter table log_lists change mac MAC varbinary(17) not null');
  await knex.raw('alter table log_verdicts drop primary key, add primary key (id, effect)');
  await knex.raw('alter table log_names drop column set_hash, add column more int');
  await knex.raw('alter table log_objects modify method varchar(256) character set utf8mb4 collate utf8mb4_general_ci');
  const [generated, ...others] = await found();
  t.regex(generated ?? '', /^the column CREATED_AT of log_decisions is generated \(VIRTUAL GENERATED/);
  t.deepEqual(others, [
    'the column MAC of log_lists has the type varbinary(17)',
    'the column method of log_objects has the collation utf8mb4_general_ci',
    'the column more of log_names is not one of the gateway',
    'the column set_hash of log_names is missing',
    'the primary key of log_verdicts is (id,effect)',
  ]);
});
