/** Checks one decision of the log: whether it is what the gateway wrote. Only `verify.ts` finds out whether the log is whole. */
import type { Connection } from '../../db/database.ts';
import { type ChainKey, chainMac, retentionVersion } from '../chain/chain.ts';
import { contentFault } from '../chain/contents.ts';
import { fitsMac } from '../chain/record-mac.ts';
import { chainStore } from '../chain/tables/chain-store.ts';
import type { AuditEntry } from '../search/entries.ts';

/**
 * Whether the record of the decision continues the chain and fits its MAC. `keys`: the chain keys under all master keys that are known. False
 * for a decision that is older than the first chain: it has no MAC, so nothing can prove it.
 */
export async function isGenuine(
  db: Connection,
  keys: readonly ChainKey[],
  { id, chain_id, chain_seq }: Pick<AuditEntry, 'id' | 'chain_id' | 'chain_seq'>,
): Promise<boolean> {
  if (chain_id === null || chain_seq === null) return false;
  const store = chainStore(db);
  const chain = (await store.chains()).find((one) => one.chain_id === chain_id);
  const key = keys.find((one) => one.id === chain?.key_id);
  if (chain === undefined || key === undefined || chainMac(key, chain) !== chain.mac) return false;
  const { records } = await store.part(chain_id, Math.max(0, chain_seq - 2), chain_seq, 2);
  // Read it after the records: it then covers one that was removed meanwhile.
  const removal = await store.retention(chain_id);
  const macs = records.filter(({ row }) => row.chain_seq === chain_seq - 1).map(({ row }) => row.mac);
  if (chain_seq === 1) macs.push(chain.mac);
  if (removal?.seq === chain_seq - 1 && keys.some((one) => one.id === removal.key_id && retentionVersion(one, removal) !== null))
    macs.push(removal.mac);
  const [record, ...more] = await store.whole(records.filter(({ row }) => row.chain_seq === chain_seq));
  if (record === undefined || more.length > 0 || record.kind !== 'decision' || record.row['id'] !== id) return false;
  return macs.some((mac) => fitsMac(key, chain.version, mac, record)) && contentFault(record) === null;
}
