/** The current policy set, and the candidate set that files or a draft would make. Questions, tests and replays use them. */
import { AppError } from '../../base/errors.ts';
import type { Position } from '../../db/changes.ts';
import type { Connection, Database } from '../../db/database.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { ReadStoredSet } from '../stored-set.ts';
import { moveOf, type PlanBody, requestOf, rollbackOf, type SetSource } from './bodies.ts';
import type { Draft, DraftContent } from './draft.ts';
import { type PolicyChange, setBefore } from './plan.ts';
import type { SetPlan, TargetName } from './planning.ts';
import type { PolicySets } from './sets.ts';

/** A policy set at one moment, and what else questions need. */
export interface Moment {
  readonly position: Position;
  readonly policies: readonly StoredPolicy[];
  /** The stored policies. They are the same as `policies` unless those come from files or a draft. */
  readonly stored: readonly StoredPolicy[];
  readonly targets: readonly (TargetName & { readonly enabled: boolean })[];
  /** The changes from `stored` to `policies`. */
  readonly changes: readonly PolicyChange[];
}

export interface MomentParts {
  readonly database: Database;
  readonly sets: PolicySets;
  readonly targets: (db: Connection) => Promise<readonly (TargetName & { readonly enabled: boolean })[]>;
  readonly findDraft: (db: Connection, name: string) => Promise<Draft | null>;
  readonly readStoredSet: ReadStoredSet;
}

/** Returns the files that make the set, and their options; null: the set is the current one. */
export async function filesOf(
  { draft, files, rollback: _, move: __, ...rest }: SetSource,
  find: (draft: string) => Promise<DraftContent>,
): Promise<PlanBody | null> {
  if (draft === undefined) return files === undefined ? null : { ...rest, files };
  const { files: its, owner, prune, adopt } = await find(draft);
  return { ...rest, files: its, owner, prune, adopt };
}

export type Moments = ReturnType<typeof createMoments>;

export function createMoments({ database, sets, targets, findDraft, readStoredSet }: MomentParts) {
  /** `db` must be a consistent snapshot. */
  const now = async (db: Connection): Promise<Moment> => {
    const [{ position, policies }, known] = await Promise.all([readStoredSet(db), targets(db)]);
    return { position, policies, stored: policies, targets: known, changes: [] };
  };

  async function requireDraft(name: string): Promise<Draft> {
    const found = await findDraft(database.knex, name);
    if (found === null) throw new AppError('not_found', `No draft has the name ${name}.`);
    return found;
  }

  /** null: the set is the current one. */
  async function plannedFrom(
    source: SetSource,
    by: string,
  ): Promise<{ readonly plan: SetPlan; readonly position: Position } | null> {
    const { rollback, move } = source;
    if (rollback !== undefined) return sets.planRollback(rollbackOf(rollback), by);
    if (move !== undefined) return sets.planMove(moveOf({ ...move, override: true }), by);
    const body = await filesOf(source, requireDraft);
    return body === null ? null : sets.plan(requestOf(body), by);
  }

  return {
    now,
    /**
     * Throws AppError `not_found` if the draft does not exist, and what plans of `PolicySets` throw if the change could not be
     * made. `by`: the user in whose turn the work runs.
     */
    async of(source: SetSource, by: string): Promise<Moment> {
      const planned = await plannedFrom(source, by);
      if (planned === null) return database.snapshot(now);
      const { plan, position } = planned;
      return {
        position,
        policies: plan.candidate,
        stored: setBefore(plan.candidate, plan.changes),
        targets: await database.snapshot(targets),
        changes: plan.changes,
      };
    },
  };
}
