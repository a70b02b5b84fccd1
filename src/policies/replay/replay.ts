/** Evaluates the recorded decisions of a time range again, with a different policy set. */
import { firstIdOf, idAfter, timeOf } from '../../audit/chain/chain.ts';
import { type RecordedPage, recordedStore } from '../../audit/search/recorded-store.ts';
import { createPace } from '../../base/turns/pace.ts';
import type { Connection } from '../../db/database.ts';
import { createTally, NOTHING_TALLIED, type Tally, type TallyParts, type TallyState } from './tally.ts';

export interface ReplayRange {
  /** Milliseconds since the epoch. `to` is not part of the range. */
  readonly from: number;
  readonly to: number;
}

export interface ReplayProgress {
  /** The number of decisions so far. */
  readonly done: number;
  /** The time of the last of them, in milliseconds since the epoch. */
  readonly at: number;
}

/** The number of decisions that are read at once. */
const PAGE = 250;
const FLIPS_LISTED = { all: 1_000, perUser: 100 };

/** Whose turns the evaluation takes, and what stops it: it then rejects with the reason of the signal. */
export interface EvaluatedFor {
  readonly by: string;
  readonly signal: AbortSignal;
}

/** Runs the generator to its end in spare time: an evaluation can take minutes, and calls must not wait for it. */
export async function inSpareTime<T>(steps: Generator<unknown, T>, { by, signal }: EvaluatedFor): Promise<T> {
  const pace = createPace(by);
  for (;;) {
    await pace();
    signal.throwIfAborted();
    const step = steps.next();
    if (step.done === true) return step.value;
  }
}

/**
 * Reads the range once, oldest first. It may leave out decisions that become durable during the read.
 */
export async function replay(
  db: Connection,
  { from, to }: ReplayRange,
  parts: Omit<TallyParts, 'maxFlips'>,
  onProgress: (progress: ReplayProgress) => void,
  asked: EvaluatedFor,
): Promise<TallyState> {
  const tally = createTally({ ...parts, maxFlips: FLIPS_LISTED }, NOTHING_TALLIED);
  const namesOf = createListNames(db);
  await readRange(db, { from, to }, (page) => takePage(tally, page, namesOf, asked), onProgress, asked.signal);
  return tally.state();
}

/** Calls `take` with each page of the range, oldest first. Otherwise like `replay`. */
export async function readRange(
  db: Connection,
  { from, to }: ReplayRange,
  take: (page: RecordedPage) => Promise<void>,
  onProgress: (progress: ReplayProgress) => void,
  signal: AbortSignal,
): Promise<void> {
  const store = recordedStore(db);
  const before = firstIdOf(to);
  let done = 0;
  for (let since = firstIdOf(from); ; ) {
    signal.throwIfAborted();
    const page = await store.page(since, before, PAGE);
    await take(page);
    const read = page.decisions.length + page.damaged;
    if (page.last === null || read < PAGE) return;
    done += read;
    onProgress({ done, at: timeOf(page.last) });
    since = idAfter(page.last);
  }
}

/** Returns the names of lists, by the hash of their set. */
type ListNames = (lists: RecordedPage['lists']) => Promise<ReadonlyMap<string, readonly string[]>>;

/** The number of lists whose names are in memory at once: a set of names can be long. */
const LISTS = 20;

export async function takePage(
  tally: Pick<Tally, 'take'>,
  { decisions, lists, damaged }: RecordedPage,
  namesOf: ListNames,
  asked: EvaluatedFor,
): Promise<void> {
  await inSpareTime(tally.take({ decisions, lists: [], damaged }, new Map()), asked);
  for (let at = 0; at < lists.length; at += LISTS) {
    const some = lists.slice(at, at + LISTS);
    await inSpareTime(tally.take({ decisions: [], lists: some, damaged: 0 }, await namesOf(some)), asked);
  }
}

/** Cache some sets: the lists of one target are mostly the same. */
const SETS_KEPT = 50;

export function createListNames(db: Connection): ListNames {
  const kept = new Map<string, readonly string[]>();
  return async (lists) => {
    const wanted = [...new Set(lists.map(({ set_hash }) => set_hash))];
    if (kept.size + wanted.length > SETS_KEPT) kept.clear();
    const unknown = wanted.filter((hash) => !kept.has(hash));
    for (const [hash, names] of await recordedStore(db).sets(unknown)) kept.set(hash, names);
    return kept;
  };
}
