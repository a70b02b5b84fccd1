/** `portcullis completion`: prints a script with which a shell completes commands, options and file names. */
import { type Command, type CommandGroup, type Entry, EXIT, optionsOf, UsageError } from '../command.ts';
import { type Row, SCRIPTS } from './scripts.ts';

type Entries = Readonly<Record<string, Entry>>;

/** The word of the row that says what the first argument of a command is. */
const FIRST_ARGUMENT = '<>';
/** The value of a word that no value follows. */
const NO_VALUE = '-';
const HELP_WIDTH = 80;

/** Returns the first sentence in one line. */
function brief(help: string): string {
  const [sentence = ''] = help.replaceAll(/\s+/g, ' ').split(/[.;:] /);
  return sentence.length <= HELP_WIDTH ? sentence : `${sentence.slice(0, HELP_WIDTH).replace(/ \S*$/, '')}…`;
}

/** Returns a row for each word and option. Equal options of several commands share one. */
async function rows(entries: Entries): Promise<readonly Row[]> {
  const found = new Map<string, Row & { readonly after: string[] }>();
  const add = (after: string, word: string, help: string, value = NO_VALUE): void => {
    const row = { word, value, help: brief(help), after: [] };
    const key = JSON.stringify(row);
    const known = found.get(key) ?? row;
    found.set(key, known);
    known.after.push(after);
  };
  const addCommand = (path: string, group: CommandGroup, command: Command): void => {
    if (command.completes !== undefined) add(path, FIRST_ARGUMENT, '', command.completes);
    for (const [name, { help, value }] of Object.entries(optionsOf(group, command))) add(path, `--${name}`, help, value);
  };
  add('', 'help', 'prints the help of a command');
  for (const option of ['--help', '--version']) add('', option, `prints ${option === '--help' ? 'the help' : 'the version'}`);
  for (const [name, { summary, load }] of Object.entries(entries)) {
    add('', name, summary);
    const group = await load();
    const isOne = group.path === 'portcullis';
    for (const command of group.commands) {
      if (isOne && command.name !== name) continue;
      if (!isOne) add(name, command.name, command.summary);
      addCommand(isOne ? name : `${name} ${command.name}`, group, command);
    }
  }
  return [...found.values()];
}

const completionOf = (entries: Entries): Command => ({
  name: 'completion',
  takes: '<shell>',
  completes: Object.keys(SCRIPTS).join('|'),
  summary: 'prints the script with which bash, zsh or fish completes commands, options and file names',
  help: `bash: add this line to ~/.bashrc:   eval "$(portcullis completion bash)"
zsh:  add this line to ~/.zshrc, after compinit:   source <(portcullis completion zsh)
fish: portcullis completion fish > ~/.config/fish/completions/portcullis.fish

The script starts no program of Portcullis, and asks no gateway. If you keep it in a file, print it again after an update.`,
  async run({ args: [shell = ''] }) {
    const script = Object.hasOwn(SCRIPTS, shell) ? SCRIPTS[shell] : undefined;
    if (script === undefined) throw new UsageError(`${shell} is not one of these shells: ${Object.keys(SCRIPTS).join(', ')}`);
    const text = script(await rows(entries));
    return { text: () => text, json: { script: text } };
  },
});

/** `entries`: the words that follow `portcullis`. */
export const completionGroupOf = (entries: Entries): CommandGroup => ({
  path: 'portcullis',
  about: 'Completes commands in a shell.',
  notes: `Exit code: ${EXIT.ok} success, ${EXIT.usage} wrong usage.`,
  options: {},
  commands: [completionOf(entries)],
});
