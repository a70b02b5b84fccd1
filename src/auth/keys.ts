/** The keys that sign tokens (ES256), and the key that seals session ids. They are stored encrypted under the master key. */
import {
  createPrivateKey,
  createPublicKey,
  generateKeyPairSync,
  type JsonWebKey,
  type KeyObject,
  randomBytes,
} from 'node:crypto';
import { CompactSign, type JWTPayload, SignJWT } from 'jose';
import { AppError } from '../base/errors.ts';
import type { Connection, Transaction } from '../db/database.ts';
import { type SecretKeyRow, secretKeyStore } from './token-store.ts';
import type { Vault } from './vault.ts';

/** `typ` in the protected header of login and API tokens. */
export const TOKEN_TYPE = 'JWT';
/** `typ` of access tokens (RFC 9068). */
export const ACCESS_TOKEN_TYPE = 'at+jwt';
export const TOKEN_ALGORITHM = 'ES256';

export interface VerificationKey {
  readonly kid: string;
  readonly publicKey: KeyObject;
  /** Milliseconds since the epoch; null: the key still signs. */
  readonly retiredAt: number | null;
}

export interface Signer {
  readonly kid: string;
  sign(claims: JWTPayload): Promise<string>;
  /** Signs a compact JWS that is not a token. Its protected header has `type`. */
  signAs(type: string, payload: object): Promise<string>;
  /** Returns the private key, for a library that signs by itself. */
  privateJwk(): JsonWebKey & { readonly kid: string };
}

export type KeyRing = Awaited<ReturnType<typeof createKeyRing>>;

interface SigningKey extends VerificationKey {
  readonly privateKey: KeyObject;
}

const CHECK = 'check';
const SEALING = 'sealing';
const CHECK_TEXT = 'portcullis';
/** How often unknown key ids may cause a read of the table. */
const REREAD_MS = 1_000;
const KID = /^[A-Za-z0-9_-]{1,64}$/;

const identity = (row: Pick<SecretKeyRow, 'purpose' | 'id'>): string => `${row.purpose}:${row.id}`;

function jwkOf({ kid, publicKey }: Pick<VerificationKey, 'kid' | 'publicKey'>) {
  const { kty = '', crv = '', x = '', y = '' } = publicKey.export({ format: 'jwk' });
  return { kty, crv, x, y, kid, alg: TOKEN_ALGORITHM, use: 'sig' };
}

function newSigningRow(vault: Vault, now: number): SecretKeyRow {
  const id = randomBytes(12).toString('base64url');
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  return {
    id,
    purpose: 'signing',
    public_jwk: JSON.stringify(jwkOf({ kid: id, publicKey })),
    sealed: vault.seal(identity({ purpose: 'signing', id }), privateKey.export({ format: 'der', type: 'pkcs8' })),
    created_at: now,
    retired_at: null,
  };
}

function open(vault: Vault, row: SecretKeyRow): Buffer {
  try {
    return vault.open(identity(row), row.sealed);
  } catch (cause) {
    throw new AppError(
      'unavailable',
      'The database was made with a different master key: set MASTER_KEY (or MASTER_KEY_PREVIOUS while you replace the key), or restore the file master.key in DATA_DIR.',
      { cause },
    );
  }
}

/** Throws AppError `unavailable` if the database was made with a different master key. */
export async function checkKeys(db: Connection, vault: Vault): Promise<SecretKeyRow[]> {
  const rows = await secretKeyStore(db).list();
  for (const row of rows) open(vault, row);
  return rows;
}

/**
 * Makes missing keys, and re-encrypts values that are sealed under a previous master key. Runs under the migration lock, so
 * that replicas that start at the same time agree. Throws AppError `unavailable` if the database was made with a different master key:
 * with new keys the gateway would seem to work, but would have lost every credential.
 */
export async function makeKeys(db: Connection, vault: Vault, now: number = Date.now()): Promise<void> {
  const store = secretKeyStore(db);
  const rows = await checkKeys(db, vault);
  for (const row of rows) {
    const sealed = vault.reseal(identity(row), row.sealed);
    if (sealed !== null) await store.replaceSealed(row, sealed);
  }
  const fixed = (purpose: 'check' | 'sealing', id: string, secret: Buffer): SecretKeyRow => ({
    id,
    purpose,
    public_jwk: null,
    sealed: vault.seal(identity({ purpose, id }), secret),
    created_at: now,
    retired_at: null,
  });
  if (!rows.some((row) => row.purpose === 'check')) await store.insert(fixed('check', CHECK, Buffer.from(CHECK_TEXT)));
  if (!rows.some((row) => row.purpose === 'sealing')) await store.insert(fixed('sealing', SEALING, randomBytes(32)));
  if (!rows.some((row) => row.purpose === 'signing' && row.retired_at === null)) await store.insert(newSigningRow(vault, now));
}

/** Throws AppError `unavailable` if keys are missing or were made with a different master key. */
export async function createKeyRing(db: Connection, vault: Vault) {
  let keys: ReadonlyMap<string, SigningKey> = new Map();
  let readAt = Number.NEGATIVE_INFINITY;
  let begun = 0;
  let applied = 0;
  let nextRead: Promise<void> | null = null;

  function toKey(row: SecretKeyRow): SigningKey {
    const known = keys.get(row.id);
    if (known) return { ...known, retiredAt: row.retired_at };
    const privateKey = createPrivateKey({ key: open(vault, row), format: 'der', type: 'pkcs8' });
    return {
      kid: row.id,
      privateKey,
      publicKey: createPublicKey(privateKey),
      retiredAt: row.retired_at,
    };
  }

  async function read(): Promise<SecretKeyRow[]> {
    readAt = performance.now();
    const order = ++begun;
    const rows = await secretKeyStore(db).list();
    // A slow read must not overwrite the result of a later one.
    if (order < applied) return rows;
    applied = order;
    keys = new Map(rows.filter((row) => row.purpose === 'signing').map((row) => [row.id, toKey(row)]));
    return rows;
  }

  /** Starts a read after the call, and at least REREAD_MS after the previous read. All callers that wait share it. */
  function reread(): Promise<void> {
    nextRead ??= (async () => {
      const wait = readAt + REREAD_MS - performance.now();
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      nextRead = null;
      await read();
    })();
    return nextRead;
  }

  const sealing = (await read()).find((row) => row.purpose === 'sealing');
  if (!sealing || keys.size === 0)
    throw new AppError('unavailable', 'The database has no signing or sealing keys: restore it from a backup.');

  return {
    /** 32 bytes, the same on every replica and after a restart. */
    sealingKey: open(vault, sealing),

    /** Returns the key as it was last read. */
    find: (kid: string): VerificationKey | null => keys.get(kid) ?? null,

    /** Like `find`, but reads the table again if the key is unknown, because another replica may have made it. */
    async resolve(kid: string): Promise<VerificationKey | null> {
      if (!keys.has(kid) && KID.test(kid)) await reread();
      return keys.get(kid) ?? null;
    },

    /** Returns the key with which every replica signs now. */
    async signer(): Promise<Signer> {
      await read();
      const current = [...keys.values()].filter((key) => key.retiredAt === null).at(-1);
      if (!current) throw new AppError('unavailable', 'The database has no signing or sealing keys: restore it from a backup.');
      const { kid, privateKey } = current;
      return {
        kid,
        sign: (claims) => new SignJWT(claims).setProtectedHeader({ alg: TOKEN_ALGORITHM, typ: TOKEN_TYPE, kid }).sign(privateKey),
        signAs: (typ, payload) =>
          new CompactSign(Buffer.from(JSON.stringify(payload)))
            .setProtectedHeader({ alg: TOKEN_ALGORITHM, typ, kid })
            .sign(privateKey),
        privateJwk: () => ({ ...privateKey.export({ format: 'jwk' }), kid, alg: TOKEN_ALGORITHM, use: 'sig' }),
      };
    },

    /** Returns all public keys, newest first. */
    async jwks() {
      if (performance.now() - readAt > REREAD_MS) await reread();
      return { keys: [...keys.values()].reverse().map(jwkOf) };
    },

    /** Returns the signing keys, newest first. */
    async list() {
      const rows = (await read()).filter((row) => row.purpose === 'signing').reverse();
      return rows.map(({ id, created_at, retired_at }) => ({ kid: id, createdAt: created_at, retiredAt: retired_at }));
    },

    /** Makes the next signing key. Earlier keys still verify the tokens that they signed. */
    async rotate(trx: Transaction, now: number): Promise<{ readonly kid: string; readonly retired: readonly string[] }> {
      const store = secretKeyStore(trx);
      const row = newSigningRow(vault, now);
      const retired = (await store.list()).filter((key) => key.purpose === 'signing' && key.retired_at === null);
      await store.insert(row);
      await store.retireSigning(row.id, now);
      return { kid: row.id, retired: retired.map((key) => key.id) };
    },
  };
}
