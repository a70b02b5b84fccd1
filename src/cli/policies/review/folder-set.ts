/** The policy set of a folder, read without a gateway. */
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { type PatternCheck, stateProblem } from '../../../engine/compile/pattern.ts';
import { loadPolicyModule } from '../../../engine/engine.ts';
import { DEFAULT_OWNER } from '../../../policies/files/file.ts';
import type { TestCase } from '../../../policies/files/test-file.ts';
import { describePolicyFileError, type PolicyFileError } from '../../../policies/files/yaml.ts';
import {
  errorAt,
  type ParsedInvariantFile,
  parseInvariantFile,
  targetsIn,
} from '../../../policies/invariants/invariant-files.ts';
import { type PolicyContext, readContext, surroundingsOf } from '../../../policies/review/context.ts';
import { offlineSet, readFiles } from '../../../policies/sets/offline.ts';
import type { Say } from '../../client.ts';
import { CommandError, type Given, type Option, UsageError } from '../../command.ts';
import { readText, readWhole } from '../../read-text.ts';
import { dirOf, namedOwner } from '../manifest.ts';
import { readPolicyFolder } from '../policy-folder.ts';
import { policyFiles } from '../policy-set.ts';

export const CONTEXT: Option = {
  value: 'FILE',
  help: 'with the policies of other owners in this file, which the command context writes',
};

export const INVARIANTS: Option = { value: 'PATH', help: 'also checks the invariants in this file or folder' };

export type FolderSet = Awaited<ReturnType<typeof folderSet>>;

type Folder = ReturnType<typeof readFolder>;

export function readFolder(given: Given) {
  const texts = policyFiles(given);
  return { texts, read: readFiles(texts) };
}

interface About {
  /** Tests that will run on the set. */
  readonly cases?: readonly TestCase[];
  readonly folder?: Folder;
  /** The folder with which the set will be compared. A user that one of them names must be the same user in both sets. */
  readonly other?: Folder;
}

/** Throws CommandError with the positions of the errors. */
export async function folderSet(given: Given, say: Say, { cases = [], folder = readFolder(given), other }: About = {}) {
  const module = await loadPolicyModule();
  const context = contextIn(given, say);
  const invariants = invariantsIn(given, module.checkPattern);
  const policies = [folder, ...(other === undefined ? [] : [other])].flatMap(({ read }) => [...read.values()]);
  const subjects = [
    ...policies.flatMap((file) => ('errors' in file ? [] : file.policy.subjects)),
    ...invariants.flatMap(({ invariant: { never } }) => [...never.subjects, ...never.except.subjects]),
  ];
  const namedUsers = subjects.flatMap(({ subject_type, subject_value }) =>
    subject_type === 'user' ? (subject_value ?? []) : [],
  );
  const users = [...namedUsers, ...cases.map(({ facts }) => facts.sub)];
  const { owner = DEFAULT_OWNER, others, targets } = context === null ? NO_OTHERS : surroundingsOf(context, users);
  const said = namedOwner(given) ?? owner;
  if (context !== null && said !== owner)
    throw new UsageError(`the owner is ${said}, but the context leaves out the policies of ${owner}: both must be the same`);
  const namedTargets = [...cases.map(({ target }) => target), ...invariants.flatMap(({ invariant }) => targetsIn(invariant))];
  const around = { owner: said, others, targets: [...targets, ...namedTargets] };
  const set = offlineSet(folder.read, around, module.checkPattern);
  if ('errors' in set) throw refused(dirOf(given), set.errors);
  const about = context && { revision: context.revision, as_of: context.as_of };
  return { ...set, module, texts: folder.texts, invariants, context: about };
}

const NO_OTHERS = { owner: undefined, others: [], targets: [] };
const DAY_MS = 24 * 60 * 60 * 1000;
/** The command warns if the context is older. */
const CONTEXT_DAYS = 7;

function contextIn(given: Given, say: Say): PolicyContext | null {
  const file = given.text('context');
  if (file === undefined) return null;
  const refuse = (why: string): CommandError =>
    new CommandError(`${file} cannot be read: ${why}. Write it again with portcullis policies context`, 'invalid_file');
  let text: string;
  try {
    text = readWhole(file);
  } catch (error) {
    throw refuse((error as Error).message);
  }
  const context = readContext(text);
  if (typeof context === 'string') throw refuse(context);
  const { revision, as_of } = context;
  if (Date.parse(as_of) < Date.now() - (CONTEXT_DAYS + 1) * DAY_MS)
    say(`${file} has the policies of other owners at revision ${revision}, on ${as_of}: write it again with policies context`);
  return context;
}

function invariantsIn(given: Given, checkPattern: PatternCheck): readonly ParsedInvariantFile[] {
  const path = given.text('invariants');
  if (path === undefined) return [];
  const isFolder = statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
  const texts = isFolder ? [...readPolicyFolder(path)].map(([file, text]) => [join(path, file), text]) : [[path, readText(path)]];
  if (texts.length === 0)
    throw new CommandError(`${path} contains no invariant files (*.yaml): set --invariants to their folder`, 'no_folder');
  const invariants: ParsedInvariantFile[] = [];
  const errors: PolicyFileError[] = [];
  for (const [file = '', text = ''] of texts) {
    const parsed = parseInvariantFile(text, file);
    if ('errors' in parsed) {
      errors.push(...parsed.errors);
      continue;
    }
    invariants.push(parsed);
    const { resource_pattern: pattern } = parsed.invariant.never;
    const refusal = pattern === null ? null : (checkPattern(pattern) ?? stateProblem(pattern));
    if (refusal !== null) errors.push(errorAt(parsed, 'never.resource_pattern', `never.resource_pattern ${refusal}`));
  }
  if (errors.length > 0) throw refused('', errors);
  return invariants;
}

export function refused(dir: string, errors: readonly PolicyFileError[]): CommandError {
  const texts = errors.map((error) => describePolicyFileError({ ...error, file: join(dir, error.file) }));
  const fields = errors.map(({ file, line, column, message }) => ({ path: file, message, file, line, column }));
  return new CommandError(texts.join('\n'), 'invalid_file', fields);
}
