/** Commands for operators on the host. They need no token, but the files and variables of the gateway. */
import { randomBytes, randomUUID } from 'node:crypto';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { createPasswords } from '../auth/sign-in/passwords.ts';
import { setupCode } from '../auth/sign-in/registration.ts';
import { endSignInsOf } from '../auth/sign-in/sign-ins.ts';
import { createVault, readMasterKeyFile } from '../auth/vault.ts';
import { AppError } from '../base/errors.ts';
import { configFromProcess } from '../config/config.ts';
import { type Change, createChanges } from '../db/changes.ts';
import { maySignIn } from '../users/local-sign-in.ts';
import { userStore } from '../users/user-store.ts';
import { openExisting } from './audit.ts';
import type { Command, CommandGroup } from './command.ts';

/** The account that runs the command: its number if it has no name, as in a container with the number of a user. */
function accountName(): string {
  try {
    return userInfo().username;
  } catch {
    return `uid ${process.getuid?.()}`;
  }
}

async function resetPassword(email: string): Promise<string> {
  const { database: where, localSignIn } = configFromProcess();
  const database = await openExisting(where);
  try {
    const changes = await createChanges(database, Date.now);
    const password = randomBytes(15).toString('base64url');
    const passwordHash = await createPasswords().hash(password, 'host');
    const operator = { id: 'host', email: accountName(), request_id: randomUUID() };
    await changes.change(operator, async (trx) => {
      const users = userStore(trx);
      const user = await users.findByEmail(email);
      if (!user) throw new AppError('not_found', `No user has the e-mail ${email}.`);
      if (!maySignIn(localSignIn, user)) {
        const detail = `LOCAL_SIGN_IN is ${localSignIn}, so ${email} cannot sign in with a password. Give the e-mail of that user, or set LOCAL_SIGN_IN=on for all replicas.`;
        throw new AppError('local_sign_in_off', detail);
      }
      await users.setPasswordHash(user.id, passwordHash, Date.now());
      const ended = await endSignInsOf(trx, [user.id], null, Date.now());
      const change: Change = { action: 'user.reset-password', object_id: user.id, before: null, after: null };
      return { result: user, changes: [change, ...ended] };
    });
    return password;
  } finally {
    await database.close();
  }
}

const HOST_NOTES = `Run this command on the host, with the gateway's environment variables (docs/configuration.md).
Exit code: 0 success, 1 failure, 2 wrong usage.`;

export const resetPasswordCommand: Command = {
  name: 'reset-password',
  takes: '<e-mail>',
  summary: "on the host: gives the user a new password, prints it, and ends the user's logins, browser sessions and grants",
  notes: `${HOST_NOTES} A SQLite database belongs to the running gateway: stop the gateway first.`,
  async run({ args: [email = ''] }) {
    const password = await resetPassword(email);
    return { text: `${password}\n`, json: { password } };
  },
};

export const setupGroup: CommandGroup = {
  path: 'portcullis',
  about: 'Helps with the first registration.',
  notes: HOST_NOTES,
  options: {},
  commands: [
    {
      name: 'setup-code',
      summary: 'prints the code that the first registration needs',
      async run() {
        const { masterKey, dataDir } = configFromProcess();
        const file = join(dataDir, 'master.key');
        const key = masterKey ?? readMasterKeyFile(file);
        // Do not create a master key here: the gateway would not accept the code of a key that is not its own.
        if (key === null) {
          const detail = `No master key was found at ${file}: start the gateway once, or set MASTER_KEY or DATA_DIR to those of the gateway.`;
          throw new AppError('not_found', detail);
        }
        const code = setupCode(createVault(key));
        return { text: `${code}\n`, json: { setup_code: code } };
      },
    },
  ],
};
