/** Reads and writes the policy files of a folder, and nothing outside it. */
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { basename, join, resolve, sep } from 'node:path';
import { TextDecoder } from 'node:util';
import { FILE_NAME, MANIFEST_NAME } from '../../policies/files/file.ts';
import { describePolicyFileError } from '../../policies/files/yaml.ts';
import { CommandError } from '../command.ts';

const MAX_BYTES = 1024 * 1024;

/**
 * Returns the texts of the policy files, sorted by name. A file with a YAML ending is returned or is an error, because a policy
 * that is silently left out may be the one that denies. A subfolder with such files is an error, too, except `apart`, which is
 * read separately. Names that begin with a dot, and the manifest, are ignored.
 */
export function readPolicyFolder(dir: string, apart: string | null = null): Map<string, string> {
  const all = namesIn(dir).filter((name) => !name.startsWith('.'));
  const names = all.filter((name) => isYaml(name) && name !== MANIFEST_NAME);
  const root = realpathSync(dir);
  const errors = all
    .filter((name) => !isYaml(name) && (apart === null || resolve(dir, name) !== resolve(apart)) && hasYaml(join(root, name)))
    .map((name) => `${join(dir, name)} is a folder with YAML files, and subfolders are not read: move its files into ${dir}`);
  const texts = new Map<string, string>();
  for (const name of names.sort()) {
    const read = readText(root, join(root, name));
    if (typeof read === 'string') texts.set(name, read);
    else errors.push(describePolicyFileError({ file: join(dir, name), line: read.line, column: 1, message: read.problem }));
  }
  if (errors.length > 0) throw new CommandError(errors.join('\n'), 'invalid_file');
  return texts;
}

/** Returns null if the folder has no manifest, or does not exist. */
export function readManifestText(dir: string): string | null {
  const path = join(dir, MANIFEST_NAME);
  if (!existsSync(dir) || !namesIn(dir).includes(MANIFEST_NAME)) return null;
  const read = readText(realpathSync(dir), path);
  if (typeof read === 'string') return read;
  throw new CommandError(
    describePolicyFileError({ file: path, line: read.line, column: 1, message: read.problem }),
    'invalid_file',
  );
}

const isYaml = (name: string): boolean => /\.ya?ml$/i.test(name);

/**
 * Whether the path is a folder with YAML files at any depth, directly or through links. Throws CommandError if that cannot be
 * told. `seen`: the real paths that were looked at, because links may lead in circles.
 */
function hasYaml(path: string, seen: Set<string> = new Set()): boolean {
  try {
    if (statSync(path, { throwIfNoEntry: false })?.isDirectory() !== true) return false;
    const real = realpathSync(path);
    if (seen.has(real)) return false;
    seen.add(real);
    // Not `recursive`: in newer versions of Node it follows links, also in circles.
    return readdirSync(path).some((name) => isYaml(name) || hasYaml(join(path, name), seen));
  } catch (error) {
    if (error instanceof CommandError) throw error;
    throw new CommandError(
      `${path} cannot be read (${codeOf(error)}), and may be a folder with policies: make it readable, or remove it`,
      'invalid_file',
    );
  }
}

function namesIn(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch (error) {
    throw new CommandError(
      `${dir} cannot be read (${codeOf(error)}): --dir must name the folder of the policy files`,
      'no_folder',
    );
  }
}

const codeOf = (error: unknown): string => (error as NodeJS.ErrnoException).code ?? String(error);

function readText(root: string, path: string): string | { readonly problem: string; readonly line: number } {
  try {
    // In a mounted folder every file may be a link, but only to a file inside it.
    if (!realpathSync(path).startsWith(root + sep)) return { problem: 'is a link that leads out of the folder', line: 1 };
    const stat = statSync(path);
    if (!stat.isFile()) return { problem: 'is not a file', line: 1 };
    if (stat.size > MAX_BYTES) return { problem: `has more than ${MAX_BYTES} bytes`, line: 1 };
    return decoded(readFileSync(path));
  } catch (error) {
    return { problem: `cannot be read (${codeOf(error)})`, line: 1 };
  }
}

function decoded(bytes: Buffer): string | { readonly problem: string; readonly line: number } {
  const decoder = new TextDecoder('utf-8', { fatal: true });
  try {
    return decoder.decode(bytes);
  } catch {
    const lines = bytes.toString('latin1').split('\n');
    const isText = (line: string): boolean => {
      try {
        decoder.decode(Buffer.from(line, 'latin1'));
        return true;
      } catch {
        return false;
      }
    };
    return { problem: 'is not UTF-8', line: lines.findIndex((line) => !isText(line)) + 1 };
  }
}

/** Creates the folder if it is missing. Throws CommandError if the name is not one of a policy file, if it is a link, or if writing fails. */
export const writePolicyFile = (dir: string, name: string, text: string): void => write(dir, checked(dir, name), text);

export const writeManifest = (dir: string, owner: string): void => write(dir, join(dir, MANIFEST_NAME), `owner: ${owner}\n`);

function write(dir: string, path: string, text: string): void {
  changing(path, () => mkdirSync(dir, { recursive: true }));
  const there = lstatSync(path, { throwIfNoEntry: false });
  if (there?.isSymbolicLink()) {
    throw new CommandError(`${path} is a link, so no file can be written there: remove the link`, 'invalid_file');
  }
  // A file that is cut off, for example by a full disk, can still be a policy: one with fewer subjects. So only whole files get the name.
  const whole = join(dir, `.${basename(path)}.${process.pid}`);
  try {
    changing(path, () => {
      writeFileSync(whole, text);
      // The umask applies to a new file only.
      if (there !== undefined) chmodSync(whole, there.mode & 0o777);
      renameSync(whole, path);
    });
  } finally {
    rmSync(whole, { force: true });
  }
}

/** Throws CommandError unless this is an empty folder, or does not exist. */
export function requireEmpty(dir: string): void {
  if (!existsSync(dir) || (statSync(dir).isDirectory() && namesIn(dir).length === 0)) return;
  throw new CommandError(`${dir} is not an empty folder: pass an empty folder, or one that does not exist`, 'no_folder');
}

export function removePolicyFile(dir: string, name: string): void {
  const path = checked(dir, name);
  changing(path, () => rmSync(path));
}

/** Reports a failed write as an error of the command: the disk may be full, or the folder may belong to a different user. */
export function changing(path: string, change: () => void, code = 'cannot_write'): void {
  try {
    change();
  } catch (error) {
    throw new CommandError(`${path} cannot be written: ${(error as Error).message}`, code);
  }
}

function checked(dir: string, name: string): string {
  if (!FILE_NAME.test(name))
    throw new CommandError(`the gateway sent a file name that is not allowed: ${JSON.stringify(name)}`, 'no_gateway');
  return join(dir, name);
}
