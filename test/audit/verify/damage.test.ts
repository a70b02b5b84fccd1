/** Views and triggers in the place of tables of the log, which show pages other rows than the verification. */
import test from 'ava';
import { damageOf } from '../../../src/audit/verify/index-check.ts';
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
  await knex.raw('create view log_lists as select * from hidden_lists where shown > 1');
  const view = engine === 'sqlite' ? 'no plain table' : 'no table of InnoDB';
  t.deepEqual(await found(), [`altered: log_lists is ${view}${soPages}`]);

  const when = 'create trigger forget after insert on log_outcomes';
  await knex.raw(
    engine === 'sqlite'
      ? `${when} begin delete from log_outcomes where since = new.since; end`
      : `${when} for each row set @forgotten = new.since`,
  );
  t.deepEqual((await found()).sort(), [
    `altered: forget is a trigger on log_outcomes${soPages}`,
    `altered: log_lists is ${view}${soPages}`,
  ]);
});
