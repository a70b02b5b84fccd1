/** Encryption at rest under the master key, and values derived from it. */
import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto';
import { linkSync, mkdirSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';

const IV_BYTES = 12;
const TAG_BYTES = 16;
const VERSION = 1;

export interface Vault {
  /** AES-256-GCM with `identity`, the row that holds the secret, as associated data: a secret moved to another row does not open. */
  seal(identity: string, secret: Buffer): string;
  /** Throws if the text is not what `seal` gave for this identity under this master key. */
  open(identity: string, sealed: string): Buffer;
  /** A stable value that only holders of the master key can compute, 32 bytes. */
  derive(purpose: string): Buffer;
}

export function createVault(masterKey: Buffer): Vault {
  const subkey = (purpose: string): Buffer => Buffer.from(hkdfSync('sha256', masterKey, 'portcullis', purpose, 32));
  const sealing = subkey('seal');
  return {
    seal(identity, secret) {
      const iv = randomBytes(IV_BYTES);
      const cipher = createCipheriv('aes-256-gcm', sealing, iv).setAAD(Buffer.from(identity));
      const body = Buffer.concat([cipher.update(secret), cipher.final()]);
      return Buffer.concat([Buffer.from([VERSION]), iv, body, cipher.getAuthTag()]).toString('base64');
    },
    open(identity, sealed) {
      const bytes = Buffer.from(sealed, 'base64');
      if (bytes[0] !== VERSION || bytes.length < 1 + IV_BYTES + TAG_BYTES)
        throw new Error('The sealed value is not of a known form');
      const iv = bytes.subarray(1, 1 + IV_BYTES);
      const decipher = createDecipheriv('aes-256-gcm', sealing, iv)
        .setAAD(Buffer.from(identity))
        .setAuthTag(bytes.subarray(-TAG_BYTES));
      return Buffer.concat([decipher.update(bytes.subarray(1 + IV_BYTES, -TAG_BYTES)), decipher.final()]);
    },
    derive: (purpose) => createHmac('sha256', subkey('derive')).update(purpose).digest(),
  };
}

/** The master key in `file`, made on first use; only the owner may read it. */
export function masterKeyFile(file: string): Buffer {
  mkdirSync(dirname(file), { recursive: true, mode: 0o700 });
  const made = `${file}.${process.pid}`;
  writeFileSync(made, `${randomBytes(32).toString('base64')}\n`, { mode: 0o600 });
  try {
    // Of two processes that start at once, one link succeeds and both read the same, whole key.
    linkSync(made, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
  } finally {
    unlinkSync(made);
  }
  const key = Buffer.from(readFileSync(file, 'utf8').trim(), 'base64');
  if (key.length !== 32) throw new Error(`${file} does not hold a master key (32 bytes in base64)`);
  return key;
}
