/** Decides who may register, and makes the first user the administrator. */
import { createHash, timingSafeEqual } from 'node:crypto';
import { AppError } from '../../base/errors.ts';
import { uuidv7 } from '../../base/ids.ts';
import type { Config } from '../../config/config.ts';
import type { Database } from '../../db/database.ts';
import { transact } from '../../db/transact.ts';
import { EVERYBODY } from '../../users/local-sign-in.ts';
import { ADMIN, claimFirstAdministrator, localUser, type User, userStore } from '../../users/user-store.ts';
import type { Vault } from '../vault.ts';
import type { Passwords } from './passwords.ts';

export type Registration = ReturnType<typeof createRegistration>;

export interface RegistrationParts {
  readonly database: Database;
  readonly passwords: Passwords;
  readonly vault: Vault;
  readonly config: Pick<Config, 'registration' | 'setupCodeRequired' | 'localSignIn'>;
  readonly now: () => number;
}

/** Returns the setup code, the same on every replica and after restarts. Only the master key and the start-up log reveal it. */
export function setupCode(vault: Vault): string {
  const digits = vault.derive('setup-code').toString('hex').slice(0, 20);
  return digits.match(/.{5}/g)?.join('-') ?? digits;
}

const digest = (text: string): Buffer => createHash('sha256').update(text).digest();

export function createRegistration({ database, passwords, vault, config, now }: RegistrationParts) {
  const expected = digest(setupCode(vault));

  function mayRegister(first: boolean, code: string | undefined, onlyFirst: boolean): void {
    if (config.localSignIn !== EVERYBODY) {
      throw new AppError('registration_closed', "Registration is closed. Sign in with your company's account at /signin.");
    }
    if (!first && onlyFirst) {
      throw new AppError(
        'registration_closed',
        'The gateway has an administrator already. Sign in, or ask an administrator for an account.',
      );
    }
    if (!first && config.registration === 'closed') {
      throw new AppError('registration_closed', 'Registration is closed. Ask an administrator for an account.');
    }
    if (first && config.setupCodeRequired && !timingSafeEqual(digest(code?.trim() ?? ''), expected)) {
      throw new AppError(
        'setup_code_required',
        'The first user becomes the administrator: send the setup code, which the gateway prints when it starts, in the header Portcullis-Setup-Code.',
      );
    }
  }

  return {
    /** `from`: the network of the caller. `onlyFirst`: makes no account but the first administrator's. Throws AppError `email_taken`, `registration_closed`, `setup_code_required`, `too_many_requests`. */
    async register(
      { email, password, from }: { readonly email: string; readonly password: string; readonly from: string },
      code: string | undefined,
      onlyFirst = false,
    ): Promise<User> {
      // Check before the expensive hash, and again in the transaction, where the answer is final.
      mayRegister(!(await userStore(database.knex).hasFirstAdministrator()), code, onlyFirst);
      const passwordHash = await passwords.hash(password, from);
      return await transact(database, async (trx) => {
        const id = uuidv7();
        const first = await claimFirstAdministrator(trx, id);
        mayRegister(first, code, onlyFirst);
        const user = localUser({ id, email, role: first ? ADMIN : 'user', groups: [] }, now());
        await userStore(trx).insert(user, passwordHash);
        return user;
      });
    },

    /** Whether anybody may register now. The first one may need the setup code. */
    isOpen: async (): Promise<boolean> =>
      config.localSignIn === EVERYBODY &&
      (config.registration === 'open' || !(await userStore(database.knex).hasFirstAdministrator())),
    /** Whether the next registration becomes the administrator. */
    firstPending: async (): Promise<boolean> => !(await userStore(database.knex).hasFirstAdministrator()),
    /** Whether the setup code is required and still unused, so that the operator has to hand it out. */
    setupCodePending: async (): Promise<boolean> =>
      config.setupCodeRequired && !(await userStore(database.knex).hasFirstAdministrator()),
  };
}
