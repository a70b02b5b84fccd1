/** `portcullis start`: runs the gateway, and makes the first administrator if a person is at the terminal. */

import { printable } from '../../base/printable.ts';
import { allowCommands } from '../../config/config.ts';
import { runProcess, tellHowToBegin, type WhenEmpty } from '../../process.ts';
import { serverOf } from '../client.ts';
import { CommandError, type CommandGroup } from '../command.ts';
import { personAtTerminal } from './ask.ts';
import { executableOf } from './executable.ts';
import { askNewPassword, register, signIn } from './init.ts';

const say = (text: string): void => void process.stderr.write(printable(`portcullis: ${text}\n`));

/** Makes the first administrator, and signs in. If no person is at the terminal, it says how to do that later. */
const welcome: WhenEmpty = async (url, setupCode) => {
  const person = personAtTerminal();
  if (person === null) return tellHowToBegin(url, setupCode);
  say('there is no administrator yet. Make the first one now, or press Ctrl-C to stop the gateway');
  for (let isMade = false; ; ) {
    try {
      const email = await person.ask('E-mail of the administrator');
      const password = await askNewPassword(person, say);
      const user = await register(url, { email, password, setupCode });
      isMade = true;
      const { file } = serverOf({ args: [], text: (option) => (option === 'server' ? url : undefined), flag: () => false });
      await signIn(url, file, user, password);
      say(`${user.email} is the administrator of ${url}, and signed in. In a second terminal, continue with`);
      return say('portcullis add <name> <url>, or portcullis add <name> -- <command>');
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      if (error instanceof CommandError && error.code === 'interrupted') return void process.kill(process.pid, 'SIGINT');
      say(error.message);
      if (isMade || (error instanceof CommandError && error.code === 'registration_closed')) return;
      // A mistake can be corrected. For anything else, a second try would end in the same way.
      if (!(error instanceof CommandError) || error.code !== 'invalid_request') return tellHowToBegin(url, setupCode);
    }
  }
};

export const startGroup: CommandGroup = {
  path: 'portcullis',
  about: 'Runs the gateway.',
  notes: `The gateway reads its settings from environment variables (docs/configuration.md), and keeps its data in DATA_DIR (default: data).
Exit code: 0 it was shut down, 1 it could not start, 2 wrong usage.`,
  options: {},
  commands: [
    {
      name: 'start',
      summary:
        'runs the gateway until it gets SIGINT (Ctrl-C) or SIGTERM; on a terminal, an empty one asks for its first administrator',
      options: {
        'allow-command': {
          value: 'COMMANDS',
          help: 'executables that stdio targets may run, separated by commas, in addition to STDIO_ALLOWED: names in PATH, or absolute paths',
        },
      },
      async run(given) {
        const names = (given.text('allow-command') ?? '').split(',').filter((name) => name !== '');
        allowCommands(names.map(executableOf));
        await runProcess(welcome);
        return null;
      },
    },
  ],
};
