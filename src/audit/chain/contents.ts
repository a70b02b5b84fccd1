/** Checks content that a MAC covers only by hash: personal data, which can be erased, and names, which many lists share. Pure. */
import { hash } from 'node:crypto';
import { personHash, resourceKey } from './chain.ts';
import type { ChainedRecord } from './chain-store.ts';

export interface ContentFault {
  readonly problem: 'altered' | 'missing';
  readonly detail: string;
}

/** For a record with a valid MAC: returns what is wrong with its content, or null if it is what was written. */
export function contentFault({ kind, row }: ChainedRecord): ContentFault | null {
  switch (kind) {
    case 'decision':
      return decisionFault(row);
    case 'shown':
      return setFault(row);
    case 'outcome':
      return null;
  }
}

/** Whether the personal data of a decision was erased. */
export function isErased({ kind, row }: ChainedRecord): boolean {
  return kind === 'decision' && row['salt'] === null;
}

const altered = (detail: string): ContentFault => ({ problem: 'altered', detail });

function decisionFault(row: ChainedRecord['row']): ContentFault | null {
  const [salt, email, groups] = [row['salt'], row['user_email'], row['user_groups']];
  // Older exports do not have the member `arguments`.
  const args = row['arguments'] ?? null;
  if (row['resource_key'] !== resourceKey(row['resource_name'] as string | null))
    return altered('the search key of the resource is not what was written');
  if (salt === null) {
    const empty = email === '' && groups === '[]' && args === null;
    return empty ? null : altered('e-mail, groups or arguments were set after an erasure');
  }
  const written = personHash(String(salt), String(email), String(groups), args === null ? null : String(args));
  return written === row['person_hash'] ? null : altered('e-mail, groups or arguments are not what was written');
}

function setFault(row: ChainedRecord['row']): ContentFault | null {
  const names = row['names'];
  if (names === null || names === undefined) return { problem: 'missing', detail: 'the listed names are missing' };
  return hash('sha256', String(names), 'hex') === row['set_hash'] ? null : altered('the listed names are not what was written');
}
