/** Plans and changes of the policy set in the form of the API. Pure. */
import type { Position } from '../../db/changes.ts';
import { fileOf } from '../files/file.ts';
import type { DecisionChanges } from './decision-changes.ts';
import { changedMembers, type PolicyChange } from './plan.ts';
import type { PlannedFiles, TargetName } from './planning.ts';

/** A plan without its changes. */
export const planCounts = (plan: Omit<PlannedFiles, 'changes' | 'candidate'>, { revision }: Position) => ({
  revision,
  owner_revision: plan.ownerRevision,
  targets_hash: plan.targetsHash,
  unchanged: plan.unchanged,
  left: plan.left.map(({ file, policy }) => ({ file, policy_id: policy.id, name: policy.name, drift_since: policy.drift_since })),
  unmanaged: plan.unmanaged,
});

/** The answer to an apply, without its changes. */
export const appliedCounts = ({ ownerRevision, ...plan }: PlannedFiles, position: Position) =>
  planCounts({ ...plan, ownerRevision: plan.changes.length === 0 ? ownerRevision : position.revision }, position);

/** Shows policies in the form of their files, because people read names, not ids. */
export const changesJson = (changes: readonly PolicyChange[], targets: readonly TargetName[]) =>
  changes.map(changeJsonWith(targets));

export function changeJsonWith(targets: readonly TargetName[]) {
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  return ({ action, file, before, after, deletedSince }: PolicyChange) => ({
    action,
    file,
    policy_id: (after ?? before)?.id ?? null,
    name: (after ?? before)?.name ?? '',
    drift_since: deletedSince ?? before?.drift_since ?? null,
    members: changedMembers(before, after).map((member) => (member === 'target_id' ? 'target' : member)),
    before: before && fileOf(before, (id) => names.get(id)),
    after: after && fileOf(after, (id) => names.get(id)),
  });
}

export const withFlips = (changes: ReturnType<typeof changesJson>, flipsOf: DecisionChanges['flipsOf']) =>
  changes.map((change) => ({ ...change, flips: flipsOf(change.policy_id ?? '') }));
