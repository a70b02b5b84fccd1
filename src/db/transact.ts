/** Transactions, each run to its end. */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Knex } from 'knex';

/** No attempt begins later than this after the first one. */
const PATIENCE_MS = 10_000;
/** The wait before an attempt is drawn from a range that doubles up to this: members of a cluster do not see each other's locks. */
const MAX_WAIT_MS = 200;

const VICTIM = new Set(['ER_LOCK_DEADLOCK', 'ER_LOCK_WAIT_TIMEOUT', 'ER_CHECKREAD', 'ER_TRANSACTION_ROLLBACK_DURING_COMMIT']);

/**
 * Whether the server rolled a transaction back in favour of another one. In a cluster that one may be another member's:
 * Galera says deadlock, Group Replication that it rolled back during commit, or that the commit met error 149, a deadlock.
 */
function isVictim(error: unknown): boolean {
  const { code, message } = error as { code?: string; message?: string };
  return VICTIM.has(code ?? '') || (code === 'ER_ERROR_DURING_COMMIT' && /\berror 149\b/.test(message ?? ''));
}

/** Runs `work` in a transaction, again from the start where the server rolled it back in favour of another one. */
export async function transact<T>({ knex }: { readonly knex: Knex }, work: (trx: Knex.Transaction) => Promise<T>): Promise<T> {
  const deadline = performance.now() + PATIENCE_MS;
  for (let tried = 1; ; tried++) {
    try {
      return await knex.transaction(work);
    } catch (error) {
      if (performance.now() > deadline || !isVictim(error)) throw error;
    }
    await sleep(Math.random() * Math.min(MAX_WAIT_MS, 2 ** tried));
  }
}
