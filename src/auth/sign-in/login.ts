/**
 * Checks passwords at a sign-in, and makes and revokes the login tokens and API tokens of a user. `issue.ts` signs the tokens,
 * and `../verify.ts` checks them. `src/browser/sign-in.ts` has the page of the sign-in, `src/cli/sign-in/login.ts` the command.
 */
import { AppError, invalidRequest } from '../../base/errors.ts';
import type { Config } from '../../config/config.ts';
import type { Change } from '../../db/changes.ts';
import type { Database, Transaction } from '../../db/database.ts';
import { transact } from '../../db/transact.ts';
import { EVERYBODY, maySignIn } from '../../users/local-sign-in.ts';
import { ADMIN, type User, userStore } from '../../users/user-store.ts';
import type { Administer, Caller, StillAdmits } from '../caller.ts';
import { type TokenRecord, tokenStore } from '../token-store.ts';
import type { DraftToken, NewApiToken } from './issue.ts';
import type { Passwords } from './passwords.ts';
import { endSignInsOf } from './sign-ins.ts';

export interface LoginParts {
  readonly database: Database;
  readonly passwords: Passwords;
  readonly draftToken: DraftToken;
  readonly administer: Administer;
  readonly stillAdmits: StillAdmits;
  readonly config: Pick<Config, 'rateLimits' | 'localSignIn'>;
  readonly now: () => number;
}

interface Credentials {
  readonly email: string;
  readonly password: string;
}

/** Credentials as they are tried. `from`: the network of the caller. */
interface Attempt extends Credentials {
  readonly from: string;
}

export type Login = ReturnType<typeof createLogin>;

const revoked = (id: string, before: object | null): Change => ({ action: 'token.revoke', object_id: id, before, after: null });

export function createLogin({ database, passwords, draftToken, administer, stillAdmits, config, now }: LoginParts) {
  const { localSignIn } = config;
  // Every refusal has the same answer, which must not reveal who may sign in, or that a password is right.
  const wrong = (): AppError =>
    localSignIn === EVERYBODY
      ? new AppError('invalid_credentials', 'The e-mail or the password is wrong.')
      : new AppError(
          'local_sign_in_off',
          "Only one administrator may sign in here with a password, and this is not the e-mail and password of that administrator. Sign in with your company's account at /signin.",
        );

  /**
   * Checks e-mail and password, calls `prepare`, and then runs `enter` in a transaction that has locked the user's record. Throws
   * AppError `invalid_credentials`, the same for an unknown e-mail, a wrong password and a disabled user. If only one
   * administrator may sign in with a password, it always throws `local_sign_in_off` instead.
   */
  async function withPassword<P, T>(
    { email, password, from }: Attempt,
    prepare: () => Promise<P>,
    enter: (trx: Transaction, user: User, prepared: P) => Promise<T>,
  ): Promise<T> {
    const stored = await userStore(database.knex).credentials({ email });
    const found = stored !== null && maySignIn(localSignIn, stored.user) ? stored : null;
    const fits = await passwords.verify(found?.passwordHash ?? null, password, from);
    if (!fits || !found?.user.enabled) throw wrong();
    const prepared = await prepare();
    return await transact(database, async (trx) => {
      // During the check the password may have been changed, which ends logins and browser sessions.
      const user = await userStore(trx).lockForSignIn(found.user.id);
      const stored = await userStore(trx).credentials({ id: found.user.id });
      if (!user?.enabled || stored?.passwordHash !== found.passwordHash) throw wrong();
      return await enter(trx, user, prepared);
    });
  }

  return {
    /** Makes a login token. Throws what `withPassword` throws. */
    async login(attempt: Attempt): Promise<{ readonly user: User; readonly token: string }> {
      const { draft, user, record } = await withPassword(
        attempt,
        () => draftToken(null),
        async (trx, user, draft) => {
          const record = draft.record(user);
          await tokenStore(trx).deleteExpiredOf(user.id, record.created_at);
          await tokenStore(trx).insert(record);
          return { draft, user, record };
        },
      );
      return { user, token: await draft.sign(user, record) };
    },

    /** Runs `enter` for the user with this e-mail and password, and makes no token. Throws what `withPassword` throws. */
    signIn: <T>(attempt: Attempt, enter: (trx: Transaction, user: User) => Promise<T>): Promise<T> =>
      withPassword(attempt, async () => null, enter),

    async logout(caller: Caller): Promise<void> {
      const { token_id } = caller.principal;
      await administer(caller, 'own', async (trx) => {
        await tokenStore(trx).revoke(token_id, now());
        return { result: null, changes: [revoked(token_id, null)] };
      });
    },

    /** Also ends the user's other logins and browser sessions, and the access of applications. */
    async changePassword(caller: Caller, current: string, next: string, from: string): Promise<void> {
      const { sub, token_id } = caller.principal;
      const notCurrent = (): AppError => invalidRequest([{ path: 'current_password', message: 'is not your current password' }]);
      const before = await userStore(database.knex).credentials({ id: sub });
      if (!(await passwords.verify(before?.passwordHash ?? null, current, from))) throw notCurrent();
      const passwordHash = await passwords.hash(next, from);
      await administer(caller, 'own', async (trx) => {
        const users = userStore(trx);
        await users.lock(sub);
        if ((await users.credentials({ id: sub }))?.passwordHash !== before?.passwordHash) throw notCurrent();
        await users.setPasswordHash(sub, passwordHash, now());
        const ended = await endSignInsOf(trx, [sub], token_id, now());
        const change: Change = { action: 'user.password', object_id: sub, before: null, after: null };
        return { result: null, changes: [change, ...ended] };
      });
    },

    /** Throws AppError `limit_reached`. */
    async createApiToken(
      { principal }: Caller,
      wanted: NewApiToken,
    ): Promise<{ readonly record: TokenRecord; readonly token: string }> {
      const draft = await draftToken(wanted);
      const { user, record } = await transact(database, async (trx) => {
        // This locks the user until the end, so that concurrent requests for tokens are counted one after the other.
        const isAdmitted = await stillAdmits(trx, principal);
        const user = isAdmitted ? await userStore(trx).find(principal.sub) : null;
        if (user === null) throw new AppError('invalid_token', 'The token is no longer valid.');
        const tokens = tokenStore(trx);
        if ((await tokens.count(user.id, now())) >= config.rateLimits.apiTokens) {
          throw new AppError(
            'limit_reached',
            `A user may have at most ${config.rateLimits.apiTokens} API tokens. Revoke one first.`,
          );
        }
        const record = draft.record(user);
        await tokens.deleteOldestEndedOf(user.id, record.created_at);
        await tokens.insert(record);
        return { user, record };
      });
      return { record, token: await draft.sign(user, record) };
    },

    /** Users may revoke their own API tokens; administrators may revoke any. */
    async revokeApiToken(caller: Caller, id: string): Promise<void> {
      const missing = (): AppError => new AppError('not_found', 'You have no API token with this id.');
      const record = await tokenStore(database.knex).find(id);
      const own = record?.user_id === caller.principal.sub;
      // Refuse before the transaction, because all administrative changes wait in one line.
      if (record?.kind !== 'api' || record.revoked_at !== null || (!own && caller.principal.role !== ADMIN)) throw missing();
      await administer(caller, own ? 'own' : 'admin', async (trx) => {
        if (!(await tokenStore(trx).revoke(id, now()))) throw missing();
        return { result: null, changes: [revoked(id, { name: record.name, user_id: record.user_id })] };
      });
    },
  };
}
