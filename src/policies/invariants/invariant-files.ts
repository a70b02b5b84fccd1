/** Invariants as files that the security team keeps in git: one invariant per file. Pure. */
import Joi from 'joi';
import { Document } from 'yaml';
import type { StoredPolicy } from '../../engine/compile/policy.ts';
import { TARGET_NAME } from '../../targets/target.ts';
import { possibleNames } from '../files/file.ts';
import {
  fileSubject,
  type PolicyFileError,
  readStrictYaml,
  readSubjects,
  type StrictYaml,
  subjectForm,
  type WrittenSubject,
  writeYaml,
} from '../files/yaml.ts';
import { timestamp } from '../schema.ts';
import {
  INVARIANT_LIMITS,
  type Invariant,
  type InvariantChange,
  type InvariantDocument,
  type InvariantState,
  invariantMembers,
  orderedException,
} from './invariant.ts';

/** An invariant that names targets, and its policies by owner and file, because ids differ between databases. */
export type InvariantFile = InvariantDocument;

interface Written extends Pick<InvariantDocument, 'name' | 'reason'> {
  enabled?: boolean;
  never: Pick<InvariantDocument['never'], 'resource_type'> & {
    subjects: WrittenSubject[];
    except?: { subjects?: WrittenSubject[]; targets?: string[] };
    targets?: string[] | null;
    resource_pattern?: string | null;
  };
  exceptions?: InvariantDocument['exceptions'];
}

const listOf = (subject: Joi.Schema) => Joi.array().items(subject).max(INVARIANT_LIMITS.subjects);
const targets = Joi.array()
  .items(Joi.string().pattern(TARGET_NAME).messages({ 'string.pattern.base': 'must be the name of a target' }))
  .max(INVARIANT_LIMITS.targets);
const { name, reason, resource_type, resource_pattern, enabled, expires_at } = invariantMembers;

export const invariantFileForm = Joi.object<Written>({
  name,
  reason,
  enabled: enabled.meta({ default: true }),
  never: Joi.object({
    subjects: listOf(fileSubject).min(1).required().description('The invariant covers callers that match one of these subjects.'),
    except: Joi.object({
      subjects: listOf(fileSubject.invalid('everyone').messages({ 'any.invalid': 'must not be everyone' })).description(
        'The invariant does not cover callers that match one of these subjects.',
      ),
      targets: targets.description('Names of targets that the invariant does not cover.'),
    }),
    targets: targets.min(1).allow(null).description('Names. Default: every target, also those that are created later.'),
    resource_type,
    resource_pattern,
  }).required(),
  exceptions: Joi.array()
    .items(
      Joi.object({
        policy: Joi.string()
          .required()
          .description('The owner of a policy and its file without .yaml, such as payments/deploy; or the id of the policy.'),
        reason,
        expires_at,
      }),
    )
    .unique('policy')
    .max(INVARIANT_LIMITS.exceptions)
    .messages({ 'array.unique': 'names the same policy as an earlier exception' }),
})
  .required()
  .messages({
    'object.base': 'must be an invariant: name, reason, never',
    'object.unknown': 'is not a key of an invariant',
  });

type Location = Pick<PolicyFileError, 'line' | 'column'>;

/** Plain data, so that threads can send it to each other. */
export interface ParsedInvariantFile {
  readonly file: string;
  readonly invariant: InvariantFile;
  /** The positions of all members and elements, by their paths such as `never.targets.0`. The file itself has the path ''. */
  readonly locations: Readonly<Record<string, Location>>;
}

/** Returns an error at the position of this path, or of what is around it. */
export function errorAt({ file, locations }: ParsedInvariantFile, path: string, message: string): PolicyFileError {
  for (let around = path; ; around = around.slice(0, Math.max(0, around.lastIndexOf('.')))) {
    const at = Object.hasOwn(locations, around) ? locations[around] : undefined;
    if (at !== undefined) return { file, line: at.line, column: at.column, message };
    if (around === '') return { file, line: 1, column: 1, message };
  }
}

/** As strict as `parsePolicyFile`. */
export function parseInvariantFile(
  text: string,
  file: string,
): ParsedInvariantFile | { readonly errors: readonly PolicyFileError[] } {
  const read = readStrictYaml(text, file, invariantFileForm, 'only one invariant per file is allowed');
  if ('errors' in read) return read;
  const { name, reason, never, enabled = true } = read.value;
  const exceptions = (read.value.exceptions ?? []).map(orderedException);
  const { subjects, except = {}, targets = null, resource_type, resource_pattern = null } = never;
  const ready: InvariantDocument['never'] = {
    subjects: readSubjects(subjects),
    except: { subjects: readSubjects(except.subjects ?? []), targets: except.targets ?? [] },
    ...{ targets, resource_type, resource_pattern },
  };
  return { file, invariant: { name, reason, never: ready, exceptions, enabled }, locations: locationsOf(read) };
}

function locationsOf({ value, errorAt }: StrictYaml<Written>): ParsedInvariantFile['locations'] {
  const locations: Record<string, Location> = {};
  const add = (part: unknown, path: readonly (string | number)[]): void => {
    const { line, column } = errorAt(path, '');
    locations[path.join('.')] = { line, column };
    if (Array.isArray(part)) for (const [at, element] of part.entries()) add(element, [...path, at]);
    else if (typeof part === 'object' && part !== null)
      for (const [key, member] of Object.entries(part)) add(member, [...path, key]);
  };
  add(value, []);
  return locations;
}

/** Returns the names of the targets. */
export const targetsIn = ({ never }: InvariantFile): readonly string[] => [...(never.targets ?? []), ...never.except.targets];

/** Returns the canonical file, without members at their default; or `previous` if it already describes the invariant. */
export function formatInvariantFile(invariant: InvariantFile, previous: string | null = null): string {
  if (previous !== null) {
    const parsed = parseInvariantFile(previous, '');
    if ('invariant' in parsed && isSame(parsed.invariant, invariant)) return previous;
  }
  const { name, reason, enabled, never, exceptions } = invariant;
  const { except, targets, resource_type, resource_pattern } = never;
  const leftOut = {
    ...(except.subjects.length === 0 ? {} : { subjects: except.subjects.map(subjectForm) }),
    ...(except.targets.length === 0 ? {} : { targets: except.targets }),
  };
  const written = {
    ...{ name, reason },
    ...(enabled ? {} : { enabled }),
    never: {
      subjects: never.subjects.map(subjectForm),
      ...(Object.keys(leftOut).length === 0 ? {} : { except: leftOut }),
      ...(targets === null ? {} : { targets }),
      resource_type,
      ...(resource_pattern === null ? {} : { resource_pattern }),
    },
    ...(exceptions.length === 0
      ? {}
      : { exceptions: exceptions.map((exception) => ({ ...exception, expires_at: timestamp(exception.expires_at) })) }),
  };
  return writeYaml(new Document(written, { aliasDuplicateObjects: false }));
}

const MEMBERS = ['reason', 'enabled', 'never', 'exceptions'] as const;

/** Returns the members that differ. The name is the same: it says which invariant a file describes. */
const changedMembers = (a: InvariantDocument, b: InvariantDocument): string[] =>
  MEMBERS.filter((member) => JSON.stringify(a[member]) !== JSON.stringify(b[member]));

const isSame = (a: InvariantDocument, b: InvariantDocument): boolean => a.name === b.name && changedMembers(a, b).length === 0;

/** The same invariant with different references to targets and policies. */
function renamed<T extends InvariantDocument>(
  invariant: T,
  targetOf: (target: string, path: string) => string,
  policyOf: (policy: string, path: string) => string,
): T {
  const { never, exceptions } = invariant;
  const each = (targets: readonly string[], path: string): string[] =>
    targets.map((target, i) => targetOf(target, `${path}.${i}`));
  return {
    ...invariant,
    never: {
      ...never,
      except: { ...never.except, targets: each(never.except.targets, 'never.except.targets') },
      targets: never.targets && each(never.targets, 'never.targets'),
    },
    exceptions: exceptions.map((exception, i) => ({
      ...exception,
      policy: policyOf(exception.policy, `exceptions.${i}.policy`),
    })),
  };
}

/**
 * Returns what the file says without a gateway, with the file as id. An exception for a policy that is not among `policies` keeps the
 * name of the policy.
 */
export function offlineInvariant(
  { file, invariant }: ParsedInvariantFile,
  policies: readonly StoredPolicy[],
  targetId: (name: string) => string,
): Invariant {
  const ids = new Map(policies.map((policy) => [policyCalled(policy), policy.id]));
  const known = renamed(invariant, targetId, (called) => ids.get(called) ?? called);
  return { ...known, id: file, version: 1, created_at: 0, updated_at: 0 };
}

const policyCalled = ({ managed_as, id }: StoredPolicy): string => managed_as ?? id;

export function fileOf(invariant: Invariant, { targets, policies }: InvariantState): InvariantFile {
  const names = new Map(targets.map(({ id, name }) => [id, name]));
  const called = new Map(policies.map((policy) => [policy.id, policyCalled(policy)]));
  const { name, reason, never, exceptions, enabled } = renamed(
    invariant,
    (id) => names.get(id) ?? id,
    (id) => called.get(id) ?? id,
  );
  return { name, reason, never, exceptions, enabled };
}

/** Returns the files of all invariants by file name. */
export function exported(state: InvariantState): Map<string, string> {
  const files = new Map<string, string>();
  for (const invariant of state.invariants) {
    const file = possibleNames(invariant).find((name) => !files.has(name)) ?? `${invariant.id}.yaml`;
    files.set(file, formatInvariantFile(fileOf(invariant, state)));
  }
  return files;
}

export interface InvariantFileChange extends InvariantChange {
  readonly action: 'create' | 'update' | 'delete';
  /** null: the file is missing. */
  readonly file: string | null;
  readonly members: readonly string[];
}

export interface InvariantPlan {
  readonly changes: readonly InvariantFileChange[];
  readonly unchanged: number;
  /** The names of invariants without a file. They stay, because the request does not prune. */
  readonly left: readonly string[];
}

/** `idFor` returns the id of a new invariant by its file. A file describes the invariant that has its name. */
export function planInvariants(
  files: readonly ParsedInvariantFile[],
  state: InvariantState,
  { prune, idFor, time }: { readonly prune: boolean; readonly idFor: (file: string) => string; readonly time: number },
): InvariantPlan | { readonly errors: readonly PolicyFileError[] } {
  const targetIds = new Map(state.targets.map(({ id, name }) => [name, id]));
  const policyIds = new Map(
    state.policies.flatMap((policy) => [policy.id, policyCalled(policy)].map((name) => [name, policy.id])),
  );
  const byName = new Map(state.invariants.map((invariant) => [invariant.name, invariant]));
  const errors: PolicyFileError[] = [];
  const changes: InvariantFileChange[] = [];
  const seen = new Map<string, string>();
  let unchanged = 0;
  for (const parsed of files) {
    const { file, invariant: written } = parsed;
    const found =
      (ids: ReadonlyMap<string, string>, what: string) =>
      (name: string, path: string): string => {
        const id = ids.get(name);
        if (id === undefined) errors.push(errorAt(parsed, path, `${path} is ${name}, but no ${what}`));
        return id ?? name;
      };
    const wanted = renamed(
      written,
      found(targetIds, 'target has this name'),
      found(policyIds, 'policy has this owner and file, or this id. Apply the policy first, with enabled: false'),
    );
    const other = seen.get(written.name);
    if (other !== undefined) errors.push(errorAt(parsed, 'name', `name is also the name in ${other}`));
    seen.set(written.name, file);
    const before = byName.get(written.name) ?? null;
    const members = before === null ? [] : changedMembers(before, wanted);
    if (before !== null && members.length === 0) {
      unchanged++;
      continue;
    }
    const after: Invariant =
      before === null
        ? { ...wanted, id: idFor(file), version: 1, created_at: time, updated_at: time }
        : { ...before, ...wanted, version: before.version + 1, updated_at: time };
    changes.push({ action: before === null ? 'create' : 'update', file, members, before, after });
  }
  if (errors.length > 0) return { errors };
  const extra = state.invariants.filter(({ name }) => !seen.has(name));
  if (prune) for (const before of extra) changes.push({ action: 'delete', file: null, members: [], before, after: null });
  return { changes, unchanged, left: prune ? [] : extra.map(({ name }) => name) };
}
