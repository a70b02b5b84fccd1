/** Reads and replaces a settings file of a different program, without losing it. */
import { randomBytes } from 'node:crypto';
import {
  closeSync,
  constants,
  existsSync,
  fchmodSync,
  fstatSync,
  fsyncSync,
  lstatSync,
  mkdirSync,
  openSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join, relative, resolve } from 'node:path';
import { CommandError } from '../command.ts';
import { changing } from '../policies/policy-folder.ts';

export interface SettingsFile {
  readonly path: string;
  /** null: the file does not exist. */
  readonly text: string | null;
  readonly mode: number;
}

const MAX_BYTES = 16 * 1024 * 1024;
const NEW_MODE = 0o600;

/**
 * `within`: a folder that the file must not leave through links; null: any folder. Throws CommandError if the file is a link, no plain file,
 * or belongs to a different user.
 */
export function readSettings(path: string, within: string | null): SettingsFile {
  const whole = resolve(path);
  let opened: number | null = null;
  try {
    if (within !== null) refuseLeaving(whole, within);
    const there = lstatSync(whole, { throwIfNoEntry: false });
    if (there === undefined) return { path: whole, text: null, mode: NEW_MODE };
    if (there.isSymbolicLink())
      throw new CommandError(`${whole} is a link, so nothing was written: edit the file to which it leads`, 'invalid_file');
    // The file may have been replaced by a link or a pipe since.
    opened = openSync(whole, constants.O_RDONLY | (constants.O_NOFOLLOW ?? 0) | (constants.O_NONBLOCK ?? 0));
    const { mode, uid, size } = fstatSync(opened);
    if ((mode & constants.S_IFMT) !== constants.S_IFREG || size > MAX_BYTES)
      throw new CommandError(`${whole} is not a settings file`, 'invalid_file');
    if (process.getuid !== undefined && uid !== process.getuid())
      throw new CommandError(`${whole} belongs to a different user, so nothing was written`, 'invalid_file');
    return {
      path: whole,
      text: new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(readFileSync(opened)),
      mode: mode & 0o777,
    };
  } catch (error) {
    if (error instanceof CommandError) throw error;
    throw new CommandError(
      `${whole} cannot be read as text (${(error as NodeJS.ErrnoException).code ?? 'not UTF-8'})`,
      'invalid_file',
    );
  } finally {
    if (opened !== null) closeSync(opened);
  }
}

/** A project may come from somebody else, who could have made its folders links to other places. */
function refuseLeaving(path: string, within: string): void {
  let folder = dirname(path);
  while (lstatSync(folder, { throwIfNoEntry: false }) === undefined) folder = dirname(folder);
  // A link whose place does not exist leads nowhere that can be compared.
  if (!existsSync(folder) || relative(realpathSync(within), realpathSync(folder)).startsWith('..'))
    throw new CommandError(`${folder} leads out of this folder, so nothing was written`, 'invalid_file');
}

/**
 * Replaces the file as a whole, with the mode that it had. A copy of the file as it was stays beside it, with the same mode. Returns the path
 * of the copy; null: there was no file.
 */
export function replaceSettings({ path, text, mode }: SettingsFile, next: string): string | null {
  const copy =
    text === null ? null : `${path}.${new Date().toISOString().replace(/[-:]|\.\d+/g, '')}-${randomBytes(2).toString('hex')}.bak`;
  changing(path, () => {
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
    if (copy !== null) writeNew(copy, text ?? '', mode);
    const made = join(dirname(path), `.${basename(path)}.${randomBytes(6).toString('hex')}`);
    try {
      writeNew(made, next, mode);
      renameSync(made, path);
    } catch (error) {
      rmSync(made, { force: true });
      throw error;
    }
  });
  return copy;
}

function writeNew(path: string, text: string, mode: number): void {
  const opened = openSync(path, 'wx', 0o600);
  try {
    writeFileSync(opened, text);
    fchmodSync(opened, mode);
    fsyncSync(opened);
  } finally {
    closeSync(opened);
  }
}
