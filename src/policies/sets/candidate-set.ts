/** The current policy set, and the candidate set that files or a draft would make. Questions, tests and replays use them. */
import type { Position } from '../../db/changes.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import type { PlanBody, SetSource } from './bodies.ts';
import type { DraftContent } from './draft.ts';
import type { PolicyChange } from './plan.ts';
import type { TargetName } from './planning.ts';

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

/** Returns the files that make the set, and their options; null: the set is the current one. */
export async function filesOf(
  { draft, files, rollback: _, move: __, ...rest }: SetSource,
  find: (draft: string) => Promise<DraftContent>,
): Promise<PlanBody | null> {
  if (draft === undefined) return files === undefined ? null : { ...rest, files };
  const { files: its, owner, prune, adopt } = await find(draft);
  return { ...rest, files: its, owner, prune, adopt };
}
