/** Which file belongs to which policy. Files refer by name and not by id, so that they are the same for every database. Pure. */
import { atOnce } from '../../base/turns/slices.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { subjectKey } from '../schema.ts';
import type { PolicyFile } from './yaml.ts';

/** Lower case only, because some file systems are case-insensitive. */
export const FILE_NAME = /^(?!portcullis\.yaml$)([a-z0-9][a-z0-9._-]{0,99})\.yaml$/;
export const FILE_NAME_RULE =
  'the name of a policy file must consist of a-z, 0-9, ".", "_" and "-", begin with a letter or digit, end in .yaml, have at most 105 characters, and not be portcullis.yaml';
/** The manifest of a folder of policies. It is not a policy itself. */
export const MANIFEST_NAME = 'portcullis.yaml';

/** The owner of the files of one folder. Each owner has separate file names, and removes only policies of this owner. */
export const OWNER = /^[a-z0-9][a-z0-9._-]{0,62}$/;
export const DEFAULT_OWNER = 'default';

export const managedAs = (owner: string, file: string): string => `${owner}/${file.replace(/\.yaml$/, '')}`;

/** Returns the owner in the `managed_as` of a policy. */
export const ownerIn = (managed: string | null): string | null => managed?.slice(0, managed.indexOf('/')) ?? null;

/** `managed`: the `managed_as` of a policy. */
export const isOf = (managed: string | null, owner: string): boolean => managed?.startsWith(`${owner}/`) === true;

/** Returns null if the policy belongs to no file, or to a file of a different owner. */
export function managedFile(policy: StoredPolicy, owner: string): string | null {
  return policy.managed_as !== null && isOf(policy.managed_as, owner)
    ? `${policy.managed_as.slice(owner.length + 1)}.yaml`
    : null;
}

/**
 * Returns the file of each policy of the owner, and of each policy without an owner, by id. A policy without a file gets a file
 * name made from its name. If several policies would get the same name, each also gets a part of its id.
 */
export function fileNames(policies: readonly StoredPolicy[], owner: string): Map<string, string> {
  return atOnce(fileNamesInSteps(policies, owner));
}

/** Like `fileNames`, in steps. */
export function* fileNamesInSteps(policies: readonly StoredPolicy[], owner: string): Generator<undefined, Map<string, string>> {
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
    yield;
    const [plain = ''] = possibleNames(policy);
    sharers.set(plain, (sharers.get(plain) ?? 0) + 1);
  }
  for (const policy of free.toSorted((a, b) => (a.id < b.id ? -1 : 1))) {
    yield;
    const [plain = '', ...longer] = possibleNames(policy);
    const choice = sharers.get(plain) === 1 ? [plain, ...longer] : longer;
    const name = choice.find((file) => !taken.has(file)) ?? `${policy.id}.yaml`;
    names.set(policy.id, name);
    taken.add(name);
  }
  return names;
}

/** Returns every name that an export may have given to the file of a policy without a file. The name depends on the other policies. */
export function possibleNames({ id, name }: Pick<StoredPolicy, 'id' | 'name'>): string[] {
  const words = name
    .normalize('NFKD')
    .replace(/\p{M}/gu, '')
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .slice(0, 60)
    .replace(/^-+|-+$/g, '');
  // Windows reserves these names for devices. `portcullis.yaml` is the manifest.
  const plain =
    words === '' || /^(con|prn|aux|nul|com\d|lpt\d|portcullis)$/.test(words) ? `policy${words === '' ? '' : `-${words}`}` : words;
  return [`${plain}.yaml`, `${plain}-${id.slice(-8)}.yaml`, `${plain}-${id}.yaml`];
}

/** Returns the policy in the form of a file. `targetName` returns undefined for a deleted target: the file then has its id. */
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
