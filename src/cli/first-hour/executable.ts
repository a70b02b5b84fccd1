/** Finds the executable that a command means. */
import { accessSync, constants, statSync } from 'node:fs';
import { delimiter, dirname, isAbsolute, join } from 'node:path';
import { machineFromProcess } from '../../config/config.ts';
import { UsageError } from '../command.ts';

function isExecutable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK);
    return statSync(path).isFile();
  } catch {
    return false;
  }
}

/** Returns the absolute path of a command, as a shell finds it. Throws UsageError if the command is a relative path or not found. */
export function executableOf(command: string): string {
  if (isAbsolute(command)) return command;
  if (/^[a-z][a-z0-9+.-]*:\/\//i.test(command))
    throw new UsageError(`${command} is no URL of an MCP server: it must begin with http:// or https://`);
  if (/[/\\]/.test(command)) throw new UsageError(`${command} is a relative path: give the absolute path of the command`);
  const folders = machineFromProcess().path.split(delimiter).filter(isAbsolute);
  const found = folders.map((folder) => join(folder, command)).find(isExecutable);
  if (found === undefined) throw new UsageError(`${command} is not in a folder of PATH: give the absolute path of the command`);
  return found;
}

/** The PATH of a process that the gateway starts for a target: enough for the command, and for scripts of node. */
export const pathFor = (command: string): string =>
  [...new Set([dirname(command), dirname(process.execPath), '/usr/local/bin', '/usr/bin', '/bin'])].join(':');
