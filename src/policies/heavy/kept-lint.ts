/** Keeps the newest analysis of the policies, for readers who need not wait for a new one: at 10,000 policies it takes some seconds. */
import { isInHistory, type Position, readPosition } from '../../db/changes.ts';
import type { Database } from '../../db/database.ts';
import { glanceOf } from '../invariants/invariant-edits.ts';
import type { HeavyWork } from './heavy.ts';
import type { HeavyAnswer } from './jobs.ts';

/** The analysis also depends on users, on targets, and on the time at which exceptions end. */
const KEPT_MS = 600_000;

export interface KeptLintParts {
  readonly database: Database;
  readonly heavy: Pick<HeavyWork, 'answer'>;
  /** Milliseconds of a monotonic clock. */
  readonly now?: () => number;
}

interface Kept {
  readonly glance: string;
  readonly position: Position;
  readonly at: number;
  readonly answer: Promise<HeavyAnswer>;
}

/**
 * Returns the analysis, without witnesses, of the current policies and invariants that is at most 10 minutes old, or else a new one. All who ask meanwhile share
 * it, so it goes on if they stop waiting. `by`: the user in whose turn it runs.
 */
export function createKeptLint({ database, heavy, now = () => performance.now() }: KeptLintParts) {
  let kept: Kept | null = null;
  return async (by: string): Promise<HeavyAnswer> => {
    const last = kept;
    const { glance, position, isSame } = await database.snapshot(async (db) => ({
      ...(await glanceOf(db)),
      position: await readPosition(db),
      isSame: last !== null && (await isInHistory(db, last.position)),
    }));
    if (kept === null || (kept === last && !isSame) || kept.glance !== glance || now() - kept.at > KEPT_MS) {
      const made: Kept = { glance, position, at: now(), answer: heavy.answer('lint', { brief: true }, { by }) };
      kept = made;
      made.answer.catch(() => {
        if (kept === made) kept = null;
      });
    }
    return kept.answer;
  };
}
