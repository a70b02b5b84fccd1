/** Checks content that the digest of a fact covers only by hash: the personal data of a principal, and the names of a list. Pure. */
import { hash } from 'node:crypto';
import { asText, personHash } from './chain.ts';
import type { FactKind } from './facts.ts';

type Row = Readonly<Record<string, unknown>>;

export interface ContentFault {
  readonly problem: 'altered' | 'missing';
  readonly detail: string;
}

export const altered = (detail: string): ContentFault => ({ problem: 'altered', detail });

/** For a fact with a valid digest: returns what is wrong with its content. */
export function factFault(kind: FactKind, row: Row): ContentFault | null {
  if (kind === 'names') return namesFault(row);
  return kind === 'principal' ? principalFault(row) : null;
}

function principalFault(row: Row): ContentFault | null {
  const [salt, email, groups] = [row['salt'], row['user_email'], row['user_groups']];
  if (salt === null) {
    return email === '' && groups === '[]' ? null : altered('e-mail or groups were set after an erasure');
  }
  const isWritten = personHash(asText(salt), asText(email), asText(groups), null) === row['person_hash'];
  return isWritten ? null : altered('e-mail or groups are not what was written');
}

export function namesFault(row: Row): ContentFault | null {
  const names = row['names'];
  if (names === null || names === undefined) return { problem: 'missing', detail: 'the listed names are missing' };
  return hash('sha256', asText(names), 'hex') === row['set_hash'] ? null : altered('the listed names are not what was written');
}
