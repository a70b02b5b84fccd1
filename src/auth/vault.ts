/** Encryption at rest under the master key, and values derived from it. */
import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto';
import { linkSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { AppError } from '../base/errors.ts';

const IV_BYTES = 12;
const TAG_BYTES = 16;
const VERSION = 1;

export type Vault = ReturnType<typeof createVault>;

/** `previous` keys only decrypt. Values are encrypted and derived under the master key. */
export function createVault(masterKey: Buffer, previous: readonly Buffer[] = []) {
  const sealing = subkey(masterKey, 'seal');
  const opening = [sealing, ...previous.filter((key) => !key.equals(masterKey)).map((key) => subkey(key, 'seal'))];

  function open(identity: string, sealed: string): { readonly secret: Buffer; readonly current: boolean } {
    const bytes = Buffer.from(sealed, 'base64');
    if (bytes[0] !== VERSION || bytes.length < 1 + IV_BYTES + TAG_BYTES)
      throw new Error('The sealed value has an unknown format');
    let failure: unknown;
    for (const key of opening) {
      try {
        return { secret: decipher(key, identity, bytes), current: key === sealing };
      } catch (error) {
        failure = error;
      }
    }
    throw failure;
  }
  /**
   * Encrypts with AES-256-GCM. `identity` names the row of the secret and is associated data, so that a secret that was moved to
   * a different row does not open.
   */
  function seal(identity: string, secret: Buffer): string {
    const iv = randomBytes(IV_BYTES);
    const cipher = createCipheriv('aes-256-gcm', sealing, iv).setAAD(Buffer.from(identity));
    const body = Buffer.concat([cipher.update(secret), cipher.final()]);
    return Buffer.concat([Buffer.from([VERSION]), iv, body, cipher.getAuthTag()]).toString('base64');
  }

  return {
    seal,
    /** Throws unless `seal` made the text for this identity, under the master key or a previous one. */
    open: (identity: string, sealed: string): Buffer => open(identity, sealed).secret,
    /** Re-encrypts a secret under the master key; null: it already is. Throws like `open`. */
    reseal(identity: string, sealed: string): string | null {
      const { secret, current } = open(identity, sealed);
      return current ? null : seal(identity, secret);
    },
    /** Returns a stable value of 32 bytes that only holders of the master key can compute. */
    derive: (purpose: string): Buffer => createHmac('sha256', subkey(masterKey, 'derive')).update(purpose).digest(),
  };
}

const subkey = (masterKey: Buffer, purpose: string): Buffer =>
  Buffer.from(hkdfSync('sha256', masterKey, 'portcullis', purpose, 32));

function decipher(key: Buffer, identity: string, bytes: Buffer): Buffer {
  const iv = bytes.subarray(1, 1 + IV_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, iv).setAAD(Buffer.from(identity)).setAuthTag(bytes.subarray(-TAG_BYTES));
  return Buffer.concat([decipher.update(bytes.subarray(1 + IV_BYTES, -TAG_BYTES)), decipher.final()]);
}

/** Returns the master key in `file`. Creates the file if it is missing; only its owner may read it. Throws AppError. */
export function masterKeyFile(file: string): Buffer {
  try {
    mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
    makeOnce(file, `${randomBytes(32).toString('base64')}\n`);
  } catch (error) {
    throw unusable(error);
  }
  const key = readMasterKeyFile(file);
  if (key === null) throw new AppError('unavailable', `The master key file ${file} was removed while it was read.`);
  return key;
}

const unusable = (cause: unknown): AppError =>
  new AppError('unavailable', `The master key file cannot be used: ${(cause as Error).message}`, { cause });

/** Returns the master key in `file`; null: the file does not exist. Throws AppError with a reason for the operator. */
export function readMasterKeyFile(file: string): Buffer | null {
  let text: string;
  try {
    text = readFileSync(file, 'utf8').trim();
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return null;
    throw unusable(error);
  }
  const key = Buffer.from(text, 'base64');
  if (key.length !== 32 || key.toString('base64') !== text) {
    throw new AppError(
      'unavailable',
      `The master key file ${file} does not contain 32 bytes in base64. Restore the file, or set MASTER_KEY.`,
    );
  }
  return key;
}

/** Creates the file unless it exists. If processes start at once, one of them creates it, and none sees a partly written file. */
function makeOnce(file: string, content: string): void {
  // In containers, all processes have the same id. After a kill, a file with this name may be a second name of the key itself.
  const made = `${file}.${randomBytes(8).toString('hex')}`;
  try {
    // Rows may be sealed under the key as soon as it exists, so a power failure must not leave an empty file.
    writeFileSync(made, content, { mode: 0o600, flush: true, flag: 'wx' });
    linkSync(made, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    rmSync(made, { force: true });
  }
}
