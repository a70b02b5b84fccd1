import type { Knex } from 'knex';
import { tableMaker } from '../tables.ts';

/** The counts of decisions by hour, and how far each chain of the audit log is counted. */
export async function up(db: Knex, collation: string | null): Promise<void> {
  const make = tableMaker(db, collation);
  await make('log_counts', (t) => {
    // The hours since the epoch. An empty id: no policy decided, or the target did not exist.
    t.integer('hour').notNullable();
    t.string('effect', 8).notNullable();
    t.string('policy_id', 36).notNullable();
    t.string('target_id', 36).notNullable();
    t.bigInteger('decisions').notNullable();
    t.primary(['hour', 'effect', 'policy_id', 'target_id']);
  });
  await make('log_counted', (t) => {
    t.string('chain_id', 36).primary();
    t.bigInteger('seq').notNullable();
  });
}
