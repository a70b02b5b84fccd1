/** Compares the policy sets of two folders: what a reviewer of the second one needs to know. Pure. */
import { decisionChanges } from '../sets/decision-changes.ts';
import type { OfflineSet } from '../sets/offline.ts';
import { changesBetween } from '../sets/plan.ts';
import { changesJson, withFlips } from '../sets/plan-json.ts';
import type { FolderFinding, FolderLint } from './lint-folder.ts';

export type FolderComparison = Awaited<ReturnType<typeof compareFolders>>;

/** Sorted by file. Ids are left out: a gateway would give different ones. */
export async function compareFolders(before: OfflineSet, after: OfflineSet) {
  const targets = [...new Map([...before.targets, ...after.targets].map((target) => [target.id, target])).values()];
  const { verdict, flipsOf } = await decisionChanges(before.policies, after.policies, targets, () => false);
  const changes = withFlips(changesJson(changesBetween(before.policies, after.policies), targets), flipsOf)
    .map(({ policy_id: id, ...change }) => ({
      ...change,
      file: (after.files.get(id ?? '') ?? before.files.get(id ?? ''))?.file ?? '',
    }))
    .sort((a, b) => (a.file < b.file ? -1 : 1));
  return { verdict, changes };
}

/** Returns the findings of `after` that `before` does not have, hidden or not. */
export function newFindings(before: FolderLint, after: FolderLint): readonly FolderFinding[] {
  const known = new Set([...before.findings, ...before.hidden].map(({ fingerprint }) => fingerprint));
  return after.findings.filter(({ fingerprint }) => !known.has(fingerprint));
}
