/** `portcullis drafts`: changes of the policies that are kept at the gateway to be tried before they are made. */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { DRAFT_NAME } from '../policies/drafts/draft.ts';
import { CLIENT_NOTES, CLIENT_OPTIONS, connect } from './client.ts';
import { type Command, CommandError, counted, EXIT, type Given, runGroup, type Terminal, UsageError } from './command.ts';
import { readPolicyFolder, writePolicyFile } from './policy-folder.ts';
import { type ReportJson, reportText } from './policy-replay.ts';
import { dirOf, fileSetOf, pointing, SET_OPTIONS } from './policy-set.ts';

interface Summary {
  readonly name: string;
  readonly owner: string;
  readonly shadow: boolean;
  readonly author: { readonly email: string };
  readonly hash: string;
  readonly updated_at: string;
}
interface DraftJson extends Summary {
  readonly prune: boolean;
  readonly adopt: boolean;
  readonly files: Readonly<Record<string, string>>;
  readonly tests: Readonly<Record<string, string>>;
}

const { draft: _, ...FILE_OPTIONS } = SET_OPTIONS;
const REASON = { value: 'TEXT', help: 'why; it is kept in the history' };

/** Before it goes into a path. */
function pathOf(given: Given, more = ''): string {
  const [name = ''] = given.args;
  if (!DRAFT_NAME.test(name)) {
    throw new UsageError(`the name of a draft is of a-z, 0-9, ".", "_" and "-", and ${name} is none`);
  }
  return `/api/policies/drafts/${name}${more}`;
}

const list: Command = {
  name: 'list',
  summary: 'lists the drafts',
  async run(given) {
    const drafts = await connect(given).call<Summary[]>('GET', '/api/policies/drafts');
    const lines = drafts.map(
      ({ name, author, updated_at, shadow }) => `${name}  ${updated_at}  ${author.email}${shadow ? '  (shadowed)' : ''}\n`,
    );
    return { text: lines.length === 0 ? 'There is no draft.\n' : lines.join(''), json: drafts };
  },
};

const save: Command = {
  name: 'save',
  takes: '<name>',
  summary: 'keeps the files of a folder, with its tests, as a draft: anew, if there is one of this name',
  help: 'What could not be applied is refused, with file, line and column. The tests must pass before the draft can be activated.',
  options: FILE_OPTIONS,
  async run(given) {
    const dir = dirOf(given);
    const testDir = join(dir, 'tests');
    const tests = existsSync(testDir) ? Object.fromEntries(readPolicyFolder(testDir)) : {};
    const path = pathOf(given);
    const draft = await pointing(dir, testDir, () => connect(given).call<DraftJson>('PUT', path, { ...fileSetOf(given), tests }));
    const counts = `${counted(Object.keys(draft.files).length, 'policy', 'policies')}, ${counted(Object.keys(draft.tests).length, 'file')} of tests`;
    return { text: `saved ${draft.name}: ${counts}\n`, json: draft };
  },
};

const show: Command = {
  name: 'show',
  takes: '<name>',
  summary: 'prints the files of a draft; with --out, writes them into a folder',
  options: { out: { value: 'DIR', help: 'where to: an empty folder, or none yet' } },
  async run(given) {
    const draft = await connect(given).call<DraftJson>('GET', pathOf(given));
    const out = given.text('out');
    if (out === undefined) {
      const texts = Object.entries(draft.files).map(([file, text]) => `# ${file}\n${text}`);
      return { text: texts.join('---\n'), json: draft };
    }
    if (existsSync(out) && readdirSync(out).length > 0) {
      throw new CommandError(`${out} has files already: give an empty folder, or none yet`, 'no_folder');
    }
    for (const [file, text] of Object.entries(draft.files)) writePolicyFile(out, file, text);
    for (const [file, text] of Object.entries(draft.tests)) writePolicyFile(join(out, 'tests'), file, text);
    return { text: `wrote ${counted(Object.keys(draft.files).length, 'policy', 'policies')} into ${out}\n`, json: draft };
  },
};

const activate: Command = {
  name: 'activate',
  takes: '<name>',
  summary: 'applies a draft, if its tests pass, and removes it',
  help: 'If the draft is changed meanwhile, or with tests the policies or a target, nothing is applied.',
  options: {
    hash: { value: 'HASH', help: 'refuses if the draft is another: what was looked at is what counts' },
    'expect-revision': { value: 'REVISION', help: 'refuses if the policies are at another revision' },
    reason: REASON,
  },
  async run(given) {
    const path = pathOf(given);
    const [hash, expected, reason] = ['hash', 'expect-revision', 'reason'].map((option) => given.text(option));
    if (expected !== undefined && !/^[0-9]{1,15}$/.test(expected)) {
      throw new UsageError(`a revision is a number, and ${expected} is none`);
    }
    const client = connect(given);
    const plan = await client.call<{ revision: number; changes: readonly { action: string; name: string }[] }>(
      'POST',
      `${path}/activate`,
      {
        ...(expected === undefined ? {} : { expected_revision: Number(expected) }),
        ...(reason === undefined ? {} : { reason }),
      },
      hash === undefined ? {} : { 'if-match': `"${hash}"` },
    );
    const lines = plan.changes.map(({ action, name }) => `  ${action} ${JSON.stringify(name)}\n`);
    const head = plan.changes.length === 0 ? 'The policies say so already' : `Applied, as revision ${plan.revision}`;
    return { text: `${head}${lines.length === 0 ? '.\n' : `:\n${lines.join('')}`}`, json: plan };
  },
};

const remove: Command = {
  name: 'delete',
  takes: '<name>',
  summary: 'deletes a draft, with its shadow',
  async run(given) {
    const path = pathOf(given);
    await connect(given).call('DELETE', path);
    return { text: `deleted ${given.args[0]}\n`, json: { deleted: given.args[0] } };
  },
};

const shadow: Command = {
  name: 'shadow',
  takes: '<name>',
  summary: 'shows what a draft would have decided otherwise since it is evaluated beside the policies',
  help: `With --begin every decision of the gateway is put to the draft from then on, from the audit log, seconds after it was made, without any
effect. When another draft is saved under the name, it begins anew.`,
  options: {
    begin: { help: 'begins it' },
    end: { help: 'ends it' },
    'detailed-exitcode': { help: `exits with ${EXIT.changes} where something was decided otherwise` },
  },
  async run(given) {
    const path = pathOf(given, '/shadow');
    const client = connect(given);
    if (given.flag('begin') && given.flag('end')) throw new UsageError('--begin or --end, not both');
    if (given.flag('end')) {
      await client.call('DELETE', path);
      return { text: `${given.args[0]} is shadowed no longer\n`, json: { ended: given.args[0] } };
    }
    const report = await client.call<ReportJson & { problem: string | null }>(given.flag('begin') ? 'PUT' : 'GET', path);
    const problem =
      report.problem === null
        ? ''
        : `The draft cannot be applied to the policies as they are, and decisions wait: ${report.problem}\n\n`;
    return {
      code: report.flips.length > 0 && given.flag('detailed-exitcode') ? EXIT.changes : EXIT.ok,
      text: problem + reportText(report),
      json: report,
    };
  },
};

/** The exit code. */
export function drafts(argv: readonly string[], terminal: Terminal = process): Promise<number> {
  return runGroup(
    {
      path: 'portcullis drafts',
      about: `Changes of the policies that are kept at the gateway to be tried before they are made. portcullis policies simulate, test --remote and
replay take --draft NAME.`,
      notes: CLIENT_NOTES,
      commands: [list, save, show, shadow, activate, remove],
      options: CLIENT_OPTIONS,
    },
    argv,
    terminal,
  );
}
