/** The policy set that a folder of files makes without a gateway, for tests and lint. Pure. */
import { createHash } from 'node:crypto';
import type { PatternCheck } from '../../engine/compile/pattern.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { checkPolicySet } from '../../engine/compile/set-limits.ts';
import { FILE_NAME, FILE_NAME_RULE } from '../files/file.ts';
import { errorAt, type ParsedPolicyFile, type PolicyFileError, type PolicyFileResult, parsePolicyFile } from '../files/yaml.ts';
import { planFiles } from './plan.ts';

export interface OfflineSet {
  /** The owner of the files. */
  readonly owner: string;
  readonly policies: readonly StoredPolicy[];
  /** The targets that the files name, and `targets`. */
  readonly targets: readonly { readonly id: string; readonly name: string }[];
  /** The files by the ids of their policies. */
  readonly files: ReadonlyMap<string, ParsedPolicyFile>;
  /** The policies of other owners by id. */
  readonly others: ReadonlyMap<string, OtherPolicy>;
}

/** A policy of a different owner. Its file is elsewhere. */
export interface OtherPolicy extends StoredPolicy {
  readonly owner: string | null;
}

/** What a folder does not say of its policies. */
export interface Surroundings {
  readonly owner: string;
  /** With targets as `targetId` makes them. */
  readonly others: readonly OtherPolicy[];
  /** Names of targets that the files need not name. */
  readonly targets: Iterable<string>;
}

/** What each file of a folder says. */
export type ReadFiles = ReadonlyMap<string, PolicyFileResult>;

export const readFiles = (texts: ReadonlyMap<string, string>): ReadFiles =>
  new Map(
    [...texts].map(([file, text]) => [
      file,
      FILE_NAME.test(file) ? parsePolicyFile(text, file) : { errors: [{ file, line: 1, column: 1, message: FILE_NAME_RULE }] },
    ]),
  );

/** Returns the set of these files. Refuses what a gateway refuses, except unknown target names. The files determine the ids. */
export function offlineSet(
  read: ReadFiles,
  { owner, others, targets }: Surroundings,
  checkPattern: PatternCheck,
): OfflineSet | { readonly errors: readonly PolicyFileError[] } {
  const errors: PolicyFileError[] = [];
  const files = new Map<string, ParsedPolicyFile>();
  for (const [file, parsed] of read) {
    if ('errors' in parsed) {
      errors.push(...parsed.errors);
      continue;
    }
    files.set(file, parsed);
    const { resource_pattern: pattern } = parsed.policy;
    const refusal = pattern === null ? null : checkPattern(pattern);
    if (refusal !== null) errors.push(errorAt(parsed, 'resource_pattern', `is refused. ${refusal}`));
  }
  const named = [...files.values()].flatMap(({ policy }) => policy.target ?? []);
  const known = [...new Set([...named, ...targets])].sort().map((name) => ({ id: targetId(name), name }));
  const plan = planFiles({ files, owner, prune: false, adopt: false }, { policies: [], targets: known, idFor, time: 0 });
  if ('errors' in plan) return plan;
  const fileOf = new Map<string, ParsedPolicyFile>();
  for (const { file, after } of plan.changes) {
    const parsed = files.get(file ?? '');
    if (after !== null && parsed !== undefined) fileOf.set(after.id, parsed);
  }
  const policies = [...plan.candidate, ...others].sort((a, b) => (a.id < b.id ? -1 : 1));
  for (const { message, member, policyIds } of checkPolicySet(policies)) {
    const parsed = policyIds.map((id) => fileOf.get(id)).find((found) => found !== undefined);
    if (parsed !== undefined) errors.push(errorAt(parsed, member, `exceeds a limit of the policy set. ${message}`));
  }
  if (errors.length > 0) return { errors };
  return { owner, policies, targets: known, files: fileOf, others: new Map(others.map((other) => [other.id, other])) };
}

/** Returns the id of a target that only its name tells. */
export const targetId = (name: string): string => idFor(`target ${name}`);

/** Returns an id in the form of a UUID. */
function idFor(what: string): string {
  const hex = createHash('sha256').update(what).digest('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}
