/** The token of a directory, and the changes that are made with it. */
import { createHash, randomBytes, timingSafeEqual } from 'node:crypto';
import type { Provider } from '../auth/provider.ts';
import { AppError } from '../base/errors.ts';
import type { Change, Changes } from '../db/changes.ts';
import type { Connection, Transaction } from '../db/database.ts';
import { directoryStore } from '../providers/directory-store.ts';
import { PROVIDER_NAME } from '../providers/document.ts';
import { providerStore } from '../providers/provider-store.ts';

const PREFIX = 'portcullis_scim_';
const TOKEN = new RegExp(`^${PREFIX}[A-Za-z0-9_-]{43}$`);

export const newScimToken = (): string => `${PREFIX}${randomBytes(32).toString('base64url')}`;
export const hashOfToken = (token: string): string => createHash('sha256').update(token).digest('hex');

/** An authenticated directory. */
export interface Session {
  readonly provider: Provider;
  readonly hash: string;
  readonly requestId: string;
}

const refused = (): AppError => new AppError('invalid_token', 'The SCIM token is not valid for this provider.');

/**
 * Returns the provider of this name if the token is its SCIM token. Throws AppError `invalid_token`, with one text for a wrong token and for
 * a provider that does not exist; `forbidden` if the provider is disabled.
 */
export async function authenticated(db: Connection, name: string, token: string, requestId: string): Promise<Session> {
  if (!TOKEN.test(token) || !PROVIDER_NAME.test(name)) throw refused();
  const provider = await providerStore(db).findByName(name);
  if (provider === null) throw refused();
  return { provider: await requireToken(db, provider, hashOfToken(token)), hash: hashOfToken(token), requestId };
}

async function requireToken(db: Connection, provider: Provider, hash: string): Promise<Provider> {
  const stored = (await directoryStore(db).token(provider.id))?.hash ?? '';
  if (stored.length !== hash.length || !timingSafeEqual(Buffer.from(stored), Buffer.from(hash))) throw refused();
  if (!provider.enabled) throw new AppError('forbidden', 'The provider is disabled. Ask an administrator to enable it.');
  return provider;
}

const HASHES_MS = 1_000;

/**
 * Returns whether a directory has the token with this hash, by what the database had at most a second ago. That costs one query a second,
 * whatever strangers send. So it tells which requests need no limit, but admits none.
 */
export function createStoredTokens(db: Connection): (hash: string) => Promise<boolean> {
  let readAt = Number.NEGATIVE_INFINITY;
  let hashes: Promise<readonly string[]>;
  return async (hash) => {
    if (performance.now() >= readAt + HASHES_MS) {
      readAt = performance.now();
      hashes = directoryStore(db).hashes();
    }
    return (await hashes).includes(hash);
  };
}

/**
 * Runs `work` in the transaction of a change and records the changes that it returns. The token is checked again there, so that one that was
 * revoked meanwhile changes nothing. Resolves when every later request is decided with the changes (law 4). `work` may run several times.
 */
export type ChangeBy = <T>(
  session: Session,
  work: (trx: Transaction, provider: Provider) => Promise<{ readonly result: T; readonly changes: readonly Change[] }>,
) => Promise<T>;

export function createChangeBy(changes: Changes): ChangeBy {
  const inTurn = createPace();
  return (session, work) =>
    inTurn(async () => {
      const { id, name } = session.provider;
      // A name with a space is never equal to an e-mail.
      const actor = { id, email: `directory ${name}`, request_id: session.requestId, reason: 'sent over SCIM' };
      const { result } = await changes.change(actor, async (trx) => {
        const provider = await providerStore(trx).find(id);
        if (provider === null) throw refused();
        return work(trx, await requireToken(trx, provider, session.hash));
      });
      return result;
    });
}

/** No rest is longer: a change that waited for a slow database needs none for that. */
const LONGEST_REST_MS = 100;

export interface PaceClock {
  readonly now: () => number;
  readonly later: (ms: number, then: () => void) => void;
}

/**
 * Runs the changes of directories one after the other, with a rest after each that is as long as the change was. A directory sends
 * thousands of users in a row, and calls use the same database.
 */
export function createPace(
  { now, later }: PaceClock = { now: () => performance.now(), later: (ms, then) => void setTimeout(then, ms) },
) {
  let last: Promise<void> = Promise.resolve();
  return async <T>(work: () => Promise<T>): Promise<T> => {
    const turn = last;
    let end = (): void => undefined;
    last = new Promise((resolve) => {
      end = resolve;
    });
    await turn;
    const began = now();
    try {
      return await work();
    } finally {
      later(Math.min(now() - began, LONGEST_REST_MS), end);
    }
  };
}
