/** Rate limits for callers, counted in this process. */
import { RateLimiterMemory, RateLimiterRes } from 'rate-limiter-flexible';
import { AppError } from '../base/errors.ts';
import type { Config } from '../config/config.ts';
import { addressGroup } from './client-address.ts';

const SECONDS = 60;
/** The share of an address's limit that one e-mail may use. Several people may share an address. */
const EMAIL_SHARE = 1 / 6;

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

export type RateLimits = ReturnType<typeof createRateLimits>;

export function createRateLimits(limits: Pick<Config['rateLimits'], 'login' | 'mcp' | 'changes'>) {
  const byAddress = new RateLimiterMemory({ points: limits.login, duration: SECONDS });
  const byAddressAndEmail = new RateLimiterMemory({ points: Math.ceil(limits.login * EMAIL_SHARE), duration: SECONDS });
  const byUser = new RateLimiterMemory({ points: limits.changes, duration: SECONDS });
  const byPrincipal = new RateLimiterMemory({ points: limits.mcp, duration: SECONDS });
  return {
    /**
     * Checks the limit before a password is verified: per address, and per address and e-mail (null: the e-mail is not known). It
     * never counts by e-mail alone, because then anyone could lock a user out.
     */
    async password(address: string, email: string | null): Promise<AppError | null> {
      const group = addressGroup(address);
      const refusal = await consume(byAddress, group);
      return refusal ?? (email === null ? null : consume(byAddressAndEmail, pair(group, email.toLowerCase())));
    },
    /**
     * Checks the limit before a user creates an API token, or sets or deletes an own credential. Revoking tokens is not limited: a
     * user cannot revoke more tokens than they created, and a thief with a stolen token must not use up the owner's right to revoke
     * it.
     */
    own: (userId: string): Promise<AppError | null> =>
      consume(
        byUser,
        userId,
        `You may create API tokens and change your credentials ${limits.changes} times a minute (CHANGE_RATE_LIMIT)`,
      ),
    /** Checks the limit before a request of this principal (its issuer and sub) is decided. */
    mcp: (principal: string, address: string): Promise<AppError | null> =>
      consume(byPrincipal, pair(principal, addressGroup(address))),
  };
}
