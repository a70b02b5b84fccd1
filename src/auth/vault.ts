/** Encryption at rest under the master key, and values derived from it. */
import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto';
import { linkSync, mkdirSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';
import { AppError } from '../errors.ts';

const IV_BYTES = 12;
const TAG_BYTES = 16;
const VERSION = 1;

export interface Vault {
  /** AES-256-GCM with `identity`, the row that holds the secret, as associated data: a secret moved to another row does not open. */
  seal(identity: string, secret: Buffer): string;
  /** Throws if the text is not what `seal` gave for this identity under the master key or a previous one. */
  open(identity: string, sealed: string): Buffer;
  /** The same secret under the master key; null: it is so already. Throws as `open` does. */
  reseal(identity: string, sealed: string): string | null;
  /** A stable value that only holders of the master key can compute, 32 bytes. */
  derive(purpose: string): Buffer;
}

/** `previous` keys only open: values are sealed and derived under the master key. */
export function createVault(masterKey: Buffer, previous: readonly Buffer[] = []): Vault {
  const sealing = subkey(masterKey, 'seal');
  const opening = [sealing, ...previous.filter((key) => !key.equals(masterKey)).map((key) => subkey(key, 'seal'))];

  function open(identity: string, sealed: string): { readonly secret: Buffer; readonly current: boolean } {
    const bytes = Buffer.from(sealed, 'base64');
    if (bytes[0] !== VERSION || bytes.length < 1 + IV_BYTES + TAG_BYTES)
      throw new Error('The sealed value is not of a known form');
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
  function seal(identity: string, secret: Buffer): string {
    const iv = randomBytes(IV_BYTES);
    const cipher = createCipheriv('aes-256-gcm', sealing, iv).setAAD(Buffer.from(identity));
    const body = Buffer.concat([cipher.update(secret), cipher.final()]);
    return Buffer.concat([Buffer.from([VERSION]), iv, body, cipher.getAuthTag()]).toString('base64');
  }

  return {
    seal,
    open: (identity, sealed) => open(identity, sealed).secret,
    reseal(identity, sealed) {
      const { secret, current } = open(identity, sealed);
      return current ? null : seal(identity, secret);
    },
    derive: (purpose) => createHmac('sha256', subkey(masterKey, 'derive')).update(purpose).digest(),
  };
}

const subkey = (masterKey: Buffer, purpose: string): Buffer =>
  Buffer.from(hkdfSync('sha256', masterKey, 'portcullis', purpose, 32));

function decipher(key: Buffer, identity: string, bytes: Buffer): Buffer {
  const iv = bytes.subarray(1, 1 + IV_BYTES);
  const decipher = createDecipheriv('aes-256-gcm', key, iv).setAAD(Buffer.from(identity)).setAuthTag(bytes.subarray(-TAG_BYTES));
  return Buffer.concat([decipher.update(bytes.subarray(1 + IV_BYTES, -TAG_BYTES)), decipher.final()]);
}

/** The master key in `file`, made on first use; only the owner may read it. Throws AppError with a reason for the operator. */
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

/** The master key in `file`; null: there is no such file. Throws AppError with a reason for the operator. */
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
    throw new AppError('unavailable', `The master key file ${file} does not hold 32 bytes in base64.`);
  }
  return key;
}

/** Of processes that come at once, one makes the file, and it is never there half written. */
function makeOnce(file: string, content: string): void {
  const made = `${file}.${process.pid}`;
  writeFileSync(made, content, { mode: 0o600 });
  try {
    linkSync(made, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    unlinkSync(made);
  }
}
