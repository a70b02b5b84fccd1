/** `portcullis start`: the gateway in this process. */
import type { CommandGroup } from './command.ts';

export const startGroup: CommandGroup = {
  path: 'portcullis',
  about: 'Runs the gateway.',
  notes: `The gateway reads its settings from environment variables (docs/configuration.md), and keeps its data in DATA_DIR (default: data).
Exit code: 0 it was shut down, 1 it could not start.`,
  options: {},
  commands: [
    {
      name: 'start',
      summary: 'runs the gateway until it gets SIGINT (Ctrl-C) or SIGTERM',
      async run() {
        await import('../main.ts');
        return null;
      },
    },
  ],
};
