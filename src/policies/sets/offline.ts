/** The policy set that a folder of files makes without a gateway, for tests and lint. Pure. */
import { createHash } from 'node:crypto';
import { checkPolicySet, type PatternCheck } from '../../engine/compile/pattern.ts';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { DEFAULT_OWNER, FILE_NAME, FILE_NAME_RULE } from '../files/file.ts';
import { errorAt, type ParsedPolicyFile, type PolicyFileError, parsePolicyFile } from '../files/yaml.ts';
import { planFiles } from './plan.ts';

export interface OfflineSet {
  readonly policies: readonly StoredPolicy[];
  /** The targets that the files name, and `targets`. */
  readonly targets: readonly { readonly id: string; readonly name: string }[];
}

/** Returns the set of these files. Refuses what a gateway refuses, except unknown target names. The files determine the ids. */
export function offlineSet(
  texts: ReadonlyMap<string, string>,
  targets: Iterable<string>,
  checkPattern: PatternCheck,
): OfflineSet | { readonly errors: readonly PolicyFileError[] } {
  const errors: PolicyFileError[] = [];
  const files = new Map<string, ParsedPolicyFile>();
  for (const [file, text] of texts) {
    const parsed: ReturnType<typeof parsePolicyFile> = FILE_NAME.test(file)
      ? parsePolicyFile(text, file)
      : { errors: [{ file, line: 1, column: 1, message: FILE_NAME_RULE }] };
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
  const known = [...new Set([...named, ...targets])].sort().map((name) => ({ id: idFor(`target ${name}`), name }));
  const request = { files, owner: DEFAULT_OWNER, prune: false, adopt: false };
  const plan = planFiles(request, { policies: [], targets: known, idFor, time: 0 });
  if ('errors' in plan) return plan;
  const fileOf = new Map(plan.changes.map(({ file, after }) => [after?.id, files.get(file ?? '')]));
  for (const { message, policyIds } of checkPolicySet(plan.candidate)) {
    const parsed = fileOf.get(policyIds[0]);
    if (parsed !== undefined) errors.push(errorAt(parsed, 'resource_pattern', `exceeds a limit of the policy set. ${message}`));
  }
  return errors.length > 0 ? { errors } : { policies: plan.candidate, targets: known };
}

/** Returns an id in the form of a UUID. */
function idFor(what: string): string {
  const hex = createHash('sha256').update(what).digest('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-8${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20, 32)}`;
}
