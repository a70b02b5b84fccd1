/** Rate limits for callers, counted in this process. */
import type { IncomingMessage } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { AppError } from '../../base/errors.ts';
import { createSpareTurns } from '../../base/turns/spare-turns.ts';
import type { Config } from '../../config/config.ts';
import { addressGroup } from './client-address.ts';
import { holdBody } from './crowded.ts';

const MINUTE_MS = 60_000;
/** The share of an address's limit that one e-mail may use. Several people may share an address. */
const EMAIL_SHARE = 1 / 6;
/** All principals of an address may send this many times as much to REST as one of them: a person can have many accounts. */
const OF_ADDRESS = 3;
/**
 * A principal that uses less than this share of its own limit is not refused because of others at its address, which can be that of a proxy. But
 * its requests wait for spare time, because one person can have hundreds of such accounts.
 */
const SPARING_SHARE = 1 / 10;
/** Without this, clients that do not wait after a refusal would take the thread with refusals alone. Up to twice as long, so that they spread. */
const REFUSED_AFTER_MS = 500;

/** A refusal is sent when the thread has time to spare, because the client then sends its next request, or opens its next connection. */
const refusals = createSpareTurns({
  mostUnderWay: Number.POSITIVE_INFINITY,
  longestRestMs: 5,
  mostWaiting: Number.POSITIVE_INFINITY,
  mostAtOnce: 1,
});

/** Resolves when the request may be refused. Senders take turns. `who`: the principal, or the address. */
export async function beforeRefusal(req: IncomingMessage, who: string): Promise<void> {
  const release = holdBody(req);
  // Otherwise what has arrived of the body would wait in memory.
  if (!req.complete) req.resume();
  await sleep(REFUSED_AFTER_MS * (1 + Math.random()), undefined, { ref: false });
  await refusals.come(addressGroup(who), () => !req.socket.writable);
  release();
}

/** Throws the refusal after a while; null: returns at once. */
export async function refuseLater(req: IncomingMessage, who: string, refusal: AppError | null): Promise<void> {
  if (refusal === null) return;
  await beforeRefusal(req, who);
  throw refusal;
}

/** An address has no blank, so no two pairs have the same key. */
const pair = (address: string, who: string): string => `${address} ${who}`;

interface Count {
  uses: number;
  readonly until: number;
}

/** Allows each key `limit` uses in a minute, which begins with the first of them. */
class Minutes {
  /** By key. The minutes in `older` began before those in `recent`. `older` is dropped after a minute, when all of its minutes are over. */
  private recent = new Map<string, Count>();
  private older = new Map<string, Count>();
  private turnsAt = 0;
  private readonly limit: number;

  constructor(limit: number) {
    this.limit = limit;
  }

  /** Counts a use (`amount` 0: counts none). null: it is allowed. `what`: begins the text of the refusal. */
  use(key: string, what = 'Too many requests', amount = 1): AppError | null {
    const now = performance.now();
    if (now >= this.turnsAt) {
      this.older = this.recent;
      this.recent = new Map();
      this.turnsAt = now + MINUTE_MS;
    }
    const known = this.known(key);
    if (known === undefined || now >= known.until) {
      if (amount > 0) this.recent.set(key, { uses: amount, until: now + MINUTE_MS });
      return null;
    }
    known.uses += amount;
    if (known.uses <= this.limit) return null;
    const retryAfter = Math.max(1, Math.ceil((known.until - now) / 1_000));
    return new AppError('too_many_requests', `${what}: try again in ${retryAfter} s.`, { retryAfter });
  }

  /** How many uses were counted in the minute of the key. */
  uses(key: string): number {
    return this.known(key)?.uses ?? 0;
  }

  private known(key: string): Count | undefined {
    return this.recent.get(key) ?? this.older.get(key);
  }
}

export type RateLimits = ReturnType<typeof createRateLimits>;

/** Codes of devices that a user may try per minute. */
const USER_CODES = 10;

export function createRateLimits(
  limits: Pick<Config['rateLimits'], 'login' | 'mcp' | 'api' | 'changes' | 'oauth' | 'registration'>,
) {
  const byAddress = new Minutes(limits.login);
  const byAddressAndEmail = new Minutes(Math.ceil(limits.login * EMAIL_SHARE));
  const byUser = new Minutes(limits.changes);
  const byPrincipal = new Minutes(limits.mcp);
  const byPrincipalOfApi = new Minutes(limits.api);
  const byAddressOfApi = new Minutes(OF_ADDRESS * limits.api);
  const byStranger = new Minutes(limits.api);
  const byOAuthAddress = new Minutes(limits.oauth);
  const registrations = new Minutes(limits.registration);
  const devices = new Minutes(limits.registration);
  const userCodes = new Minutes(USER_CODES);
  const linkedUserCodes = new Minutes(USER_CODES);
  const scimTokens = new Minutes(limits.login);
  return {
    /**
     * Checks the limit before a password is verified: per address, and per address and e-mail (null: the e-mail is not known). It
     * never counts by e-mail alone, because then anyone could lock a user out.
     */
    password(address: string, email: string | null): AppError | null {
      const group = addressGroup(address);
      const refusal = byAddress.use(group);
      return refusal ?? (email === null ? null : byAddressAndEmail.use(pair(group, email.toLowerCase())));
    },
    /**
     * Checks the limit before a user creates an API token, sets or deletes an own credential, or checks a target or a provider.
     * Revoking tokens is not limited: a user cannot revoke more tokens than they created, and a thief with a stolen token must not
     * use up the owner's right to revoke it.
     */
    own: (userId: string): AppError | null =>
      byUser.use(
        userId,
        `You may create API tokens, change your credentials, and check targets and providers ${limits.changes} times a minute (CHANGE_RATE_LIMIT)`,
      ),
    /** Checks the limit before a request to the authorization server. */
    oauth: (address: string): AppError | null => byOAuthAddress.use(addressGroup(address)),
    /** Checks the limit before an OAuth client registers, or the document of a client is read. */
    registration: (address: string): AppError | null => registrations.use(addressGroup(address)),
    /** Checks the limit before a device asks for a code. Registrations do not use it up. */
    device: (address: string): AppError | null => devices.use(addressGroup(address)),
    /** Counts a wrong SCIM token. `amount` 0: only tells whether there were too many. */
    scim: (address: string, amount = 1): AppError | null =>
      scimTokens.use(addressGroup(address), 'Too many wrong SCIM tokens', amount),
    /** Checks the limit before a user tries the code of a device. */
    userCode: (userId: string): AppError | null => userCodes.use(userId, 'You have tried too many codes'),
    /** Whether a code in a link may be looked up. Any website can open links, so these do not use up the codes that the user may try. */
    linkedUserCode: (userId: string): boolean => linkedUserCodes.use(userId) === null,
    /** Checks the limit before messages of this principal (its issuer and sub) are decided. */
    mcp: (principal: string, address: string, messages = 1): AppError | null =>
      byPrincipal.use(pair(addressGroup(address), principal), undefined, messages),
    /** Checks the limit before a request for a page or a document, or one to the REST API with a token that is not known yet. */
    stranger: (address: string, uses = 1): AppError | null => byStranger.use(addressGroup(address), undefined, uses),
    /**
     * Checks the limits before a request of this principal to the REST API, and of all principals of the address. `inSpareTime`: the request
     * must wait for spare time. `uses`: the requests of the principal in this minute.
     */
    api(principal: string, address: string): AppError | { readonly inSpareTime: true; readonly uses: number } | null {
      const group = addressGroup(address);
      const key = pair(group, principal);
      const own = byPrincipalOfApi.use(
        key,
        `You may send ${limits.api} requests a minute to the REST API from one address (API_RATE_LIMIT)`,
      );
      if (own !== null) return own;
      const uses = byPrincipalOfApi.uses(key);
      const isSparing = uses <= Math.ceil(limits.api * SPARING_SHARE);
      const most = OF_ADDRESS * limits.api;
      const ofAddress = byAddressOfApi.use(
        group,
        `All users of one address may send ${most} requests a minute to the REST API (API_RATE_LIMIT)`,
      );
      return isSparing && ofAddress !== null ? { inSpareTime: true, uses } : ofAddress;
    },
  };
}
