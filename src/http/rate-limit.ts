/** How often a caller may come, counted in this process. */
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible';
import type { Config } from '../config.ts';
import { AppError } from '../errors.ts';
import { addressGroup } from './address.ts';

export interface RateLimits {
  /**
   * Before a password is looked at: by address, and by address and e-mail (null: the e-mail is not known). Never by e-mail
   * alone, or anybody could lock anybody out.
   */
  password(address: string, email: string | null): Promise<AppError | null>;
  /**
   * Before a user makes an API token, or sets or deletes a credential of their own. Tokens are revoked without a limit: nobody
   * can revoke more than were made, and whoever holds a stolen token must not be able to use up the owner's right to revoke it.
   */
  own(userId: string): Promise<AppError | null>;
  /** Before a request of this principal (its issuer and sub) is decided. */
  mcp(principal: string, address: string): Promise<AppError | null>;
}

const SECONDS = 60;
/** What one e-mail may take of an address's share: several people may sit behind one address. */
const EMAIL_SHARE = 1 / 6;

/** Two parts that cannot run into each other. */
const pair = (a: string, b: string): string => JSON.stringify([a, b]);

async function consume(limiter: RateLimiterMemory, key: string, what = 'Too many requests'): Promise<AppError | null> {
  try {
    await limiter.consume(key);
    return null;
  } catch (refusal) {
    if (!(refusal instanceof RateLimiterRes)) throw refusal;
    const retryAfter = Math.max(1, Math.ceil(refusal.msBeforeNext / 1000));
    return new AppError('too_many_requests', `${what}: try again in ${retryAfter} s.`, { retryAfter });
  }
}

export function createRateLimits(limits: Pick<Config['rateLimits'], 'login' | 'mcp' | 'changes'>): RateLimits {
  const byAddress = new RateLimiterMemory({ points: limits.login, duration: SECONDS });
  const byAddressAndEmail = new RateLimiterMemory({ points: Math.ceil(limits.login * EMAIL_SHARE), duration: SECONDS });
  const byUser = new RateLimiterMemory({ points: limits.changes, duration: SECONDS });
  const byPrincipal = new RateLimiterMemory({ points: limits.mcp, duration: SECONDS });
  return {
    async password(address, email) {
      const group = addressGroup(address);
      const refusal = await consume(byAddress, group);
      return refusal ?? (email === null ? null : consume(byAddressAndEmail, pair(group, email.toLowerCase())));
    },
    own: (userId) =>
      consume(
        byUser,
        userId,
        `You may make API tokens and change your credentials ${limits.changes} times a minute (CHANGE_RATE_LIMIT)`,
      ),
    mcp: (principal, address) => consume(byPrincipal, pair(principal, addressGroup(address))),
  };
}
