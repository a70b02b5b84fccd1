/** The members that lines of an export have. No MAC covers other members, so anybody could add them. Pure. */
import { BESIDE, CHAIN_VERSION, CHAINED, LEGACY_VERSION, type RecordKind } from '../chain/chain.ts';
import type { ContentFault } from '../chain/fact-contents.ts';
import { FACT_MEMBERS } from '../chain/facts.ts';
import { FACTS_OF } from '../chain/known-facts.ts';
import type { AuditLine } from './lines.ts';

const STAMP = ['chain_id', 'chain_seq', 'mac'];
const LEGACY = {
  decision: new Set([...CHAINED.decision, ...BESIDE.decision, ...STAMP]),
  shown: new Set([...CHAINED.shown, 'names', ...STAMP]),
  outcome: new Set([...CHAINED.outcome, ...STAMP]),
};
const OWN = {
  decision: ['id', 'created_at', 'resource_name', 'named', 'args_hash', 'args_salt', 'arguments'],
  shown: ['decision_id', 'resource_type', 'shown', 'hidden'],
  outcome: ['created_at', 'outcomes'],
} as const satisfies Record<RecordKind, readonly string[]>;
const membersOf = (kind: RecordKind) =>
  new Set([...OWN[kind], ...FACTS_OF[kind].flatMap((fact) => FACT_MEMBERS[fact]), ...STAMP]);
const CURRENT = { decision: membersOf('decision'), shown: membersOf('shown'), outcome: membersOf('outcome') };
const OTHERS = {
  chain: new Set(['chain_id', 'version', 'key_id', 'started_at', 'host', 'found', 'unchained', 'mac']),
  retention: new Set(['chain_id', 'seq', 'mac', 'removed_at', 'newest', 'unproven', 'key_id', 'signature']),
  erasure: new Set(['id', 'user_id', 'erased_at', 'key_id', 'signature']),
};
const OUTCOME = new Set(['decision_id', 'outcome', 'duration_ms']);

/** The MAC covers a value as text, so a list with the same text would fit, too. Only `outcomes` may be a list. */
const isScalar = ([name, value]: [string, unknown]): boolean =>
  typeof value !== 'object' || value === null || name === 'outcomes';

/** Returns that somebody added a member to a line of an export: readers of the export would believe it. */
export function addition(line: Parameters<typeof strangeMember>[0], version = CHAIN_VERSION): ContentFault | null {
  const name = strangeMember(line, version);
  if (name === null) return null;
  return { problem: 'altered', detail: `the member ${JSON.stringify(name)} was added: the gateway does not write it` };
}

/** Returns a member that the gateway does not write; null: there is none. `version`: that of the chain of a record. */
function strangeMember(line: Extract<AuditLine, { readonly row: object }>, version: number): string | null {
  const { kind, row } = line;
  const known =
    kind === 'chain' || kind === 'retention' || kind === 'erasure'
      ? OTHERS[kind]
      : (version === LEGACY_VERSION ? LEGACY : CURRENT)[kind];
  const { outcomes } = row as { readonly outcomes?: unknown };
  const inside = Array.isArray(outcomes) ? outcomes.flatMap((one: object | null) => Object.keys(one ?? {})) : [];
  const strange = Object.entries(row).find((member) => !known.has(member[0]) || !isScalar(member));
  return strange?.[0] ?? inside.find((name) => !OUTCOME.has(name)) ?? null;
}
