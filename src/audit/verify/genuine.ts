/** Checks one decision of the log: whether it is what the gateway wrote. Only `verify.ts` finds out whether the log is whole. */
import type { Connection } from '../../db/database.ts';
import { type ChainKey, chainMac, retentionVersion } from '../chain/chain.ts';
import { contentFault } from '../chain/contents.ts';
import { fitsMac } from '../chain/record-mac.ts';
import { chainStore } from '../chain/tables/chain-store.ts';
import type { AuditEntry } from '../search/entries.ts';

/**
 * `genuine`: the record continues its chain and fits its MAC. `unproven`: the key of its chain is not known, or it is older than the first
 * chain and has no MAC.
 */
export type Genuineness = 'genuine' | 'altered' | 'unproven';

/** `keys`: the chain keys under all master keys that are known. */
export async function genuinenessOf(
  db: Connection,
  keys: readonly ChainKey[],
  { id, chain_id, chain_seq }: Pick<AuditEntry, 'id' | 'chain_id' | 'chain_seq'>,
): Promise<Genuineness> {
  if (chain_id === null || chain_seq === null) return 'unproven';
  const store = chainStore(db);
  const chain = (await store.chains()).find((one) => one.chain_id === chain_id);
  if (chain === undefined) return 'altered';
  const key = keys.find((one) => one.id === chain.key_id);
  if (key === undefined) return 'unproven';
  if (chainMac(key, chain) !== chain.mac) return 'altered';
  const { records } = await store.part(chain_id, Math.max(0, chain_seq - 2), chain_seq, 2);
  // Read it after the records: it then covers one that was removed meanwhile.
  const removal = await store.retention(chain_id);
  const macs = records.filter(({ row }) => row.chain_seq === chain_seq - 1).map(({ row }) => row.mac);
  if (chain_seq === 1) macs.push(chain.mac);
  if (removal?.seq === chain_seq - 1 && keys.some((one) => one.id === removal.key_id && retentionVersion(one, removal) !== null))
    macs.push(removal.mac);
  const [record, ...more] = await store.whole(records.filter(({ row }) => row.chain_seq === chain_seq));
  if (record === undefined || more.length > 0 || record.kind !== 'decision' || record.row['id'] !== id) return 'altered';
  const fits = macs.some((mac) => fitsMac(key, chain.version, mac, record)) && contentFault(record) === null;
  return fits ? 'genuine' : 'altered';
}
