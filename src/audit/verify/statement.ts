/** What a verification found, signed: only somebody with the master key can say it to the gateway. */
import type { ChainKey } from '../chain/chain.ts';
import type { Report } from './report.ts';

export interface Statement {
  /** When the verification began, in milliseconds since the epoch. */
  readonly verified_at: number;
  readonly intact: boolean;
  /** The newest decision whose record was verified; null: there was none. */
  readonly decision_id: string | null;
  /** The time of the checkpoint after which records were checked; null: all records were checked. */
  readonly since: number | null;
  readonly records: number;
  readonly problems: number;
}

export interface SignedStatement extends Statement {
  readonly key_id: string;
  readonly mac: string;
}

function macOf(key: ChainKey, { verified_at, intact, decision_id, since, records, problems }: Statement): string {
  return key.mac(JSON.stringify([1, 'verification', verified_at, intact, decision_id, since, records, problems]));
}

export const isSigned = (key: ChainKey, { key_id, mac, ...statement }: SignedStatement): boolean =>
  key.id === key_id && macOf(key, statement) === mac;

export function signed(key: ChainKey, began: number, { intact, newest, since, records, problems }: Report): SignedStatement {
  const statement: Statement = {
    verified_at: began,
    intact,
    decision_id: newest,
    since,
    records: records.decision + records.shown + records.outcome,
    problems: problems.length,
  };
  return { ...statement, key_id: key.id, mac: macOf(key, statement) };
}

const iso = (ms: number): string => new Date(ms).toISOString();

/** As REST shows and takes it. */
export const statementJson = <S extends Statement>({ verified_at, since, ...rest }: S) => ({
  ...rest,
  verified_at: iso(verified_at),
  since: since === null ? null : iso(since),
});
