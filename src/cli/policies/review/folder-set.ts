/** The policy set of a folder, read without a gateway. */
import { join } from 'node:path';
import { loadPolicyModule } from '../../../engine/engine.ts';
import { DEFAULT_OWNER } from '../../../policies/files/file.ts';
import { describePolicyFileError, type PolicyFileError } from '../../../policies/files/yaml.ts';
import { offlineSet } from '../../../policies/sets/offline.ts';
import { CommandError, type Given } from '../../command.ts';
import { dirOf, policyFiles } from '../policy-set.ts';

/** `targets`: names of targets that the files need not name. Throws CommandError with the positions of the errors. */
export async function folderSet(given: Given, { targets = [] }: { readonly targets?: Iterable<string> } = {}) {
  const module = await loadPolicyModule();
  const texts = policyFiles(given);
  const set = offlineSet(texts, { owner: given.text('owner') ?? DEFAULT_OWNER, others: [], targets }, module.checkPattern);
  if ('errors' in set) throw refused(dirOf(given), set.errors);
  return { module, texts, ...set };
}

export function refused(dir: string, errors: readonly PolicyFileError[]): CommandError {
  const texts = errors.map((error) => describePolicyFileError({ ...error, file: join(dir, error.file) }));
  const fields = errors.map(({ file, line, column, message }) => ({ path: file, message, file, line, column }));
  return new CommandError(texts.join('\n'), 'invalid_file', fields);
}
