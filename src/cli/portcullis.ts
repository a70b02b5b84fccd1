#!/usr/bin/env node
/** The `portcullis` command: operators use it on the host, without a token; administrators use it over the API. */
import { writeFileSync } from 'node:fs';
import { Socket } from 'node:net';
import type { Writable } from 'node:stream';
import { printable } from '../base/printable.ts';
import { VERSION } from '../base/version.ts';
import { EXIT, helpTable, ownWords } from './command.ts';
import { ENTRIES, runWords } from './entries.ts';

const usage = (): string => `Usage: portcullis <command>

${helpTable(Object.entries(ENTRIES).map(([name, { takes, summary }]) => [takes === undefined ? name : `${name} ${takes}`, summary]))}
Every command takes --help and --version; portcullis help <command> is the same as portcullis <command> --help.

start, setup-code, user reset-password and audit verify work on the host, with the environment variables of the gateway
(docs/configuration.md). policies test, lint and schema need no gateway, and neither does compare --with. All other commands call a gateway.
`;

async function run(argv: readonly string[]): Promise<number> {
  if (ownWords(argv).includes('--version')) {
    process.stdout.write(`portcullis ${VERSION}\n`);
    return EXIT.ok;
  }
  const words = argv[0] === 'help' ? [...argv.slice(1), '--help'] : argv;
  const [name] = words;
  if (name === undefined || name === '--help') {
    process.stdout.write(usage());
    return EXIT.ok;
  }
  const code = await runWords(words, process);
  if (code !== null) return code;
  process.stderr.write(`portcullis: unknown command: ${printable(name)}\n\n${usage()}`);
  return EXIT.usage;
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
