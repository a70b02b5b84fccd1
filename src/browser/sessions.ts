/**
 * The browser session, for sign-in, consent, account pages and the console. Its cookie has 256 random bits and no other content. Each request
 * reads session and user again, as fresh as the freshness gate (laws 4 and 7).
 */
import { createHash, randomBytes } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { type BrowserSession, browserSessionLimits, browserStore } from '../auth/browser-store.ts';
import { AppError } from '../base/errors.ts';
import { uuidv7 } from '../base/ids.ts';
import type { Database, Transaction } from '../db/database.ts';
import { transact } from '../db/transact.ts';
import { createTurns } from '../db/turns.ts';
import { addressGroup, addressOf } from '../http/limits/client-address.ts';
import { type Admission, admitsUser, principalOf } from '../state/admission.ts';
import type { FreshRead } from '../state/fresh-read.ts';
import { EVERYBODY, type LocalSignIn, maySignIn } from '../users/local-sign-in.ts';
import { isAdmissible, type User, userStore } from '../users/user-store.ts';
import { cookieOf, urlOf } from './requests.ts';

/** The prefix makes browsers refuse such a cookie from a subdomain, for a path, and (except on loopback) over plain HTTP. */
export const COOKIE = '__Host-portcullis';
const ATTRIBUTES = 'Path=/; Secure; HttpOnly; SameSite=Lax';
const VALUE = /^[A-Za-z0-9_-]{43}$/;
/** Everywhere else a cookie has no authority, because programs and not pages call there. */
const COUNTS = /^\/(signin|oauth|account|console)([/?]|$)/;
const SEEN_EVERY_MS = 60_000;
/** Sensitive actions need a user who has proved who they are within this time. */
const RECENT_MS = 10 * 60_000;
const SESSIONS_OF_USER = 50;
const AGENT_MAX = 256;

export interface SignedIn {
  readonly user: User;
  readonly session: BrowserSession;
  /** The user as the services behind REST and the decision function know them. */
  readonly admission: Admission;
  /** Whether the user has proved who they are within 10 minutes, which sensitive actions require. */
  readonly isRecent: boolean;
}

/** How a user has signed in. */
export interface SignInFacts {
  /** `password`, or the name of a provider. */
  readonly method: string;
  /**
   * The time at which the user last entered a password or other proof, in milliseconds since the epoch. `now`: in this request. null: the
   * time is unknown, because the provider may have let in the browser without a question.
   */
  readonly provedAt: number | 'now' | null;
}

export interface BrowserSessionParts {
  readonly database: Database;
  readonly freshRead: FreshRead;
  readonly trustProxy: boolean;
  readonly now: () => number;
  /** Whose sessions count among local accounts. Absent: all. */
  readonly localSignIn?: LocalSignIn;
}

export type BrowserSessions = ReturnType<typeof createBrowserSessions>;

const digestOf = (value: string): string => createHash('sha256').update(value).digest('hex');

function sentDigest(req: IncomingMessage): string | null {
  const value = cookieOf(req, COOKIE);
  return value !== null && VALUE.test(value) ? digestOf(value) : null;
}

const agentOf = (req: IncomingMessage): string =>
  [...(req.headers['user-agent'] ?? '').replaceAll(/\P{ASCII}|\p{Cc}/gu, '')].slice(0, AGENT_MAX).join('');

export function createBrowserSessions(parts: BrowserSessionParts) {
  const { database, freshRead, trustProxy, now, localSignIn = EVERYBODY } = parts;
  // Nothing is known yet about the sender of a cookie. The lookups of all strangers together take one of the connections that the gate uses.
  const inTurn = createTurns();
  const newValue = (): string => randomBytes(32).toString('base64url');
  const setCookie = (res: ServerResponse, value: string): void =>
    void res.appendHeader('Set-Cookie', `${COOKIE}=${value}; ${ATTRIBUTES}`);

  /**
   * Begins a session in the caller's transaction, which has called `lockForSignIn` of the user. Returns the value for `setCookie`. If the request
   * has a cookie, the session of that cookie ends, because an attacker may know its value.
   */
  async function open(trx: Transaction, req: IncomingMessage, user: User, { method, provedAt }: SignInFacts): Promise<string> {
    const sessions = browserStore(trx);
    const sent = sentDigest(req);
    if (sent !== null) await sessions.endByDigest(sent);
    await sessions.endBeyond(user.id, SESSIONS_OF_USER - 1);
    const value = newValue();
    const time = now();
    await sessions.insert(
      {
        ...{ id: uuidv7(), user_id: user.id, method, role: user.role, agent: agentOf(req), address: addressOf(req, trustProxy) },
        ...{ signed_in_at: time, seen_at: time },
        // A provider whose clock is ahead must not give a proof from the future.
        proved_at: provedAt === 'now' ? time : Math.min(provedAt ?? 0, time),
      },
      digestOf(value),
    );
    return value;
  }

  return {
    open,
    setCookie,

    /**
     * Reads the browser session and its user from the database, and returns the user; null if the browser has no valid session. Call this
     * after the whole request has arrived. It may give the cookie a new value. Throws AppError `too_many_requests` if too many requests of
     * the client's address wait for their turn. `isActivity` false: a script asks on its own, which does not keep an idle session.
     */
    async currentUser(req: IncomingMessage, res: ServerResponse, isActivity = true): Promise<SignedIn | null> {
      const digest = COUNTS.test(urlOf(req)) ? sentDigest(req) : null;
      if (digest === null) return null;
      const address = addressGroup(addressOf(req, trustProxy));
      const { snapshot, found } = await freshRead(
        async (db) => {
          const session = await browserStore(db).findByDigest(digest, browserSessionLimits(now()));
          const user = session && (await userStore(db).find(session.user_id));
          return session && user ? { session, user } : null;
        },
        (work) => inTurn(address, work),
      );
      if (found === null || !admitsUser(found.user, snapshot.providers) || !maySignIn(localSignIn, found.user)) return null;
      const { session, user } = found;
      const sessions = browserStore(database.knex);
      // A download that goes on cannot set a cookie any longer: the next request does.
      if (session.role !== user.role && !res.headersSent) {
        const value = newValue();
        if (await sessions.renew(session.id, digest, digestOf(value), user.role)) setCookie(res, value);
      }
      if (isActivity && now() - session.seen_at > SEEN_EVERY_MS) await sessions.seen(session.id, now());
      const principal = {
        ...principalOf(user),
        ...{ token_id: session.id, token_kind: 'browser' as const, issued_at: null, limits: null },
      };
      return { user, session, admission: { snapshot, principal }, isRecent: now() - session.proved_at < RECENT_MS };
    },

    /**
     * Begins a session for a user whom the caller has authenticated, and sets its cookie. `iat`: when a provider issued the token that
     * proves it, in seconds since the epoch; null: no provider did. Throws AppError `forbidden` if the user is disabled, was linked to a
     * different account meanwhile, or if the token is one of those that were ended.
     */
    async signIn(
      req: IncomingMessage,
      res: ServerResponse,
      { id, issuer, subject }: Pick<User, 'id' | 'issuer' | 'subject'>,
      how: SignInFacts,
      iat: number | null = null,
    ): Promise<void> {
      const value = await transact(database, async (trx) => {
        const user = await userStore(trx).lockForSignIn(id);
        if (user === null || !isAdmissible(user))
          throw new AppError('forbidden', 'Your account is disabled. Ask an administrator.');
        if (user.issuer !== issuer || user.subject !== subject)
          throw new AppError('forbidden', 'Your account has changed. Sign in again.');
        // The session would outlive the end of everything by which the user was signed in.
        if (iat !== null && user.valid_after !== null && iat * 1_000 <= user.valid_after)
          throw new AppError('forbidden', 'Your sign-ins have just been ended. Sign in again in a few minutes.');
        return await open(trx, req, user, how);
      });
      setCookie(res, value);
    },

    /** Makes the browser forget the session. The caller ends it in the database. */
    clear(res: ServerResponse): void {
      res.appendHeader('Set-Cookie', `${COOKIE}=; Max-Age=0; ${ATTRIBUTES}`);
      // Not "cookies": that would also delete those of other hosts in the same domain.
      res.setHeader('Clear-Site-Data', '"cache", "storage"');
    },
  };
}
