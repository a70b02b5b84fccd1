/** Decisions as readers of the log get them, with their lists and outcomes, page by page. */
import { timeOf } from '../chain/chain.ts';
import type { CapturedArguments } from '../records/arguments.ts';
import type { DecisionRecord, Outcome } from '../records/records.ts';
import { textsIn } from './recorded-store.ts';

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

/**
 * A row that somebody has altered must not keep the others from being read, so each member gets a value of its type. Verification names the
 * row.
 */
export function entryOf({ shown, hidden, names, ...row }: EntryRow): AuditEntry {
  return {
    ...row,
    created_at: readableTime(row.created_at, row.id),
    // Its row can be missing.
    method: row.method ?? '',
    user_groups: textsIn(row.user_groups) ?? [],
    arguments: parsed(row.arguments),
    shown: shown === null ? null : { count: shown, hidden, names: textsIn(names) ?? [] },
  };
}

/** The last time that a `Date` can have, in milliseconds since 1970. */
const LAST_MS = 8.64e15;

function readableTime(ms: number, id: string): number {
  const [time = 0] = [ms, timeOf(String(id))].filter(Number.isSafeInteger);
  return Math.min(Math.max(time, -LAST_MS), LAST_MS);
}

function parsed<T>(json: string | null): T | null {
  try {
    return JSON.parse(json ?? 'null') as T | null;
  } catch {
    return null;
  }
}
