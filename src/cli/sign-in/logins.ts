/** The logins of `portcullis login`: a file for each gateway, which only its owner may read. */
import { randomBytes } from 'node:crypto';
import { closeSync, fstatSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { CommandError } from '../command.ts';

/** Tokens of one gateway. They are never printed. */
export interface StoredLogin {
  readonly access_token: string;
  /** Milliseconds since the epoch. */
  readonly expires_at: number;
  readonly refresh_token: string;
}

/** `url`: the origin of the gateway. */
export const loginFile = (folder: string, url: string): string => join(folder, `${encodeURIComponent(url)}.json`);

const isMissing = (error: unknown): boolean => (error as NodeJS.ErrnoException).code === 'ENOENT';

function isLogin(value: unknown): value is StoredLogin {
  const { access_token, expires_at, refresh_token } = (value ?? {}) as Record<string, unknown>;
  return typeof access_token === 'string' && typeof expires_at === 'number' && typeof refresh_token === 'string';
}

/** Returns the login. null: there is none. Throws CommandError if others could read or change the file, or if it is damaged. */
export function readLogin(file: string): StoredLogin | null {
  let text: string;
  try {
    const opened = openSync(file, 'r');
    try {
      refuseShared(file, opened);
      text = readFileSync(opened, 'utf8');
    } finally {
      closeSync(opened);
    }
  } catch (error) {
    if (isMissing(error)) return null;
    if (error instanceof CommandError) throw error;
    throw new CommandError(`${file} cannot be read (${(error as NodeJS.ErrnoException).code}): run portcullis login again`);
  }
  try {
    const login: unknown = JSON.parse(text);
    if (isLogin(login)) return login;
  } catch {
    // A file that is not JSON is not a login either.
  }
  throw new CommandError(`${file} is damaged: run portcullis login again`);
}

function refuseShared(file: string, opened: number): void {
  // Windows has other rights than these.
  if (process.platform === 'win32') return;
  const { mode, uid } = fstatSync(opened);
  if (uid !== process.getuid?.()) throw new CommandError(`${file} belongs to a different user: run portcullis login again`);
  if ((mode & 0o077) !== 0)
    throw new CommandError(
      `${file} can be read by others: if you trust them, run chmod 600 on it; if not, run portcullis login again`,
    );
}

/** Replaces the file as a whole, so that no reader sees half of it. */
export function writeLogin(file: string, { access_token, expires_at, refresh_token }: StoredLogin): void {
  const made = `${file}.${randomBytes(6).toString('hex')}`;
  try {
    mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
    try {
      writeFileSync(made, `${JSON.stringify({ access_token, expires_at, refresh_token })}\n`, {
        flag: 'wx',
        mode: 0o600,
        flush: true,
      });
      renameSync(made, file);
    } catch (error) {
      rmSync(made, { force: true });
      throw error;
    }
  } catch (error) {
    throw new CommandError(`the login cannot be stored in ${file} (${(error as NodeJS.ErrnoException).code})`);
  }
}

export function removeLogin(file: string): void {
  try {
    rmSync(file, { force: true });
  } catch (error) {
    throw new CommandError(`the login in ${file} cannot be removed (${(error as NodeJS.ErrnoException).code})`);
  }
}
