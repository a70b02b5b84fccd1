/** `portcullis init`, `add`, `import` and `connect`: from an empty gateway to a connected client. */
import { CLIENT_NOTES, CLIENT_OPTIONS } from '../client.ts';
import { connectClient } from '../clients/connect.ts';
import type { CommandGroup } from '../command.ts';
import { add } from './add.ts';
import { importServers } from './import.ts';
import { init } from './init.ts';

export const firstHourGroup: CommandGroup = {
  path: 'portcullis',
  about: 'Leads from an empty gateway to a connected client.',
  notes: CLIENT_NOTES,
  options: CLIENT_OPTIONS,
  commands: [init, add, importServers, connectClient],
};
