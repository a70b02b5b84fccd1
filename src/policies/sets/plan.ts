/** Computes how the files of a folder would change the policies, and how two policy sets differ. Pure. */
import { atOnce } from '../../base/turns/slices.ts';
import type { PolicySubject, StoredPolicy } from '../../engine/compile/policy.ts';
import { fileNamesInSteps, fileOf, managedAs, managedFile, possibleNames } from '../files/file.ts';
import { changedKeys, errorAt, type ParsedPolicyFile, type PolicyFile, type PolicyFileError } from '../files/yaml.ts';
import type { OwnerHistory } from '../history.ts';
import type { StoredChange } from '../policy-store.ts';
import { sortedSubjects, subjectKey } from '../schema.ts';

export interface PolicyChange extends StoredChange {
  /** `adopt`: an update of a policy that was created over the API. From then on, the policy belongs to the file. */
  readonly action: 'create' | 'update' | 'adopt' | 'delete';
  /** null: the change is between two sets, without files. */
  readonly file: string | null;
  /** `drift_since` of a policy that was deleted outside of its file, and that the file now creates or adopts. */
  readonly deletedSince?: number | undefined;
}

export interface PolicyPlan {
  /** Sorted by file. */
  readonly changes: readonly PolicyChange[];
  /** The number of files that already match their policies. */
  readonly unchanged: number;
  /** Policies of the owner whose files no longer exist. They stay, because the request does not prune. */
  readonly left: readonly { readonly file: string; readonly policy: StoredPolicy }[];
  /** The number of policies that belong to no file afterwards. */
  readonly unmanaged: number;
  /** The candidate set, sorted by id. */
  readonly candidate: readonly StoredPolicy[];
}

export interface PlanRequest {
  /** The files by name. */
  readonly files: ReadonlyMap<string, ParsedPolicyFile>;
  readonly owner: string;
  /** Whether to delete policies of the owner whose files no longer exist. */
  readonly prune: boolean;
  /** Whether policies that were created over the API become those of the files that describe them. */
  readonly adopt: boolean;
}

export interface PlanContext {
  readonly policies: readonly StoredPolicy[];
  readonly targets: readonly { readonly id: string; readonly name: string }[];
  /** Absent: there is no gateway. */
  readonly history?: Pick<OwnerHistory, 'deleted'>;
  /** Returns the same id each time for the same name. */
  readonly idFor: (what: string) => string;
  readonly time: number;
}

type Planning = PolicyPlan | { readonly errors: readonly PolicyFileError[] };

export function planFiles(request: PlanRequest, context: PlanContext): Planning {
  return atOnce(planFilesInSteps(request, context));
}

/** Like `planFiles`, but pauses every few policies so that the caller can let other work run. */
export function* planFilesInSteps(request: PlanRequest, context: PlanContext): Generator<undefined, Planning> {
  const { files, owner, prune, adopt } = request;
  const { policies } = context;
  const targetIds = new Map(context.targets.map(({ id, name }) => [name, id]));
  const targetNames = new Map(context.targets.map(({ id, name }) => [id, name]));
  const meant = yield* meaningOf(files, policies, owner);
  const errors: PolicyFileError[] = [];
  const changes: PolicyChange[] = [];
  let unchanged = 0;

  for (const [file, parsed] of [...files].sort(([a], [b]) => compareText(a, b))) {
    yield;
    const { policy: wanted } = parsed;
    if (wanted.target !== null && !targetIds.has(wanted.target)) {
      errors.push(errorAt(parsed, 'target', `is ${wanted.target}, but no target has this name`));
      continue;
    }
    const known = meant.get(file);
    if (known !== undefined && 'ambiguous' in known) {
      errors.push(errorAt(parsed, 'name', `matches ${known.ambiguous} policies that were created over the API: ${RENAME}`));
      continue;
    }
    const before = known ?? null;
    const owned = before?.managed_as === managedAs(owner, file);
    const differs =
      before === null ||
      changedKeys(
        fileOf(before, (id) => targetNames.get(id)),
        wanted,
      ).length > 0;
    if (before !== null && !differs && before.drift_since === null && (owned || !adopt)) {
      unchanged++;
    } else if (before !== null && !owned && !adopt) {
      errors.push(
        errorAt(parsed, 'name', `is also the name of policy ${before.id}, which was created over the API and differs: ${ADOPT}`),
      );
    } else {
      const after = become(before, wanted, file, request, context, targetIds);
      const deletedSince = owned ? undefined : context.history?.deleted.get(managedAs(owner, file));
      changes.push({ action: before === null ? 'create' : owned ? 'update' : 'adopt', file, before, after, deletedSince });
    }
  }
  if (errors.length > 0) return { errors };

  const left: { file: string; policy: StoredPolicy }[] = [];
  for (const policy of policies) {
    yield;
    const file = managedFile(policy, owner);
    if (file === null || files.has(file)) continue;
    if (prune) changes.push({ action: 'delete', file, before: policy, after: null });
    else left.push({ file, policy });
  }
  changes.sort((a, b) => compareText(a.file ?? '', b.file ?? ''));
  left.sort((a, b) => compareText(a.file, b.file));
  yield;
  const candidate = withChanges(policies, changes);
  yield;
  return { changes, unchanged, left, unmanaged: candidate.filter(({ managed_as }) => managed_as === null).length, candidate };
}

const RENAME = 'give the file a different name, or start with an export';
const ADOPT = 'adopt the policy (--adopt), so that it belongs to the file from now on, or give the file a different name';

/** Returns the policy of each file: the owner's, or one without a file for which an export would use the name of this file. */
function* meaningOf(
  files: ReadonlyMap<string, unknown>,
  policies: readonly StoredPolicy[],
  owner: string,
): Generator<undefined, Map<string, StoredPolicy | { readonly ambiguous: number }>> {
  const meant = new Map<string, StoredPolicy | { readonly ambiguous: number }>();
  const names = yield* fileNamesInSteps(policies, owner);
  const others = new Map<string, StoredPolicy[]>();
  for (const policy of policies) {
    yield;
    const name = names.get(policy.id);
    if (name !== undefined && files.has(name)) meant.set(name, policy);
    else if (policy.managed_as === null) {
      for (const possible of possibleNames(policy).filter((possible) => files.has(possible))) {
        const sharers = others.get(possible);
        if (sharers === undefined) others.set(possible, [policy]);
        else sharers.push(policy);
      }
    }
  }
  const claimed = new Set<string>();
  for (const file of [...files.keys()].sort()) {
    const [policy, ...more] = (others.get(file) ?? []).filter(({ id }) => !claimed.has(id));
    if (policy === undefined || meant.has(file)) continue;
    meant.set(file, more.length === 0 ? policy : { ambiguous: more.length + 1 });
    claimed.add(policy.id);
  }
  return meant;
}

function become(
  before: StoredPolicy | null,
  wanted: PolicyFile,
  file: string,
  { owner }: PlanRequest,
  { idFor, time }: PlanContext,
  targetIds: ReadonlyMap<string, string>,
): StoredPolicy {
  const { target, subjects, ...members } = wanted;
  const known = new Map(before?.subjects.map((subject) => [subjectKey(subject), subject]));
  return {
    ...members,
    id: before?.id ?? idFor(file),
    target_id: target === null ? null : (targetIds.get(target) ?? null),
    subjects: sortedSubjects(
      subjects.map((subject): PolicySubject => {
        const key = subjectKey(subject);
        return known.get(key) ?? { ...subject, id: idFor(`${file} ${key}`) };
      }),
    ),
    managed_as: managedAs(owner, file),
    drift_since: null,
    created_at: before?.created_at ?? time,
    updated_at: time,
  };
}

/** Returns the set after the changes, sorted by id. */
export function withChanges(policies: readonly StoredPolicy[], changes: readonly StoredChange[]): StoredPolicy[] {
  const set = new Map(policies.map((policy) => [policy.id, policy]));
  for (const { before, after } of changes) {
    if (before !== null) set.delete(before.id);
    if (after !== null) set.set(after.id, after);
  }
  return [...set.values()].sort((a, b) => compareText(a.id, b.id));
}

/**
 * Returns the changes that turn `from` into `to`: first creations, then updates, then deletions, each sorted by id. A different
 * time alone is not a change.
 */
export function changesBetween(from: readonly StoredPolicy[], to: readonly StoredPolicy[]): PolicyChange[] {
  const old = new Map(from.map((policy) => [policy.id, policy]));
  const kept = new Set(to.map(({ id }) => id));
  const created: PolicyChange[] = [];
  const updated: PolicyChange[] = [];
  for (const after of to) {
    const before = old.get(after.id) ?? null;
    if (before === null) created.push({ action: 'create', file: null, before, after });
    else if (changedMembers(before, after).length > 0) updated.push({ action: 'update', file: null, before, after });
  }
  const deleted = from
    .filter(({ id }) => !kept.has(id))
    .map((before): PolicyChange => ({ action: 'delete', file: null, before, after: null }));
  return [...created, ...updated, ...deleted];
}

const MEMBERS = [
  'name',
  'description',
  'target_id',
  'resource_type',
  'resource_pattern',
  'effect',
  'priority',
  'enabled',
  'subjects',
  'managed_as',
  'drift_since',
] as const;

/** Returns the members that differ; none if the policy is created or deleted. */
export function changedMembers(before: StoredPolicy | null, after: StoredPolicy | null): string[] {
  if (before === null || after === null) return [];
  const meaning = (policy: StoredPolicy, member: (typeof MEMBERS)[number]): string =>
    JSON.stringify(member === 'subjects' ? policy.subjects.map(subjectKey).sort() : policy[member]);
  return MEMBERS.filter((member) => meaning(before, member) !== meaning(after, member));
}

const compareText = (a: string, b: string): number => (a < b ? -1 : a > b ? 1 : 0);

/** Returns the set before the changes. */
export const setBefore = (candidate: readonly StoredPolicy[], changes: readonly PolicyChange[]): StoredPolicy[] =>
  withChanges(
    candidate,
    changes.map(({ before, after }) => ({ before: after, after: before })),
  );
