/** Makes tokens and their records. A token is invalid until its record is stored. */
import { v7 as uuidv7 } from 'uuid';
import type { User } from '../users/user-store.ts';
import type { KeyRing } from './keys.ts';
import type { TokenRecord } from './token-store.ts';
import { LOGIN_TOKEN_MS, type TokenRules } from './verify.ts';

export type DraftToken = ReturnType<typeof createDraftToken>;

export function createDraftToken(keys: KeyRing, { issuer, audience, now }: TokenRules) {
  /**
   * Makes the record of a token, then signs the token. `name` is the name of an API token, which never expires; null: a login
   * token. Picks the current signing key, so that record and token name the same key. Call it outside of transactions, because it
   * reads the key table.
   */
  return async (name: string | null) => {
    const signer = await keys.signer();
    return {
      record(user: User): TokenRecord {
        const created = now();
        return {
          id: uuidv7(),
          user_id: user.id,
          kind: name === null ? 'login' : 'api',
          name,
          kid: signer.kid,
          created_at: created,
          expires_at: name === null ? created + LOGIN_TOKEN_MS : null,
          revoked_at: null,
        };
      },
      sign: (user: User, { id, created_at, expires_at }: TokenRecord): Promise<string> =>
        signer.sign({
          iss: issuer,
          aud: audience,
          sub: user.id,
          email: user.email,
          role: user.role,
          groups: [...user.groups],
          jti: id,
          iat: Math.floor(created_at / 1000),
          ...(expires_at === null ? {} : { exp: Math.floor(expires_at / 1000) }),
        }),
    };
  };
}
