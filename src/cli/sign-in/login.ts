/**
 * `portcullis login`, `logout` and `status`. `oauth.ts` gets the tokens from the gateway and revokes them, `logins.ts` keeps them
 * in a file, and `../client.ts` sends them with each request and renews them.
 */
import { spawn } from 'node:child_process';
import { CLIENT_OPTIONS, type Client, clientOfLogin, connect, serverOf } from '../client.ts';
import { type Command, CommandError, type CommandGroup } from '../command.ts';
import { readLogin, removeLogin, type StoredLogin, writeLogin } from './logins.ts';
import { discover, revoke, signInWithBrowser, signInWithDevice } from './oauth.ts';

interface Me {
  readonly id: string;
  readonly email: string;
  readonly role: string;
  readonly groups: readonly string[];
}

const OPENERS: Readonly<Partial<Record<NodeJS.Platform, readonly string[]>>> = {
  darwin: ['open'],
  // `start` would read an ampersand in the address as a second command.
  win32: ['rundll32', 'url.dll,FileProtocolHandler'],
};

/** Opens the address in the browser of the person. If that fails, the person opens it. */
function openBrowser(address: string): void {
  const [command = '', ...args] = OPENERS[process.platform] ?? ['xdg-open'];
  spawn(command, [...args, address], { stdio: 'ignore', detached: true })
    .on('error', () => undefined)
    .unref();
}

/** Returns the login in the file. null: there is none that can be used. */
function formerLogin(file: string): StoredLogin | null {
  try {
    return readLogin(file);
  } catch (error) {
    if (error instanceof CommandError) return null;
    throw error;
  }
}

const described = ({ email, role }: Me): string => `${email} (role ${role})`;

const who = (client: Client): Promise<Me> => client.call<Me>('GET', '/api/auth/me');

const login: Command = {
  name: 'login',
  summary: 'signs in at a gateway, with a browser',
  help: `Your browser opens a page of the gateway, where you sign in and allow the command line to act for you. With --device, the browser
may be on a different machine: you enter a code there. The login is kept in a file that only you can read, until you sign out, end
the access on your account page, or have not used it for 30 days.`,
  options: {
    device: { help: 'for a machine without a browser: prints an address and a code' },
    'no-open': { help: 'prints the address, and opens no browser' },
  },
  async run(given, say) {
    const { url, token, file } = serverOf(given);
    const endpoints = await discover(url);
    const former = formerLogin(file);
    const signedIn = given.flag('device')
      ? await signInWithDevice(url, endpoints, ({ code, address, complete }) => {
          say(`open ${address} in a browser, and enter the code ${code}`);
          if (complete !== null) say(`or open ${complete}, and compare the code`);
        })
      : await signInWithBrowser(url, endpoints, (address) => {
          say(`sign in with your browser at ${address}`);
          if (!given.flag('no-open')) openBrowser(address);
        });
    writeLogin(file, signedIn);
    // The command line no longer uses the former login. If it cannot be ended now, it expires.
    if (former !== null) await revoke(endpoints, former.refresh_token).catch(() => undefined);
    if (token !== null) say('PORTCULLIS_TOKEN is set, and counts instead of this login until you unset it');
    const user = await who(clientOfLogin(url, file, signedIn));
    return { text: `signed in at ${url} as ${described(user)}\n`, json: { server: url, user } };
  },
};

const logout: Command = {
  name: 'logout',
  summary: 'ends the login at a gateway',
  async run(given) {
    const { url, file } = serverOf(given);
    const former = formerLogin(file);
    removeLogin(file);
    if (former === null) return { text: `you were not signed in at ${url}\n`, json: { server: url, ended: false } };
    try {
      await revoke(await discover(url), former.refresh_token);
    } catch (error) {
      if (!(error instanceof CommandError)) throw error;
      throw new CommandError(
        `the login is removed from this machine, but not ended at the gateway: end it on ${url}/account (${error.message})`,
        error.code,
      );
    }
    return { text: `signed out at ${url}\n`, json: { server: url, ended: true } };
  },
};

const status: Command = {
  name: 'status',
  summary: 'shows who you are at a gateway',
  async run(given) {
    const { url, token } = serverOf(given);
    const user = await who(connect(given));
    const source = token === null ? 'login' : 'PORTCULLIS_TOKEN';
    const how = token === null ? 'with portcullis login' : 'with the token in PORTCULLIS_TOKEN';
    return { text: `signed in at ${url} as ${described(user)}, ${how}\n`, json: { server: url, source, user } };
  },
};

export const signInGroup: CommandGroup = {
  path: 'portcullis',
  about: 'Signs in at a gateway.',
  notes: `Commands send tokens only to the gateway, and never print them.
Exit code: 0 success, 1 failure, 2 wrong usage or not signed in.`,
  options: CLIENT_OPTIONS,
  commands: [login, logout, status],
};
