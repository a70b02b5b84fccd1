/** What the verification of a log reports. */
import type { RecordKind } from '../chain/chain.ts';

/**
 * `altered`: the content is not what was written. `missing`: records between others are missing, or a whole chain. `cut_off`:
 * records at the end are missing. `added`: the record fits nowhere in its chain. `unknown_key`: the chain was written under a
 * master key that was not given, or its header was altered.
 */
export type ProblemKind = 'altered' | 'missing' | 'cut_off' | 'added' | 'unknown_key';

export interface Problem {
  readonly problem: ProblemKind;
  readonly chain: string | null;
  readonly seq: number | null;
  /** The kind of the record, and the decision to which it belongs; null: it has the outcomes of several. */
  readonly record: RecordKind | null;
  readonly decision_id: string | null;
  readonly detail: string;
}

export interface Report {
  readonly intact: boolean;
  readonly chains: number;
  readonly records: Readonly<Record<RecordKind, number>>;
  /** Records older than the first chain. Only their number can be checked. */
  readonly unchained: number;
  /** Decisions whose personal data was erased. */
  readonly erased: number;
  /** Chains whose first records were removed by age. */
  readonly shortened: number;
  /** Shortened chains from which an old version removed records without checking their age. */
  readonly unproven: number;
  /** The time of the checkpoint after which records were checked; null: all records were checked. */
  readonly since: number | null;
  /** The id of the newest decision whose record was verified; null: none was. */
  readonly newest: string | null;
  /** The first problem of each chain. */
  readonly problems: readonly Problem[];
}

/** Adds a problem to the report. `at`: where it is, as far as that is known. */
export type AddProblem = (problem: ProblemKind, detail: string, at?: Partial<Problem>) => void;
