/** Checks content that a MAC covers only by hash: personal data, which can be erased, and names, which many lists share. Pure. */
import { argumentsHash } from './binary-form.ts';
import { asText, personHash, resourceKey } from './chain.ts';
import { altered, type ContentFault, namesFault } from './fact-contents.ts';
import type { ChainedRecord } from './known-facts.ts';

type Row = Readonly<Record<string, unknown>>;

/** Returns that a fact of a record of version 2 is missing. Without it the MAC cannot be computed. */
export function missingFact({ kind, facts = [] }: ChainedRecord): ContentFault | null {
  if (!facts.includes(null)) return null;
  const what = kind === 'shown' ? 'the listed names are missing' : 'a fact that the record refers to is missing';
  return { problem: 'missing', detail: what };
}

/** For a record with a valid MAC: returns what is wrong with its content, or null if it is what was written. */
export function contentFault({ kind, row, facts }: ChainedRecord): ContentFault | null {
  for (const fact of facts ?? []) if (fact !== null && fact.fault !== null) return fact.fault;
  switch (kind) {
    case 'decision':
      return facts === undefined ? decisionFault(row) : ownFault(row);
    case 'shown':
      return facts === undefined ? namesFault(row) : null;
    case 'outcome':
      return null;
  }
}

/** Whether the personal data of a decision was erased. */
export function isErased({ kind, row, facts }: ChainedRecord): boolean {
  const { salt } = facts?.[0]?.row ?? row;
  return kind === 'decision' && (salt === null || (row['args_salt'] === null && typeof row['args_hash'] === 'string'));
}

function decisionFault(row: Row): ContentFault | null {
  const [salt, email, groups] = [row['salt'], row['user_email'], row['user_groups']];
  // Older exports do not have the member `arguments`.
  const args = row['arguments'] ?? null;
  if (row['resource_key'] !== resourceKey(row['resource_name'] as string | null))
    return altered('the search key of the resource is not what was written');
  if (salt === null) {
    const empty = email === '' && groups === '[]' && args === null;
    return empty ? null : altered('e-mail, groups or arguments were set after an erasure');
  }
  const written = personHash(asText(salt), asText(email), asText(groups), args === null ? null : asText(args));
  return written === row['person_hash'] ? null : altered('e-mail, groups or arguments are not what was written');
}

function ownFault(row: Row): ContentFault | null {
  const [salt, args, named] = [row['args_salt'], row['arguments'], row['named']];
  // The MAC covers what it means, and everything but 1 means the same.
  if (named !== 0 && named !== 1) return altered('whether the name belongs to the record is not what was written');
  if (salt === null) return args === null ? null : altered('arguments were set after an erasure');
  return argumentsHash(asText(salt), asText(args)) === row['args_hash'] ? null : altered('arguments are not what was written');
}
