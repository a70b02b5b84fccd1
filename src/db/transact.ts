/** Runs transactions and retries them if the server rolled them back for another transaction. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Knex } from 'knex';

/** No retry starts later than this after the first attempt, in milliseconds. */
const TRANSACTION_TIMEOUT_MS = 10_000;
/**
 * The wait before a retry is random, from a range that doubles up to this. Members of a cluster do not see each other's locks.
 */
const MAX_WAIT_MS = 200;

const VICTIM = new Set(['ER_LOCK_DEADLOCK', 'ER_LOCK_WAIT_TIMEOUT', 'ER_CHECKREAD', 'ER_TRANSACTION_ROLLBACK_DURING_COMMIT']);

/**
 * Whether the server rolled the transaction back in favour of another one, possibly of a different cluster member. Galera reports
 * a deadlock. Group Replication reports a rollback during commit, or a commit that met error 149 (deadlock).
 */
function isVictim(error: unknown): boolean {
  const { code, message } = error as { code?: string; message?: string };
  return VICTIM.has(code ?? '') || (code === 'ER_ERROR_DURING_COMMIT' && /\berror 149\b/.test(message ?? ''));
}

/** Runs `work` in a transaction. Repeats it from the start if the server rolled it back in favour of another transaction. */
export async function transact<T>({ knex }: { readonly knex: Knex }, work: (trx: Knex.Transaction) => Promise<T>): Promise<T> {
  const deadline = performance.now() + TRANSACTION_TIMEOUT_MS;
  for (let tried = 1; ; tried++) {
    try {
      return await knex.transaction(work);
    } catch (error) {
      if (performance.now() > deadline || !isVictim(error)) throw error;
    }
    await sleep(Math.random() * Math.min(MAX_WAIT_MS, 2 ** tried));
  }
}
