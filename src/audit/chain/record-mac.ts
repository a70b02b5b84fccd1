/**
 * The MAC of a record that is read from the log or from an export, in the version that the header of its chain names. Pure.
 * `../verify/chain-walk.ts` and `../upkeep/retention.ts` check records with it. The writer computes the MAC of a new record in
 * `../records/log-rows.ts`. The format is in `binary-form.ts`, and in `chain.ts` for version 1.
 */

import { binaryMac, type Covered, digestOfText } from './binary-form.ts';
import { asText, type ChainKey, legacyMac } from './chain.ts';
import { type ChainedRecord, withFacts } from './known-facts.ts';

/** Returns the MAC of a record; null: it has a value that the gateway never writes. */
export function recordMac(
  key: ChainKey,
  version: number,
  chainId: string,
  seq: number,
  previous: string,
  record: Omit<ChainedRecord, 'row'> & { readonly row: object },
): string | null {
  if (version === 2) return binaryMac(key, chainId, seq, previous, coveredBy(record as ChainedRecord));
  return legacyMac(key, version, chainId, seq, previous, record.kind, record.row);
}

/** Whether the record has the MAC of its content. False if the MAC is missing, or if the content has none: an export may be forged. */
export function fitsMac(key: ChainKey, version: number, previous: string, record: ChainedRecord): boolean {
  const { chain_id, chain_seq, mac } = record.row;
  const written = recordMac(key, version, chain_id, chain_seq, previous, record);
  return written !== null && written === mac;
}

const NO_DIGEST = Buffer.alloc(0);
const HEX_DIGEST = /^[0-9a-f]{64}$/;

/** Node decodes hexadecimal digits up to the first other character, and text after them would pass unseen. */
function argumentsDigest(value: unknown): Buffer | null {
  if (value === null) return null;
  return typeof value === 'string' && HEX_DIGEST.test(value) ? Buffer.from(value, 'hex') : NO_DIGEST;
}

function coveredBy(record: ChainedRecord): Covered {
  const { kind, row, facts, outcomes = null } = withFacts(record);
  const digest = (i: number): Buffer => facts[i]?.digest ?? NO_DIGEST;
  switch (kind) {
    case 'decision':
      return {
        kind,
        id: row['id'] as string,
        created_at: row['created_at'] as number,
        principal: digest(0),
        object: digest(1),
        verdict: digest(2),
        name: row['named'] === 1 ? digestOfText(asText(row['resource_name'])) : null,
        args: argumentsDigest(row['args_hash']),
      };
    case 'shown':
      return {
        kind,
        decision_id: row['decision_id'] as string,
        resource_type: row['resource_type'] as string,
        shown: row['shown'] as number,
        hidden: row['hidden'] as number,
        names: digest(0),
      };
    case 'outcome':
      return {
        kind,
        created_at: row['created_at'] as number,
        outcomes,
      };
  }
}
