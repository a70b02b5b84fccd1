/** Reads the current policy set, and the candidate set that files, a draft, a rollback or a move would make. */
import type { Connection, Database } from '../../db/database.ts';
import { createRestingTurns } from '../../db/turns.ts';
import type { SetSource } from '../sets/bodies.ts';
import type { Moment } from '../sets/candidate-set.ts';
import type { TargetName } from '../sets/planning.ts';
import type { ReadStoredSet } from '../stored-set.ts';
import type { AskedBy, HeavyWork } from './heavy.ts';

export interface MomentParts {
  readonly database: Database;
  readonly targets: (db: Connection) => Promise<readonly (TargetName & { readonly enabled: boolean })[]>;
  readonly readStoredSet: ReadStoredSet;
  readonly heavy: Pick<HeavyWork, 'moment'>;
}

export type Moments = ReturnType<typeof createMoments>;

export function createMoments({ database, targets, readStoredSet, heavy }: MomentParts) {
  // Sending the policies to the thread takes as long as several calls.
  const inTurn = createRestingTurns();
  /** `db` must be a consistent snapshot. */
  const now = async (db: Connection): Promise<Moment> => {
    const [{ position, policies }, known] = await Promise.all([readStoredSet(db), targets(db)]);
    return { position, policies, stored: policies, targets: known, changes: [] };
  };
  return {
    now,
    /** Throws what `HeavyWork.moment` throws. */
    of: (source: SetSource, asked: AskedBy): Promise<Moment> => {
      const { draft, files, rollback, move } = source;
      const isCurrent = [draft, files, rollback, move].every((each) => each === undefined);
      return isCurrent ? database.snapshot(now) : inTurn(asked.by, () => heavy.moment(source, asked));
    },
  };
}
