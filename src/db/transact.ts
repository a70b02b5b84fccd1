/** Transactions, each run to its end. */
import type { Database, Transaction } from './database.ts';

const ATTEMPTS = 5;
/** The last is how Group Replication says that another member's transaction was first; Galera says deadlock. */
const RETRIED = new Set(['ER_LOCK_DEADLOCK', 'ER_LOCK_WAIT_TIMEOUT', 'ER_CHECKREAD', 'ER_TRANSACTION_ROLLBACK_DURING_COMMIT']);

/** Runs `work` in a transaction, again from the start where the server chose it as the victim of a deadlock. */
export async function transact<T>(database: Database, work: (trx: Transaction) => Promise<T>): Promise<T> {
  for (let tried = 1; ; tried++) {
    try {
      return await database.knex.transaction(work);
    } catch (error) {
      if (tried === ATTEMPTS || !RETRIED.has((error as { code?: string }).code ?? '')) throw error;
    }
  }
}
