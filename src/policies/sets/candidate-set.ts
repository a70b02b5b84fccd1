/** The current policy set, and the candidate set that files or a draft would make. Questions, tests and replays use them. */
import { AppError } from '../../base/errors.ts';
import { type Position, readPosition } from '../../db/changes.ts';
import type { Connection, Database } from '../../db/database.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { policyStore } from '../policy-store.ts';
import { type PlanBody, requestOf, type SetSource } from './bodies.ts';
import type { Draft, DraftContent } from './draft.ts';
import { type PolicyChange, setBefore } from './plan.ts';
import type { TargetName } from './planning.ts';
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
}

/** Returns the files that make the set, and their options; null: the set is the current one. */
export async function filesOf(
  { draft, files, ...rest }: SetSource,
  find: (draft: string) => Promise<DraftContent>,
): Promise<PlanBody | null> {
  if (draft === undefined) return files === undefined ? null : { ...rest, files };
  const { files: its, owner, prune, adopt } = await find(draft);
  return { ...rest, files: its, owner, prune, adopt };
}

export type Moments = ReturnType<typeof createMoments>;

export function createMoments({ database, sets, targets, findDraft }: MomentParts) {
  const now = async (db: Connection): Promise<Moment> => {
    const policies = await policyStore(db).all();
    return { position: await readPosition(db), policies, stored: policies, targets: await targets(db), changes: [] };
  };

  async function requireDraft(name: string): Promise<Draft> {
    const found = await findDraft(database.knex, name);
    if (found === null) throw new AppError('not_found', `No draft has the name ${name}.`);
    return found;
  }

  return {
    now,
    /**
     * Throws AppError `not_found` if the draft does not exist, and what `PolicySets.plan` throws if the files could not be
     * applied. `by`: the user in whose turn the work runs.
     */
    async of(source: SetSource, by: string): Promise<Moment> {
      const body = await filesOf(source, requireDraft);
      if (body === null) return database.snapshot(now);
      const { plan, position } = await sets.plan(requestOf(body), by);
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
