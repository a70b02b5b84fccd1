/** Checks the clock before old rows are deleted for good: by a clock that is ahead, all rows are old. */
import type { Database } from './database.ts';

/** The clocks of a cluster differ by seconds, and what is deleted by age is a month old. */
const MAX_DIFFERENCE_MS = 60 * 60_000;

/**
 * Returns a function that throws if the clock should not be trusted now: it was set since the last check, which sees the suspension of a
 * machine, too, or it differs from the clock of the database server. After a jump, the next check trusts the clock, because some jumps are
 * right. `now`: milliseconds since the epoch; `elapsed`: milliseconds of a monotonic clock.
 */
export function createClockCheck({ knex }: Pick<Database, 'knex'>, now: () => number, elapsed = () => performance.now()) {
  let before = now() - elapsed();
  return async (): Promise<void> => {
    const after = now() - elapsed();
    const jump = after - before;
    before = after;
    if (Math.abs(jump) > MAX_DIFFERENCE_MS) throw new Error(`the clock has jumped by ${inHours(jump)}`);
    if (knex.client.dialect !== 'mysql') return;
    const [[row]] = (await knex.raw('select unix_timestamp(now(3)) * 1000 as ms')) as [[{ ms: number | string }]];
    const difference = now() - Number(row.ms);
    if (Math.abs(difference) > MAX_DIFFERENCE_MS)
      throw new Error(`the clock differs from that of the database server by ${inHours(difference)}`);
  };
}

const inHours = (ms: number): string => `${(ms / 3_600_000).toFixed(1)} hours`;
