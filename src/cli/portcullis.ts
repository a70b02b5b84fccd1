#!/usr/bin/env node
/** The `portcullis` command: what an operator does on the host, without a token, and what administrators do over the API. */
import { randomBytes, randomUUID } from 'node:crypto';
import { existsSync } from 'node:fs';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { createPasswords } from '../auth/passwords.ts';
import { setupCode } from '../auth/registration.ts';
import { tokenStore } from '../auth/store.ts';
import { createVault, masterKeyFile } from '../auth/vault.ts';
import { ConfigError, configFromProcess } from '../config.ts';
import { createChanges, makeCounter } from '../db/changes.ts';
import { openDatabase } from '../db/database.ts';
import { AppError } from '../errors.ts';
import { userStore } from '../users/store.ts';
import { audit } from './audit.ts';
import { bundleCommand } from './bundle.ts';
import { drafts } from './drafts.ts';
import { policies } from './policies.ts';

const USAGE = `Usage: portcullis <command>

  user reset-password <e-mail>   gives the user a new password, prints it, and ends the user's logins
  setup-code                     prints the code that the first registration needs
  audit verify                   checks that the audit log is whole (portcullis audit --help)
  audit reproduce <decision-id>  makes a recorded decision again (portcullis audit reproduce --help)
  bundle                         writes the policies as a bundle that stock OPA reads (portcullis bundle --help)
  policies <command>             policies as files in git, their history, and questions (portcullis policies --help)
  drafts <command>               changes of the policies, tried before they are made (portcullis drafts --help)

policies, drafts, bundle and audit reproduce speak to a gateway, with a token; policies test and lint need none. All others work on the
host, on the database that the gateway's environment variables name (docs/configuration.md). A SQLite database belongs to the
running gateway: stop that first (setup-code needs no database).
`;

async function resetPassword(email: string): Promise<void> {
  const { database: where } = configFromProcess();
  if (where.kind === 'sqlite' && !existsSync(where.path)) {
    throw new AppError(
      'not_found',
      `There is no database at ${where.path}: DATA_DIR or DATABASE_URL must be those of the gateway.`,
    );
  }
  const database = await openDatabase(where, makeCounter);
  try {
    const changes = await createChanges(database, Date.now);
    const password = randomBytes(15).toString('base64url');
    const passwordHash = await createPasswords().hash(password);
    const operator = { id: 'host', email: userInfo().username, request_id: randomUUID() };
    await changes.change(operator, async (trx) => {
      const users = userStore(trx);
      const user = await users.findByEmail(email);
      if (!user) throw new AppError('not_found', `No user has the e-mail ${email}.`);
      await users.setPasswordHash(user.id, passwordHash, Date.now());
      await tokenStore(trx).revokeLoginsOf(user.id, null, Date.now());
      const change = {
        action: 'user.reset-password',
        object_type: 'user',
        object_id: user.id,
        before: null,
        after: null,
      } as const;
      return { result: user, changes: [change] };
    });
    process.stdout.write(`${password}\n`);
  } finally {
    await database.close();
  }
}

async function run(argv: readonly string[]): Promise<number> {
  if (argv[0] === 'audit') return audit(argv.slice(1));
  if (argv[0] === 'bundle') return bundleCommand(argv.slice(1));
  if (argv[0] === 'policies') return policies(argv.slice(1));
  if (argv[0] === 'drafts') return drafts(argv.slice(1));
  const [noun, verb, email, ...rest] = argv;
  if (noun === undefined || noun === 'help' || noun === '--help') {
    process.stdout.write(USAGE);
    return 0;
  }
  if (noun === 'user' && verb === 'reset-password' && email !== undefined && rest.length === 0) {
    await resetPassword(email);
    return 0;
  }
  if (noun === 'setup-code' && verb === undefined) {
    const { masterKey, dataDir } = configFromProcess();
    process.stdout.write(`${setupCode(createVault(masterKey ?? masterKeyFile(join(dataDir, 'master.key'))))}\n`);
    return 0;
  }
  process.stderr.write(`portcullis: no such command\n\n${USAGE}`);
  return 2;
}

process.exitCode = await run(process.argv.slice(2)).catch((error: unknown) => {
  if (error instanceof AppError || error instanceof ConfigError) {
    process.stderr.write(`portcullis: ${error.message}\n`);
    return 1;
  }
  throw error;
});
