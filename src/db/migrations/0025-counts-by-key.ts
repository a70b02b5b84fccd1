import type { Knex } from 'knex';

/**
 * On SQLite, the counts lie in the order of their key, as on MySQL. Before, each sum looked up every count by its row id. SQLite migrates in
 * one transaction.
 */
export async function up(db: Knex, collation: string | null): Promise<void> {
  if (collation !== null) return;
  await db.raw(`create table log_counts_by_key (
    hour integer not null, effect varchar(8) not null, policy_id varchar(36) not null, target_id varchar(36) not null,
    decisions bigint not null, primary key (hour, effect, policy_id, target_id)) without rowid`);
  await db.raw(`insert into log_counts_by_key
    select hour, effect, policy_id, target_id, decisions from log_counts order by hour, effect, policy_id, target_id`);
  await db.raw('drop table log_counts');
  await db.raw('alter table log_counts_by_key rename to log_counts');
}
