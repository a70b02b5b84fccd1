/** Suggested policies as files. Pure. */
import { hash } from 'node:crypto';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { fileNames, fileOf, isOf } from '../files/file.ts';
import { formatPolicyFile } from '../files/yaml.ts';
import { POLICY_LIMITS, timestamp } from '../schema.ts';
import type { TargetName } from '../sets/planning.ts';
import type { Proposed } from './proposal.ts';

export interface SuggestedFile {
  readonly file: string;
  readonly text: string;
}

export interface Window {
  readonly from: number;
  readonly to: number;
}

/**
 * The name of the file depends on everything that the policy allows, so a later suggestion does not replace an earlier one. `taken`: the
 * names of files that must not be replaced either.
 */
export function fileOfProposed(
  proposed: Proposed,
  target: string,
  count: number,
  { from, to }: Window,
  taken: ReadonlySet<string> = new Set(),
): SuggestedFile {
  const { subject_type, subject_value, resource_type, resource_pattern, names, priority } = proposed;
  const what = names.length === 0 ? 'use' : `${resource_type}s`;
  const content = JSON.stringify([subject_type, subject_value, target, resource_type, resource_pattern, priority]);
  const requests = count === 1 ? '1 recorded request' : `${count} recorded requests`;
  const stem = `suggested-${target}-${resource_type}-${subject_type}-${hash('sha256', content, 'hex').slice(0, 8)}`;
  let file = `${stem}.yaml`;
  for (let n = 2; taken.has(file); n++) file = `${stem}-${n}.yaml`;
  return {
    file,
    text: formatPolicyFile({
      name: [...`${target}: ${what} for ${subject_type} ${subject_value}`].slice(0, POLICY_LIMITS.name).join(''),
      description: `Suggested for ${requests} between ${timestamp(from)} and ${timestamp(to)}.`,
      target,
      ...{ resource_type, resource_pattern, effect: 'allow', priority, enabled: true },
      subjects: [{ subject_type, subject_value }],
    }),
  };
}

/**
 * Returns the files of the owner with which `after` becomes the set: all files of the owner, and the changed policies without a file. A
 * policy that is left without subjects no longer has a file. If it never had one, its file has no subjects, because only policies with
 * files can be deleted by files.
 */
export function filesOfRest(
  before: readonly StoredPolicy[],
  after: readonly StoredPolicy[],
  owner: string,
  targets: readonly TargetName[],
): Map<string, string> {
  const files = fileNames(before, owner);
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  const texts = new Map<string, string>();
  for (const [i, policy] of after.entries()) {
    const isChanged = policy !== before[i];
    const isOwned = isOf(policy.managed_as, owner);
    const file = files.get(policy.id);
    if (file === undefined || (!isOwned && !isChanged) || (isOwned && isChanged && policy.subjects.length === 0)) continue;
    texts.set(file, formatPolicyFile(fileOf(policy, (id) => names.get(id))));
  }
  return texts;
}
