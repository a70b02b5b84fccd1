/** The newest verifications that were reported to the gateway: one of the whole log, and one from a checkpoint on. */
import type { Connection } from '../../db/database.ts';
import type { ChainKey } from '../chain/chain.ts';
import { isSigned, type SignedStatement, type Statement } from './statement.ts';

const FULL_ROW = 1;
const SINCE_ROW = 2;

export interface Verifications {
  /** The newest one. One that found a problem stays until a newer one of the whole log finds none. */
  readonly verification: Statement | null;
  /** The newest one of the whole log. */
  readonly full: Statement | null;
}

/** `keys`: of the current and the previous master keys. */
export function verificationStore(db: Connection, keys: readonly ChainKey[]) {
  const isOurs = (statement: SignedStatement): boolean => keys.some((key) => isSigned(key, statement));

  /** A row that was not signed with the master key does not count. An older version stored both kinds in the first row. */
  async function read() {
    const rows: { statement: string }[] = await db('audit_verification').whereIn('id', [FULL_ROW, SINCE_ROW]).select('statement');
    const stored = rows.flatMap((row): Statement[] => {
      const statement = parsed(row.statement);
      if (statement === null || !isOurs(statement)) return [];
      const { key_id: _, mac: __, ...rest } = statement;
      return [rest];
    });
    const full = newestOf(stored.filter(({ since }) => since === null));
    const since = newestOf(stored.filter((statement) => statement.since !== null));
    const cleared = full?.intact === true ? full.verified_at : 0;
    const open = newestOf(stored.filter(({ intact, verified_at }) => !intact && verified_at >= cleared));
    return { full, since, open, newest: newestOf(stored) };
  }

  return {
    async newest(): Promise<Verifications> {
      const { full, open, newest } = await read();
      return { verification: open ?? newest, full };
    },
    /**
     * Returns false if it was not signed with the master key. A statement changes nothing if it is older than the stored one of its kind, or
     * if it checked only newer records and would hide a problem that a check of the whole log has not cleared.
     */
    async report(statement: SignedStatement): Promise<boolean> {
      if (!isOurs(statement)) return false;
      const { full, since, open } = await read();
      const isFull = statement.since === null;
      const stored = isFull ? full : since;
      if (stored !== null && stored.verified_at >= statement.verified_at) return true;
      if (!isFull && statement.intact && open !== null) return true;
      await db('audit_verification')
        .insert({ id: isFull ? FULL_ROW : SINCE_ROW, statement: JSON.stringify(statement) })
        .onConflict('id')
        .merge();
      return true;
    },
  };
}

const newestOf = (statements: readonly Statement[]): Statement | null =>
  statements.reduce<Statement | null>(
    (newest, one) => (newest === null || one.verified_at > newest.verified_at ? one : newest),
    null,
  );

function parsed(text: string): SignedStatement | null {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
