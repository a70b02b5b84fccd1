/** The scripts of `portcullis completion` in the shells themselves. */
import { spawnSync } from 'node:child_process';
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { optionsOf, runGroup } from '../../../src/cli/command.ts';
import { completionGroupOf } from '../../../src/cli/completion/completion.ts';
import { ENTRIES } from '../../../src/cli/entries.ts';
import { terminalTest } from '../../support/terminal.ts';
import { folder, inProcess } from '../cli.ts';

const MAX_BYTES = 40_000;

/** Programs that load the script `$1` and complete each of the lines that follow. Each answer ends with a line `.`. */
const PROGRAMS: Readonly<Record<string, readonly string[]>> = {
  bash: [
    '--norc',
    '-c',
    `source "$1"; shift; set -f
    for line; do
      COMP_WORDS=($line); [[ $line == *' ' ]] && COMP_WORDS+=('')
      COMP_CWORD=$((\${#COMP_WORDS[@]} - 1)); set +f; _portcullis; set -f
      printf '%s\\n' "\${COMPREPLY[@]}" .
    done`,
    'bash',
  ],
  // Outside of a line editor, zsh cannot complete: these functions print what the script would offer.
  zsh: [
    '-f',
    '-c',
    `compdef() {}; compadd() { print -rl -- "\${@:2}" }; _describe() { print -rl -- "\${(@P)@[-1]}" }
    _files() { if [[ $1 == -/ ]]; then print -rl -- *(/N); else print -rl -- *(N); fi }
    source "$1"; shift
    for line; do
      words=(\${=line}); [[ $line == *' ' ]] && words+=('')
      CURRENT=$#words; _portcullis; print .
    done`,
    'zsh',
  ],
  fish: ['--no-config', '-c', 'source $argv[1]; for line in $argv[2..-1]; complete -C "$line"; echo .; end'],
};

interface Offered {
  readonly word: string;
  readonly help: string;
}

async function scriptOf(t: ExecutionContext, shell: string): Promise<string> {
  const { code, out } = await inProcess({}, (terminal) => runGroup(completionGroupOf(ENTRIES), ['completion', shell], terminal));
  t.is(code, 0);
  t.true(out.length < MAX_BYTES, `the script has ${out.length} bytes`);
  return out;
}

/** Returns what the shell offers for each line. */
async function complete(t: ExecutionContext, shell: string, cwd: string, lines: readonly string[]) {
  const script = join(folder(t), 'script');
  writeFileSync(script, await scriptOf(t, shell));
  const { stdout, stderr, status } = spawnSync(shell, [...(PROGRAMS[shell] ?? []), script, ...lines], {
    cwd,
    encoding: 'utf8',
    env: { PATH: process.env['PATH'], HOME: folder(t), LC_ALL: 'C.UTF-8' },
  });
  t.is(stderr.slice(0, 500), '');
  t.not(status, null);
  const answers = stdout.split(/^\.\n/m).slice(0, -1);
  t.is(answers.length, lines.length, stdout);
  return lines.map((line, at): readonly Offered[] =>
    (answers[at] ?? '')
      .split('\n')
      .filter((text) => text.startsWith(line.slice(line.lastIndexOf(' ') + 1)) && text !== '')
      .map((text) => /^(?<word>[^\t:]*?)\/?(?:[\t:](?<help>.*))?$/.exec(text)?.groups)
      .map((groups) => ({ word: groups?.['word'] ?? '', help: groups?.['help'] ?? '' }))
      .sort((one, other) => (one.word < other.word ? -1 : 1)),
  );
}

const EXAMPLES: Readonly<Record<string, readonly string[]>> = {
  targ: ['target'],
  'target cr': ['create'],
  'target create x --transport s': ['sse', 'stdio', 'streamable-http'],
  'target create x --transport sse --ur': ['--url'],
  'target create x --description ': [],
  'target create x --description target --ur': ['--url'],
  'target create x ': [],
  'target create --file o': ['one.json'],
  'import ': ['a*b', 'one.json', 'rules', 'two words.json'],
  'import one.json ': [],
  'policies lint --dir ': ['rules'],
  'policies --di': [],
  'connect claude-': ['claude-code', 'claude-desktop'],
  'completion ': ['bash', 'fish', 'zsh'],
  'log --foll': ['--follow'],
  'log --follow --effect ': ['allow', 'deny'],
  'help targ': ['target'],
  'help target cr': ['create'],
  'add x -- ': [],
  'nothing ': [],
  'target show $(echo>evil)': [],
  'target create `echo>evil` --file $(echo>evil)': [],
  'target create x --transport $(echo>evil)': [],
  'target show * --js': ['--json'],
};

for (const [shell] of Object.entries(PROGRAMS)) {
  const isHere = spawnSync(shell, ['--version']).error === undefined;
  const needs = `${shell} (apt-get install ${shell})`;
  const title = (what: string): string => `${shell} ${what}${isHere ? '' : ` (needs ${needs})`}`;
  const declare = isHere || process.env['CI'] === 'true' ? test.serial : test.skip;

  declare(title('completes commands, options, values and files, and evaluates nothing that was typed'), async (t) => {
    if (!isHere) return t.fail(`CI needs ${needs}`);
    const cwd = folder(t);
    for (const name of ['one.json', 'two words.json', 'a*b']) writeFileSync(join(cwd, name), '');
    mkdirSync(join(cwd, 'rules'));
    const before = readdirSync(cwd);
    const offered = await complete(
      t,
      shell,
      cwd,
      Object.keys(EXAMPLES).map((line) => `portcullis ${line}`),
    );
    t.deepEqual(
      Object.fromEntries(Object.keys(EXAMPLES).map((line, at) => [line, offered[at]?.map(({ word }) => word)])),
      EXAMPLES as Record<string, string[]>,
    );
    t.deepEqual(readdirSync(cwd), before);
  });

  declare(title('offers every command and every option, and no other'), async (t) => {
    if (!isHere) return t.fail(`CI needs ${needs}`);
    const expected = new Map<string, string[]>([['portcullis ', ['help', ...Object.keys(ENTRIES)]]]);
    for (const [name, { load }] of Object.entries(ENTRIES)) {
      const group = await load();
      const isOne = group.path === 'portcullis';
      if (!isOne)
        expected.set(
          `portcullis ${name} `,
          group.commands.map((command) => command.name),
        );
      for (const command of group.commands.filter((one) => !isOne || one.name === name)) {
        const options = Object.keys(optionsOf(group, command)).map((option) => `--${option}`);
        expected.set(`${group.path} ${command.name} --`, options);
      }
    }
    const offered = await complete(t, shell, folder(t), [...expected.keys()]);
    t.deepEqual(
      Object.fromEntries([...expected.keys()].map((line, at) => [line, offered[at]?.map(({ word }) => word)])),
      Object.fromEntries([...expected].map(([line, words]) => [line, words.sort()])),
    );
    const help = offered.flat().find(({ word }) => word === 'create')?.help;
    t.is(help, shell === 'bash' ? '' : 'registers a target');
  });
}

terminalTest(
  'zsh completes at its prompt, with the script sourced and in a folder of fpath',
  async (t, open) => {
    const cwd = folder(t);
    writeFileSync(join(cwd, '_portcullis'), await scriptOf(t, 'zsh'));
    const start = 'autoload -U compinit; compinit -u -D';
    for (const way of [`${start}; source ./_portcullis`, `fpath=($PWD $fpath); ${start}`]) {
      const terminal = open(cwd, { PATH: process.env['PATH'] ?? '', HOME: cwd });
      terminal.type('exec zsh -f');
      terminal.type(`${way}; PS1='zsh> '`);
      await terminal.shows(/^zsh> /m);
      for (const keys of ['portcullis targ', 'Tab', 'cr', 'Tab', 'github --iso', 'Tab', 'per_r', 'Tab']) terminal.press(keys);
      t.regex(await terminal.shows(/^zsh> portcullis target create github --isolation per_role/m), /per_role/);
    }
  },
  'zsh',
);

test('a shell without a script is refused with the names of the others', async (t) => {
  const { code, err } = await inProcess({}, (terminal) =>
    runGroup(completionGroupOf(ENTRIES), ['completion', 'constructor'], terminal),
  );
  t.deepEqual([code, err.split('\n')[0]], [2, 'portcullis: constructor is not one of these shells: bash, zsh, fish']);
});
