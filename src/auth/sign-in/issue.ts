/** Makes tokens and their records. A token is invalid until its record is stored. */
import { uuidv7 } from '../../base/ids.ts';
import { labelOf, type User } from '../../users/user-store.ts';
import type { KeyRing } from '../keys.ts';
import type { TokenRecord } from '../token-store.ts';
import { LOGIN_TOKEN_MS, type TokenRules } from '../verify.ts';

/** The members of an API token that its user chooses. */
export type NewApiToken = { readonly name: string } & Pick<TokenRecord, 'expires_at' | 'limits'>;

export type DraftToken = ReturnType<typeof createDraftToken>;

export function createDraftToken(keys: KeyRing, { issuer, audience, now }: TokenRules) {
  /**
   * Returns functions that make the record of a token and sign the token. Both name the signing key that is current at the call. `api` null:
   * a login token. Call it outside of transactions, because it reads the key table.
   */
  return async (api: NewApiToken | null) => {
    const signer = await keys.signer();
    return {
      record(user: User): TokenRecord {
        const created = now();
        return {
          id: uuidv7(),
          user_id: user.id,
          kind: api === null ? 'login' : 'api',
          name: api?.name ?? null,
          kid: signer.kid,
          created_at: created,
          expires_at: api === null ? created + LOGIN_TOKEN_MS : api.expires_at,
          revoked_at: null,
          limits: api?.limits ?? null,
        };
      },
      sign: (user: User, { id, kind, created_at, expires_at }: TokenRecord): Promise<string> =>
        signer.sign({
          iss: issuer,
          aud: audience,
          sub: user.id,
          email: labelOf(user),
          role: user.role,
          groups: [...user.groups],
          jti: id,
          iat: Math.floor(created_at / 1000),
          // An API token has no `exp`, because a retired key verifies only such tokens. Its record has the expiry.
          ...(expires_at === null || kind === 'api' ? {} : { exp: Math.floor(expires_at / 1000) }),
        }),
    };
  };
}
