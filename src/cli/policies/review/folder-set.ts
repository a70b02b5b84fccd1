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
import { offlineSet } from '../../../policies/sets/offline.ts';
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

const USER_IDS = /[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}/g;

/** `cases`: tests that will run on the set. Throws CommandError with the positions of the errors. */
export async function folderSet(given: Given, say: Say, cases: readonly TestCase[] = []) {
  const module = await loadPolicyModule();
  const texts = policyFiles(given);
  const context = contextIn(given, say);
  const invariants = invariantsIn(given, module.checkPattern);
  const users = [...[...texts.values()].flatMap((text) => text.match(USER_IDS) ?? []), ...cases.map(({ facts }) => facts.sub)];
  const { owner = DEFAULT_OWNER, others, targets } = context === null ? NO_OTHERS : surroundingsOf(context, users);
  const said = namedOwner(given) ?? owner;
  if (context !== null && said !== owner)
    throw new UsageError(`the owner is ${said}, but the context leaves out the policies of ${owner}: both must be the same`);
  const named = [...cases.map(({ target }) => target), ...invariants.flatMap(({ invariant }) => targetsIn(invariant))];
  const around = { owner: said, others, targets: [...targets, ...named] };
  const set = offlineSet(texts, around, module.checkPattern);
  if ('errors' in set) throw refused(dirOf(given), set.errors);
  const about = context && { revision: context.revision, as_of: context.as_of };
  return { ...set, module, texts, invariants, context: about };
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
