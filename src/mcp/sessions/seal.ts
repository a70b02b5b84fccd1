/**
 * Sealed handles that clients keep for the gateway. Only the gateway can read or change them, and only the principal who got
 * a handle can use it. AES-256-GCM; purpose and principal are associated data.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';

const ID_BYTES = 4;
const IV_BYTES = 12;
const TAG_BYTES = 16;

export type Seal = ReturnType<typeof createSeal>;

/** `keys`: 32 bytes each, newest first. The newest key seals, every key opens. */
export function createSeal(keys: readonly Uint8Array[]) {
  const derived = keys.map(deriveKey);
  const newest = derived[0];
  if (newest === undefined) throw new TypeError('A seal needs at least one key.');
  return {
    seal(purpose: string, aad: string, payload: object): string {
      const iv = randomBytes(IV_BYTES);
      const cipher = createCipheriv('aes-256-gcm', newest.key, iv).setAAD(associated(purpose, aad));
      const body = Buffer.concat([cipher.update(JSON.stringify(payload), 'utf8'), cipher.final()]);
      return Buffer.concat([newest.id, iv, body, cipher.getAuthTag()]).toString('base64url');
    },
    /** null: this gateway did not seal the text for this purpose with these associated data. */
    open(purpose: string, aad: string, text: string): object | null {
      const bytes = Buffer.from(text, 'base64url');
      // Base64url has several texts for the same bytes; only the canonical one, which the gateway issued, is accepted.
      if (bytes.length <= ID_BYTES + IV_BYTES + TAG_BYTES || bytes.toString('base64url') !== text) return null;
      const key = derived.find((candidate) => candidate.id.equals(bytes.subarray(0, ID_BYTES)));
      if (key === undefined) return null;
      const iv = bytes.subarray(ID_BYTES, ID_BYTES + IV_BYTES);
      const decipher = createDecipheriv('aes-256-gcm', key.key, iv, { authTagLength: TAG_BYTES })
        .setAAD(associated(purpose, aad))
        .setAuthTag(bytes.subarray(-TAG_BYTES));
      try {
        const body = Buffer.concat([decipher.update(bytes.subarray(ID_BYTES + IV_BYTES, -TAG_BYTES)), decipher.final()]);
        return JSON.parse(body.toString('utf8')) as object;
      } catch {
        return null;
      }
    },
  };
}

function deriveKey(secret: Uint8Array) {
  if (secret.length !== 32) throw new TypeError('A seal key has 32 bytes.');
  const derive = (info: string, length: number): Buffer =>
    Buffer.from(hkdfSync('sha256', secret, '', `portcullis seal v1 ${info}`, length));
  return { id: derive('id', ID_BYTES), key: derive('key', 32) };
}

function associated(purpose: string, aad: string): Buffer {
  return Buffer.from(JSON.stringify([purpose, aad]), 'utf8');
}
