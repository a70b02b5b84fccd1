/** `portcullis invariants`: invariants as files in git. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import type { InvariantJson } from '../../policies/invariants/invariant.ts';
import { formatInvariantFile, parseInvariantFile } from '../../policies/invariants/invariant-files.ts';
import { type BrokenInvariant, brokenText } from '../../policies/invariants/judge.ts';
import type { InvariantPlanJson } from '../../rest/invariants/routes.ts';
import { CLIENT_NOTES, CLIENT_OPTIONS, connect } from '../client.ts';
import { type Command, CommandError, type CommandGroup, counted, EXIT, type Given, type Option } from '../command.ts';
import { INVARIANT_FILE_SCHEMA } from './file-schema.ts';
import { readPolicyFolder, writePolicyFile } from './policy-folder.ts';
import { pointing, quote } from './policy-set.ts';

const DIR: Option = { value: 'DIR', help: 'the folder of the invariant files (default: invariants)' };
const FILE_OPTIONS = { dir: DIR, prune: { help: 'deletes invariants that no file describes' } } as const;
const dirOf = (given: Given): string => given.text('dir') ?? 'invariants';

const list: Command = {
  name: 'list',
  summary: 'lists the invariants',
  async run(given) {
    const invariants = await connect(given).items<InvariantJson>('/api/invariants');
    const lines = invariants.map(({ name, reason, enabled, exceptions }) => {
      const notes = [
        ...(enabled ? [] : ['disabled']),
        ...(exceptions.length === 0 ? [] : [counted(exceptions.length, 'exception')]),
      ];
      return `${name}${notes.length === 0 ? '' : `  (${notes.join(', ')})`}: ${reason}\n`;
    });
    return { text: lines.length === 0 ? 'There are no invariants.\n' : lines.join(''), json: invariants };
  },
};

const exportFiles: Command = {
  name: 'export',
  summary: 'writes each invariant of the gateway into its file',
  help: 'A file that already describes its invariant stays as it is. An invariant without a file gets one, named after the invariant.',
  options: { dir: DIR },
  async run(given) {
    const dir = dirOf(given);
    const { files } = await connect(given).having<{ files: Record<string, string> }>('files', 'GET', '/api/invariants/export');
    const mine = existsSync(dir) ? readPolicyFolder(dir) : new Map<string, string>();
    const fileOfName = new Map([...mine].map(([file, text]) => [parsed(text, join(dir, file)).name, file]));
    const taken = new Set(mine.keys());
    const written: string[] = [];
    for (const [file, text] of Object.entries(files)) {
      const invariant = parsed(text, file);
      const name = fileOfName.get(invariant.name) ?? unlike(taken, file);
      taken.add(name);
      const before = mine.get(name) ?? null;
      const after = formatInvariantFile(invariant, before);
      if (after === before) continue;
      writePolicyFile(dir, name, after);
      written.push(name);
    }
    const unchanged = Object.keys(files).length - written.length;
    const lines = [
      ...written.map((file) => `wrote ${join(dir, file)}`),
      `${counted(written.length, 'file')} written, ${unchanged} unchanged.`,
    ];
    return { text: `${lines.join('\n')}\n`, json: { dir, written, unchanged } };
  },
};

/** The gateway names files after invariants. Here, a file with this name can describe a different one. */
function unlike(taken: ReadonlySet<string>, file: string): string {
  let name = file;
  for (let n = 2; taken.has(name); n++) name = file.replace(/\.yaml$/, `-${n}.yaml`);
  return name;
}

function parsed(text: string, file: string) {
  const read = parseInvariantFile(text, file);
  if ('invariant' in read) return read.invariant;
  const lines = read.errors.map(({ line, column, message }) => `${file}:${line}:${column}: ${message}`);
  throw new CommandError(`${lines.join('\n')}\nnothing was written: correct these files, or remove them`, 'invalid_file');
}

const plan: Command = {
  name: 'plan',
  summary: 'shows what apply would change, and which invariants the policies break; changes nothing',
  help: 'Exit code: 0 apply would succeed; 1 failure, or the policies break a changed invariant; 2 wrong usage.',
  options: FILE_OPTIONS,
  async run(given) {
    const answer = await send<InvariantPlanJson & { invariants: readonly BrokenInvariant[] }>(given, 'plan', {});
    const { invariants } = answer;
    return {
      code: invariants.length > 0 ? EXIT.failed : EXIT.ok,
      text: `${invariantsText(invariants)}${planText(answer)}`,
      json: answer,
    };
  },
};

const apply: Command = {
  name: 'apply',
  summary: 'makes the invariants of the gateway match the files, in one change',
  help: 'The gateway refuses an invariant that the policies break already, and shows a request that breaks it.',
  options: { ...FILE_OPTIONS, reason: { value: 'TEXT', help: 'why; the log of changes records it' } },
  async run(given) {
    const reason = given.text('reason');
    const answer = await send<InvariantPlanJson>(given, 'apply', reason === undefined ? {} : { reason });
    return { text: planText(answer), json: answer };
  },
};

function send<T>(given: Given, what: 'plan' | 'apply', more: object): Promise<T> {
  const client = connect(given);
  const dir = dirOf(given);
  const files = readPolicyFolder(dir);
  if (files.size === 0)
    throw new CommandError(`${dir} contains no invariant files (*.yaml): set --dir to their folder`, 'no_folder');
  const body = { files: Object.fromEntries(files), prune: given.flag('prune'), ...more };
  return pointing(dir, dir, () => client.call<T>('POST', `/api/invariants/${what}`, body));
}

function planText({ changes, unchanged, left }: InvariantPlanJson): string {
  const signs = { create: '+', update: '~', delete: '-' } as const;
  const lines = [
    ...changes.map(({ action, file, name, members }) => {
      const what = members.length === 0 ? '' : `: ${members.join(', ')}`;
      return `${signs[action]} ${action} ${file ?? ''}${file === null ? '' : ' '}${quote(name)}${what}`;
    }),
    ...left.map((name) => `  ${quote(name)} has no file: --prune deletes it`),
    `${counted(changes.length, 'change')}, ${unchanged} unchanged.`,
  ];
  return `${lines.join('\n')}\n`;
}

/** Returns a paragraph for each invariant that would be broken. */
export const invariantsText = (invariants: readonly BrokenInvariant[]): string =>
  invariants
    .map((one) => {
      const what = one.witness === null ? 'It is unknown whether this invariant would be broken' : 'Breaks the invariant';
      return `${what}: ${brokenText(one)}\n\n`;
    })
    .join('');

const schema: Command = {
  name: 'schema',
  summary: 'prints the JSON Schema of invariant files, with which editors complete and check them',
  help: 'This command needs no gateway.',
  async run() {
    return { text: `${JSON.stringify(INVARIANT_FILE_SCHEMA, null, 2)}\n`, json: INVARIANT_FILE_SCHEMA };
  },
};

export const invariantsGroup: CommandGroup = {
  path: 'portcullis invariants',
  about: 'Invariants: what no change of the policies may allow.',
  notes: CLIENT_NOTES,
  commands: [list, exportFiles, plan, apply, schema],
  options: CLIENT_OPTIONS,
};
