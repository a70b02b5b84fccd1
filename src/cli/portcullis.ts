#!/usr/bin/env node
/** The `portcullis` command: operators use it on the host, without a token; administrators use it over the API. */
import { randomBytes, randomUUID } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { Socket } from 'node:net';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import type { Writable } from 'node:stream';
import { createPasswords } from '../auth/passwords.ts';
import { setupCode } from '../auth/registration.ts';
import { endSignInsOf } from '../auth/sign-ins.ts';
import { createVault, masterKeyFile } from '../auth/vault.ts';
import { AppError } from '../base/errors.ts';
import { VERSION } from '../base/version.ts';
import { configFromProcess } from '../config/config.ts';
import { type Change, createChanges, makeCounter } from '../db/changes.ts';
import { maySignIn } from '../users/local-sign-in.ts';
import { userStore } from '../users/user-store.ts';
import { audit, openExisting } from './audit.ts';
import { bundleCommand } from './bundle.ts';
import { type CommandGroup, EXIT, printable, runGroup } from './command.ts';
import { drafts } from './policies/drafts.ts';
import { policies } from './policies/policies.ts';
import { loginCommand } from './sign-in/login.ts';

const USAGE = `Usage: portcullis <command>

  login, logout, status          signs in at a gateway with a browser, signs out, shows who you are (portcullis login --help)
  user reset-password <e-mail>   gives the user a new password, prints it, and ends the user's logins, browser sessions and grants
  setup-code                     prints the code that the first registration needs
  audit verify                   checks that the audit log is intact (portcullis audit --help)
  audit reproduce <decision-id>  evaluates a recorded decision again (portcullis audit reproduce --help)
  bundle                         writes the policies as a bundle that stock OPA reads (portcullis bundle --help)
  policies <command>             policies as files in git, their history, and questions (portcullis policies --help)
  drafts <command>               policy changes that you try before you apply them (portcullis drafts --help)

Every command takes --help and --version.

login, logout, status, policies, drafts, bundle and audit reproduce call a gateway; policies test, lint and schema need no gateway. All other
commands work on the host, with the database that the gateway's environment variables name (docs/configuration.md). A SQLite database
belongs to the running gateway: stop the gateway first (setup-code needs no database).
`;

async function resetPassword(email: string): Promise<string> {
  const { database: where, localSignIn } = configFromProcess();
  const database = await openExisting(where, makeCounter);
  try {
    const changes = await createChanges(database, Date.now);
    const password = randomBytes(15).toString('base64url');
    const passwordHash = await createPasswords().hash(password);
    const operator = { id: 'host', email: userInfo().username, request_id: randomUUID() };
    await changes.change(operator, async (trx) => {
      const users = userStore(trx);
      const user = await users.findByEmail(email);
      if (!user) throw new AppError('not_found', `No user has the e-mail ${email}.`);
      if (!maySignIn(localSignIn, user)) {
        const detail = `LOCAL_SIGN_IN is ${localSignIn}, so ${email} cannot sign in with a password. Give the e-mail of that user, or set LOCAL_SIGN_IN=on for all replicas.`;
        throw new AppError('local_sign_in_off', detail);
      }
      await users.setPasswordHash(user.id, passwordHash, Date.now());
      const ended = await endSignInsOf(trx, user.id, null, Date.now());
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

const user: CommandGroup = {
  path: 'portcullis user',
  about: 'Manages users, on the host and without a token.',
  notes: `${HOST_NOTES} A SQLite database belongs to the running gateway: stop the gateway first.`,
  options: {},
  commands: [
    {
      name: 'reset-password',
      takes: '<e-mail>',
      summary: "gives the user a new password, prints it, and ends the user's logins, browser sessions and grants",
      async run({ args: [email = ''] }) {
        const password = await resetPassword(email);
        return { text: `${password}\n`, json: { password } };
      },
    },
  ],
};

const setup: CommandGroup = {
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
        const code = setupCode(createVault(masterKey ?? masterKeyFile(join(dataDir, 'master.key'))));
        return { text: `${code}\n`, json: { setup_code: code } };
      },
    },
  ],
};

async function run(argv: readonly string[]): Promise<number> {
  const [noun, ...rest] = argv;
  if (argv.includes('--version')) {
    process.stdout.write(`portcullis ${VERSION}\n`);
    return EXIT.ok;
  }
  switch (noun) {
    case undefined:
    case 'help':
    case '--help':
      process.stdout.write(USAGE);
      return EXIT.ok;
    case 'login':
    case 'logout':
    case 'status':
      return loginCommand(argv);
    case 'audit':
      return audit(rest);
    case 'bundle':
      return bundleCommand(rest);
    case 'policies':
      return policies(rest);
    case 'drafts':
      return drafts(rest);
    case 'user':
      return runGroup(user, rest, process);
    case 'setup-code':
      return runGroup(setup, argv, process);
    default:
      process.stderr.write(`portcullis: unknown command: ${printable(noun)}\n\n${USAGE}`);
      return EXIT.usage;
  }
}

/** EX_IOERR of sysexits.h. No command uses this code for a result. */
const CANNOT_WRITE = 74;

// For a file, the stream of Node writes once and ignores the rest, for example if the disk becomes full in the middle.
const stdout: Writable & { readonly fd: number } = process.stdout;
if (!(stdout instanceof Socket)) {
  stdout._write = (chunk: Buffer, _encoding, done) => {
    try {
      writeFileSync(stdout.fd, chunk);
      done();
    } catch (error) {
      done(error as Error);
    }
  };
}

let isLost = false;
process.stdout.on('error', (error: NodeJS.ErrnoException) => {
  // The reader of the output may have read enough, as `head` does. The command still finishes its work.
  if (error.code === 'EPIPE' || isLost) return;
  isLost = true;
  process.stderr.write(`portcullis: the output could not be written: ${error.message}\n`);
  process.once('exit', () => {
    process.exitCode = CANNOT_WRITE;
  });
});
// Messages that cannot be written to stderr do not stop the command.
process.stderr.on('error', () => undefined);

process.exitCode = await run(process.argv.slice(2));
