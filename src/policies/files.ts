/** Which policy is which file: the same in every database, so by name and not by id. Pure. */
import type { StoredPolicy } from './document.ts';
import { subjectKey } from './schema.ts';
import type { PolicyFile } from './yaml.ts';

/** Lower case, because not every file system tells cases apart. */
export const FILE_NAME = /^([a-z0-9][a-z0-9._-]{0,99})\.yaml$/;
export const FILE_NAME_RULE =
  'the name of a policy file is of a-z, 0-9, ".", "_" and "-", begins with a letter or digit, and ends in .yaml; it has at most 105 characters';

/** Of the files of one folder: each owner has names, and removes policies, of its own. */
export const OWNER = /^[a-z0-9][a-z0-9._-]{0,62}$/;
export const DEFAULT_OWNER = 'default';

export const managedAs = (owner: string, file: string): string => `${owner}/${file.replace(/\.yaml$/, '')}`;

/** `managed`: `managed_as` of a policy. */
export const isOf = (managed: string | null, owner: string): boolean => managed?.startsWith(`${owner}/`) === true;

/** null: it is of no file, or of one of another owner. */
export function managedFile(policy: StoredPolicy, owner: string): string | null {
  return policy.managed_as !== null && isOf(policy.managed_as, owner)
    ? `${policy.managed_as.slice(owner.length + 1)}.yaml`
    : null;
}

/**
 * The file of each policy that is the owner's, or nobody's, by id. A policy that is of no file is given a name made from its
 * own, with something of its id where several would have it.
 */
export function fileNames(policies: readonly StoredPolicy[], owner: string): Map<string, string> {
  const names = new Map<string, string>();
  const taken = new Set<string>();
  const free: StoredPolicy[] = [];
  for (const policy of policies) {
    const file = managedFile(policy, owner);
    if (file !== null) {
      names.set(policy.id, file);
      taken.add(file);
    } else if (policy.managed_as === null) {
      free.push(policy);
    }
  }
  const sharers = new Map<string, number>();
  for (const policy of free) {
    const [plain = ''] = possibleNames(policy);
    sharers.set(plain, (sharers.get(plain) ?? 0) + 1);
  }
  for (const policy of free.toSorted((a, b) => (a.id < b.id ? -1 : 1))) {
    const [plain = '', ...longer] = possibleNames(policy);
    const choice = sharers.get(plain) === 1 ? [plain, ...longer] : longer;
    const name = choice.find((file) => !taken.has(file)) ?? `${policy.id}.yaml`;
    names.set(policy.id, name);
    taken.add(name);
  }
  return names;
}

/** What an export may have called the file of a policy that is of none, whatever other policies there were then. */
export function possibleNames({ id, name }: StoredPolicy): string[] {
  const words = name
    .normalize('NFKD')
    .replace(/\p{M}/gu, '')
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .slice(0, 60)
    .replace(/^-+|-+$/g, '');
  // Windows has devices of these names.
  const plain =
    words === '' || /^(con|prn|aux|nul|com\d|lpt\d)$/.test(words) ? `policy${words === '' ? '' : `-${words}`}` : words;
  return [`${plain}.yaml`, `${plain}-${id.slice(-8)}.yaml`, `${plain}-${id}.yaml`];
}

/** A policy as a file says it. `targetName` gives what a target is called; the id stands for one that is gone. */
export function fileOf(policy: StoredPolicy, targetName: (id: string) => string | undefined): PolicyFile {
  const { name, description, target_id, resource_type, resource_pattern, effect, priority, enabled } = policy;
  return {
    ...{ name, description, target: target_id === null ? null : (targetName(target_id) ?? target_id) },
    ...{ resource_type, resource_pattern, effect, priority, enabled },
    subjects: policy.subjects
      .map(({ subject_type, subject_value }) => ({ subject_type, subject_value }))
      .sort((a, b) => (subjectKey(a) < subjectKey(b) ? -1 : 1)),
  };
}
