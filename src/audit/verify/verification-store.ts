/** The newest verification that was reported to the gateway. */
import type { Connection } from '../../db/database.ts';
import type { ChainKey } from '../chain/chain.ts';
import { isSigned, type SignedStatement, type Statement } from './statement.ts';

const ROW = 1;

/** `keys`: of the current and the previous master keys. */
export function verificationStore(db: Connection, keys: readonly ChainKey[]) {
  const isOurs = (statement: SignedStatement): boolean => keys.some((key) => isSigned(key, statement));

  /** A row that was not signed with the master key does not count. */
  async function newest(): Promise<Statement | null> {
    const row = await db('audit_verification').where('id', ROW).first<{ statement: string } | undefined>('statement');
    const stored = row === undefined ? null : parsed(row.statement);
    if (stored === null || !isOurs(stored)) return null;
    const { key_id: _, mac: __, ...statement } = stored;
    return statement;
  }

  return {
    newest,
    /** Returns false if it was not signed with the master key. A statement that is older than the stored one changes nothing. */
    async report(statement: SignedStatement): Promise<boolean> {
      if (!isOurs(statement)) return false;
      const stored = await newest();
      if (stored !== null && stored.verified_at >= statement.verified_at) return true;
      await db('audit_verification')
        .insert({ id: ROW, statement: JSON.stringify(statement) })
        .onConflict('id')
        .merge();
      return true;
    },
  };
}

function parsed(text: string): SignedStatement | null {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
