/** `portcullis init`: makes the first administrator of a gateway, and signs in. */
import { openClient, serverOf } from '../client.ts';
import { type Command, CommandError } from '../command.ts';
import { readText } from '../read-text.ts';
import { writeLogin } from '../sign-in/logins.ts';
import { discover } from '../sign-in/oauth.ts';
import { optionOrAnswer, type Person, personAtTerminal } from './ask.ts';
import { signInWithPassword } from './sign-in.ts';

interface NewAdministrator {
  readonly email: string;
  readonly password: string;
  readonly setupCode: string | null;
}

interface Made {
  readonly id: string;
  readonly email: string;
  readonly role: string;
}

/** Registers the first administrator. Throws CommandError `registration_closed` if there is one, and `setup_code_required`. */
export const register = (url: string, { email, password, setupCode }: NewAdministrator): Promise<Made> =>
  openClient(url).call<Made>(
    'POST',
    '/api/auth/register',
    { email, password, only_first: true },
    setupCode === null ? {} : { 'portcullis-setup-code': setupCode },
  );

/** Signs in as `portcullis login` does, and stores the login. Throws CommandError if only that failed. */
export async function signIn(url: string, file: string, { id, email }: Made, password: string): Promise<void> {
  try {
    writeLogin(file, await signInWithPassword(url, { id, email, password }));
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    throw new CommandError(
      `the administrator ${email} is made, but not signed in: run portcullis login --server ${url} (${error.message})`,
      error.code,
    );
  }
}

/** Asks twice, because the terminal does not show it. */
export async function askNewPassword(person: Person, say: (text: string) => void): Promise<string> {
  for (;;) {
    const password = await person.askHidden('Password (at least 8 characters)');
    if ((await person.askHidden('The same password again')) === password) return password;
    say('the two passwords differ: enter them again');
  }
}

export const init: Command = {
  name: 'init',
  summary: 'makes the first administrator of an empty gateway, and signs in',
  help: `Asks for an e-mail and a password, and keeps the sign-in as portcullis login does. A gateway that others can reach also needs the
setup code, which it prints when it starts (portcullis setup-code prints it again). With --email and --password-file nothing is asked.`,
  options: {
    email: { value: 'E-MAIL', help: 'the e-mail of the administrator' },
    'password-file': { value: 'FILE', help: 'the file with the password; - reads it from standard input' },
    'setup-code': { value: 'CODE', help: 'the setup code that the gateway prints when it starts' },
  },
  async run(given, say) {
    const { url, file } = serverOf(given);
    const person = personAtTerminal();
    const email = await optionOrAnswer(given, 'email', person, (one) => one.ask('E-mail of the administrator'));
    const path = given.text('password-file');
    const password =
      path === undefined
        ? await optionOrAnswer(given, 'password-file', person, (one) => askNewPassword(one, say))
        : readText(path);
    // At an address that is not its own, the gateway refuses sign-ins, so nobody could use the new administrator.
    await discover(url);
    const made = (setupCode: string | null): Promise<Made> => register(url, { email, password, setupCode });
    const user = await made(given.text('setup-code') ?? null).catch(async (error: unknown) => {
      if (!(error instanceof CommandError)) throw error;
      switch (error.code) {
        case 'registration_closed':
          throw new CommandError(`${url} has an administrator already: sign in with portcullis login`, error.code);
        case 'setup_code_required':
          if (person !== null && given.text('setup-code') === undefined)
            return made(await person.ask('Setup code, which the gateway printed when it started'));
          throw new CommandError(
            `${url} needs its setup code, which it prints when it starts: give it with --setup-code`,
            error.code,
          );
        default:
          throw error;
      }
    });
    await signIn(url, file, user, password);
    return {
      text: `${user.email} is the administrator of ${url}, and signed in\nNext: portcullis add <name> <url>, or portcullis add <name> -- <command>\n`,
      json: { server: url, user },
    };
  },
};
