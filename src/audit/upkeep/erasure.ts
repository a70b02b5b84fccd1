/**
 * Erases personal data from a user's rows: e-mail, groups, arguments, and the salt of their hash. The chain still proves that
 * the rows existed.
 */
import { uuidv7 } from '../../base/ids.ts';
import type { Change } from '../../db/changes.ts';
import type { Database, Transaction } from '../../db/database.ts';
import { type ChainKey, type ErasureRow, erasureSignature, firstIdOf } from '../chain/chain.ts';
import { erasureStore } from '../chain/tables/erasure-store.ts';
import { MAX_OBJECT_ID } from '../records/fact-book.ts';

export type Erasure = ReturnType<typeof createErasure>;

const BATCH = 500;
/** A row that was decided before the erasure is written within this time, or never. */
const LATEST_MS = 60_000;

export function createErasure({
  database,
  key,
  forget = () => {},
  now,
}: {
  readonly database: Database;
  readonly key: ChainKey;
  /** Makes the writer of this process forget the facts that are about to be erased. */
  readonly forget?: (users: ReadonlySet<string>) => void;
  readonly now: () => number;
}) {
  /** Erases in small steps and returns the number of rows. It may run again without harm. */
  async function finish(row: ErasureRow): Promise<number> {
    const store = erasureStore(database.knex);
    forget(new Set([row.user_id.slice(0, MAX_OBJECT_ID)]));
    let erased = 0;
    for (let from: string | null = ''; from !== null; ) {
      const step: { erased: number; next: string | null } = await store.eraseLegacy(
        row.user_id,
        from,
        firstIdOf(row.erased_at),
        BATCH,
      );
      erased += step.erased;
      from = step.next;
    }
    const before = firstIdOf(row.erased_at);
    for (let from: string | null = firstIdOf(0); from !== null; ) {
      const step: { erased: number; next: string | null } = await store.eraseArguments(row.user_id, from, before, BATCH);
      erased += step.erased;
      from = step.next;
    }
    erased += await store.erasePrincipals(row);
    if (now() - row.erased_at > LATEST_MS) await store.finish(row.id, now());
    return erased;
  }

  return {
    /** Records the request in the transaction of the change. The erasure does not include rows that are written later. */
    async begin(trx: Transaction, userId: string): Promise<{ result: ErasureRow; changes: readonly Change[] }> {
      // Ids have millisecond precision: + 1 includes every row of the current millisecond.
      const content = { id: uuidv7(), user_id: userId, erased_at: now() + 1 };
      const row = { ...content, key_id: key.id, signature: erasureSignature(key, content) };
      await erasureStore(trx).insert(row);
      const object_id = userId.slice(0, MAX_OBJECT_ID);
      const change: Change = { action: 'user.erase', object_id, before: null, after: { user_id: userId } };
      return { result: row, changes: [change] };
    },
    finish,
    /** Continues unfinished erasures, and looks again for rows that were written late. */
    async resume(): Promise<void> {
      for (const row of await erasureStore(database.knex).unfinished()) await finish(row);
    },
  };
}
