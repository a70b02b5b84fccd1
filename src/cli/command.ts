/** What all commands with subcommands share: help, options, exit codes, and output as text or as JSON. */
import { parseArgs } from 'node:util';
import { AppError, type FieldError } from '../base/errors.ts';
import { printable, printableJson } from '../base/printable.ts';
import { ConfigError } from '../config/config.ts';

export interface Output {
  write(text: string): unknown;
  /** The width of the terminal. Absent: the output goes to a file or a program. */
  readonly columns?: number;
  /** Whether the terminal has colours, and the person wants them (`NO_COLOR`). Absent: no terminal. */
  hasColors?(): boolean;
}

/** The streams to which a command writes: those of the process, or of a test. */
export interface Terminal {
  readonly stdout: Output;
  readonly stderr: { write(text: string): unknown };
}

export const EXIT = { ok: 0, failed: 1, usage: 2, changes: 3 } as const;
type ExitCode = (typeof EXIT)[keyof typeof EXIT];

/** What the terminal can show. `columns` is null if the output goes to a file or a program. */
export interface View {
  readonly columns: number | null;
  readonly colours: boolean;
}

export interface Option {
  /** The placeholder for the option's value in the help; absent: the option takes no value. */
  readonly value?: string;
  readonly help: string;
}

/** The arguments and options that a command got. */
export interface Given {
  readonly args: readonly string[];
  text(option: string): string | undefined;
  flag(option: string): boolean;
}

/** The result of a command. `text` and `json` contain the same facts. */
export interface Outcome {
  readonly code?: ExitCode;
  /** Output for people. A function gets what the terminal can show, and escapes control characters itself. */
  readonly text: string | ((view: View) => string);
  /** Output for programs. */
  readonly json: unknown;
}

export interface Command {
  readonly name: string;
  /** The arguments as the help shows them: `<from> [<to>]`. With `...]` at the end, any number may follow. */
  readonly takes?: string;
  /** What a shell completes as the first argument: `FILE`, or `one|other`. */
  readonly completes?: string;
  /** One line of help. */
  readonly summary: string;
  /** More help. Its lines are broken by hand. */
  readonly help?: string;
  readonly options?: Readonly<Record<string, Option>>;
  /** The notes of a command that takes no options of its group. They replace those of the group. */
  readonly notes?: string;
  /** `say` reports progress to the person who runs the command. null: the command has written its results with `write`, or continues to run. */
  run(given: Given, say: (progress: string) => void, write: (outcome: Outcome) => void): Promise<Outcome | null>;
}

export interface CommandGroup {
  /** The command line that starts the group: `portcullis policies`. */
  readonly path: string;
  /** `about` is at the beginning of the help, `notes` at its end. */
  readonly about: string;
  readonly notes: string;
  readonly commands: readonly Command[];
  /** The options that every command of the group takes, unless it has notes of its own. */
  readonly options: Readonly<Record<string, Option>>;
}

/** A word that follows `portcullis`. */
export interface Entry {
  /** What follows the word: `<command>`. */
  readonly takes?: string;
  readonly summary: string;
  /** Loads the code only when it is needed, so that no command waits for that of the others. */
  readonly load: () => Promise<CommandGroup>;
}

/** The command was used wrongly: exit code 2, and a pointer to the help. */
export class UsageError extends Error {}

/** The command failed because of files, or because of the gateway. */
export class CommandError extends Error {
  readonly code: string;
  readonly errors: readonly FieldError[];
  readonly exit: ExitCode;

  /** `message` is for people. `code` and `errors` come from the gateway if it refused. */
  constructor(message: string, code = 'failed', errors: readonly FieldError[] = [], exit: ExitCode = EXIT.failed) {
    super(message);
    this.code = code;
    this.errors = errors;
    this.exit = exit;
  }
}

const COMMON = {
  json: { help: 'prints one JSON document instead of text' },
  help: { help: 'prints this help' },
  version: { help: 'prints the version' },
} as const satisfies Record<string, Option>;

/** Returns the exit code. */
export async function runGroup(group: CommandGroup, argv: readonly string[], terminal: Terminal): Promise<number> {
  // `portcullis log --follow` is `portcullis log list --follow`.
  const isList = argv[0]?.startsWith('--') && argv[0] !== '--help' && group.commands.some((command) => command.name === 'list');
  const [name, ...rest] = isList ? ['list', ...argv] : argv;
  if (name === undefined || name === 'help' || name === '--help') {
    terminal.stdout.write(groupHelp(group));
    return EXIT.ok;
  }
  const command = group.commands.find((known) => known.name === name);
  if (command === undefined) {
    terminal.stderr.write(`portcullis: unknown command: ${group.path} ${printable(name)}\n\n${groupHelp(group)}`);
    return EXIT.usage;
  }
  if (ownWords(rest).includes('--help')) {
    terminal.stdout.write(commandHelp(group, command));
    return EXIT.ok;
  }
  const asJson = ownWords(rest).includes('--json');
  const say = (progress: string): void => void terminal.stderr.write(printable(`portcullis: ${progress}\n`));
  const { stdout } = terminal;
  const view = { columns: stdout.columns ?? null, colours: stdout.hasColors?.() ?? false };
  const write = ({ text, json }: Outcome): void => {
    const shown = (): string => (typeof text === 'string' ? printable(text) : text(view));
    stdout.write(asJson ? `${jsonText(json)}\n` : shown());
  };
  try {
    const outcome = await command.run(read(group, command, rest), say, write);
    if (outcome !== null) write(outcome);
    return outcome?.code ?? EXIT.ok;
  } catch (thrown) {
    const error = faultOfFile(thrown) ?? thrown;
    const isUsage = error instanceof UsageError || error instanceof ConfigError;
    const isFailure = error instanceof CommandError || error instanceof AppError;
    // Other errors are unexpected, so they must not be reported as a failure of the command.
    if (!isUsage && !isFailure) throw error;
    const { message } = error;
    const how = isUsage ? `\nSee ${group.path} ${command.name} --help.` : '';
    terminal.stderr.write(printable(`portcullis: ${message}${how}\n`));
    if (asJson) {
      const { code, errors = [] } = isFailure ? error : { code: 'usage' };
      const details = errors.length === 0 ? {} : { errors };
      terminal.stdout.write(`${jsonText({ error: { code, message, ...details } })}\n`);
    }
    if (isUsage) return EXIT.usage;
    return error instanceof CommandError ? error.exit : EXIT.failed;
  }
}

/** Returns what is said about a path that a person passed and that cannot be used. null: the error is a different one. */
function faultOfFile(error: unknown): CommandError | null {
  if (!(error instanceof Error && 'syscall' in error && 'path' in error)) return null;
  return new CommandError(`a file or folder cannot be used: ${error.message}`, 'invalid_file');
}

/** Returns the words in front of `--`. Those behind it belong to a different program. */
export const ownWords = (argv: readonly string[]): readonly string[] => {
  const at = argv.indexOf('--');
  return at === -1 ? argv : argv.slice(0, at);
};

function read(group: CommandGroup, command: Command, argv: readonly string[]): Given {
  const known = optionsOf(group, command);
  const options = Object.fromEntries(
    Object.entries(known).map(([name, { value }]) => [
      name,
      { type: value === undefined ? ('boolean' as const) : ('string' as const) },
    ]),
  );
  let parsed: { values: Record<string, unknown>; positionals: string[] };
  try {
    parsed = parseArgs({ args: [...argv], options, allowPositionals: true });
  } catch (error) {
    // Cut the message of node after its first sentence: the rest advises on `--`, which does not help here.
    const [sentence = ''] = (error instanceof Error ? error.message : String(error)).split(/\. To specify|\.\s/);
    throw new UsageError(sentence);
  }
  const { values, positionals } = parsed;
  const takes = command.takes?.split(' ') ?? [];
  const needed = takes.filter((name) => !name.startsWith('[')).length;
  if (positionals.length < needed) throw new UsageError(`${command.name} needs ${command.takes}`);
  if (positionals.length > takes.length && !command.takes?.endsWith('...]'))
    throw new UsageError(`${command.name} does not take ${positionals[takes.length]}`);
  return {
    args: positionals,
    text: (option) => (typeof values[option] === 'string' ? values[option] : undefined),
    flag: (option) => values[option] === true,
  };
}

export const optionsOf = (group: CommandGroup, command: Command): Readonly<Record<string, Option>> => ({
  ...command.options,
  ...(command.notes === undefined ? group.options : {}),
  ...COMMON,
});

export function helpTable(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([left]) => left.length)) + 3;
  const indent = ' '.repeat(width + 2);
  return rows.map(([left, right]) => `  ${left.padEnd(width)}${right.replaceAll('\n', `\n${indent}`)}\n`).join('');
}

const usageOf = ({ name, takes }: Command): string => (takes === undefined ? name : `${name} ${takes}`);

function groupHelp({ path, about, notes, commands }: CommandGroup): string {
  const rows = commands.map((command): [string, string] => [usageOf(command), command.summary]);
  return `Usage: ${path} <command> [options]\n\n${about}\n\n${helpTable(rows)}\n${path} <command> --help lists the options of a command.\n\n${notes}\n`;
}

function commandHelp(group: CommandGroup, command: Command): string {
  const rows = Object.entries(optionsOf(group, command)).map(([name, { value, help }]): [string, string] => [
    `--${name}${value === undefined ? '' : ` ${value}`}`,
    help,
  ]);
  const more = command.help === undefined ? '' : `\n${command.help}\n`;
  return `Usage: ${group.path} ${usageOf(command)} [options]\n\n${command.summary}\n${more}\n${helpTable(rows)}\n${command.notes ?? group.notes}\n`;
}

/** The text as one word for a shell. A person may paste a command whose words come from others. */
export const shellWord = (text: string): string => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The value as JSON in which no text can move the cursor or reverse others. */
export const jsonText = (value: unknown): string => printableJson(JSON.stringify(value));

/** `1 file`, `2 files`. */
export const counted = (count: number, one: string, more = `${one}s`): string => `${count} ${count === 1 ? one : more}`;

const UNITS = { m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 } as const;

/** Returns the milliseconds of a span such as `24h` or `7d`. null: the text is not a span. */
export function spanOf(text: string): number | null {
  const [, count, unit] = /^([1-9]\d{0,4})([mhdw])$/.exec(text) ?? [];
  return count === undefined ? null : Number(count) * UNITS[unit as keyof typeof UNITS];
}
