/** Decisions as readers of the log get them, with their lists and outcomes, page by page. */
import type { CapturedArguments } from '../records/arguments.ts';
import type { DecisionRecord, Outcome } from '../records/records.ts';

/** A decision with its list and its outcome. */
export interface AuditEntry extends Omit<DecisionRecord, 'arguments'> {
  readonly arguments: CapturedArguments | null;
  /** The position in the chain; null if the decision is older than the first chain. */
  readonly chain_id: string | null;
  readonly chain_seq: number | null;
  readonly shown: { readonly count: number; readonly hidden: number; readonly names: readonly string[] } | null;
  readonly outcome: Outcome | null;
  readonly duration_ms: number | null;
}

/** One page of decisions. */
export interface AuditPage {
  readonly entries: readonly AuditEntry[];
  /** The next page begins before this id; null: this is the last page. */
  readonly next: string | null;
}

/** An entry with its JSON as text. */
export interface EntryRow extends Omit<AuditEntry, 'user_groups' | 'arguments' | 'shown'> {
  readonly user_groups: string;
  readonly arguments: string | null;
  readonly shown: number | null;
  readonly hidden: number;
  readonly names: string | null;
}

export function entryOf({ shown, hidden, names, ...row }: EntryRow): AuditEntry {
  return {
    ...row,
    user_groups: parsed(row.user_groups, []),
    arguments: parsed(row.arguments, null),
    shown: shown === null ? null : { count: shown, hidden, names: parsed(names, []) },
  };
}

/** A row that somebody has altered must not keep the others from being read. Verification names it. */
function parsed<T>(json: string | null, otherwise: T): T {
  try {
    return (JSON.parse(json ?? 'null') as T | null) ?? otherwise;
  } catch {
    return otherwise;
  }
}
