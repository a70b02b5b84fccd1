/** The manifest of a folder of policies, and what the options of a command say about it. */
import { join } from 'node:path';
import { MANIFEST_NAME } from '../../policies/files/file.ts';
import { DEFAULT_TESTS, type Manifest, parseManifest } from '../../policies/files/manifest.ts';
import { describePolicyFileError } from '../../policies/files/yaml.ts';
import { CommandError, type Given, UsageError } from '../command.ts';
import { readManifestText } from './policy-folder.ts';

export const dirOf = (given: Given): string => given.text('dir') ?? 'policies';

/** Returns null if the folder has no manifest. Throws CommandError if the manifest is wrong. */
export function manifestIn(dir: string): Manifest | null {
  const text = readManifestText(dir);
  if (text === null) return null;
  const manifest = parseManifest(text, join(dir, MANIFEST_NAME));
  if ('errors' in manifest) throw new CommandError(manifest.errors.map(describePolicyFileError).join('\n'), 'invalid_file');
  return manifest;
}

const pathOf = (given: Given): string => join(dirOf(given), MANIFEST_NAME);

/** Returns the owner of the files; null: it is not named. Throws UsageError if two are named. */
export function namedOwner(given: Given): string | null {
  const option = given.text('owner');
  const owner = manifestIn(dirOf(given))?.owner ?? option;
  if (option !== undefined && option !== owner) {
    throw new UsageError(
      `${pathOf(given)} names the owner ${owner}, and --owner names ${option}: use one of them, or correct the other`,
    );
  }
  return owner ?? null;
}

/** Like `namedOwner`, but throws UsageError if no owner is named. */
export function ownerOf(given: Given): string {
  const owner = namedOwner(given);
  if (owner !== null) return owner;
  throw new UsageError(`the owner of the files is not named: write "owner: NAME" into ${pathOf(given)}, or pass --owner`);
}

export const prunes = (given: Given): boolean => given.flag('prune') || manifestIn(dirOf(given))?.prune === true;

/** Returns the folder of the tests. */
export const testDirOf = (given: Given): string => {
  const dir = dirOf(given);
  return given.text('tests') ?? join(dir, manifestIn(dir)?.tests ?? DEFAULT_TESTS);
};
