/** `portcullis drafts`: proposed policy changes that the gateway stores, so that you can try them before you apply them. */
import { join } from 'node:path';
import { DRAFT_NAME } from '../../policies/sets/draft.ts';
import type { DraftJson, DraftSummaryJson } from '../../rest/policy-drafts/routes.ts';
import { CLIENT_NOTES, CLIENT_OPTIONS, connect } from '../client.ts';
import { type Command, type CommandGroup, counted, EXIT, type Given, UsageError } from '../command.ts';
import { dirOf, testDirOf } from './manifest.ts';
import { requireEmpty, writePolicyFile } from './policy-folder.ts';
import { type ReportJson, reportText } from './policy-replay.ts';
import { EXPECT, expectedIn, fileSetOf, pointing, SET_OPTIONS } from './policy-set.ts';
import { testFilesIfAny } from './review/folder-tests.ts';

const { draft: _, ...FILE_OPTIONS } = SET_OPTIONS;
const REASON = { value: 'TEXT', help: 'why; the history records it' };

/** Checks the draft's name before it becomes part of a path. */
function pathOf(given: Given, more = ''): string {
  const [name = ''] = given.args;
  if (!DRAFT_NAME.test(name)) {
    throw new UsageError(`a draft name must consist of a-z, 0-9, ".", "_" and "-"; ${name} does not`);
  }
  return `/api/policies/drafts/${name}${more}`;
}

const list: Command = {
  name: 'list',
  summary: 'lists the drafts',
  async run(given) {
    const drafts = await connect(given).items<DraftSummaryJson>('/api/policies/drafts');
    const lines = drafts.map(
      ({ name, author, updated_at, shadow }) => `${name}  ${updated_at}  ${author.email}${shadow ? '  (shadowed)' : ''}\n`,
    );
    return { text: lines.length === 0 ? 'There are no drafts.\n' : lines.join(''), json: drafts };
  },
};

const save: Command = {
  name: 'save',
  takes: '<name>',
  summary: 'stores the files of a folder, with its tests, as a draft; replaces a draft with the same name',
  help: `If the gateway could not apply a file, it refuses the draft and names the file, line and column.
The tests must pass before you can activate the draft.`,
  options: FILE_OPTIONS,
  async run(given) {
    const dir = dirOf(given);
    const tests = Object.fromEntries(testFilesIfAny(given));
    const path = pathOf(given);
    const draft = await pointing(dir, testDirOf(given), () =>
      connect(given).call<DraftJson>('PUT', path, { ...fileSetOf(given), tests }),
    );
    const counts = `${counted(Object.keys(draft.files).length, 'policy', 'policies')}, ${counted(Object.keys(draft.tests).length, 'file')} of tests`;
    return { text: `saved ${draft.name}: ${counts}\n`, json: draft };
  },
};

const show: Command = {
  name: 'show',
  takes: '<name>',
  summary: 'prints the files of a draft; with --out, writes them into a folder',
  options: { out: { value: 'DIR', help: 'the folder to write to; it must be empty or not exist' } },
  async run(given) {
    const draft = await connect(given).having<DraftJson>('files', 'GET', pathOf(given));
    const out = given.text('out');
    if (out === undefined) {
      const texts = Object.entries(draft.files).map(([file, text]) => `# ${file}\n${text}`);
      return { text: `${headOf(draft)}${texts.join('---\n')}`, json: draft };
    }
    requireEmpty(out);
    for (const [file, text] of Object.entries(draft.files)) writePolicyFile(out, file, text);
    for (const [file, text] of Object.entries(draft.tests)) writePolicyFile(join(out, 'tests'), file, text);
    return { text: `wrote ${counted(Object.keys(draft.files).length, 'policy', 'policies')} into ${out}\n`, json: draft };
  },
};

/** What activating the draft does beyond its files. */
function headOf({ name, owner, prune, adopt, hash, tests }: DraftJson): string {
  const lines = [
    `draft ${name} of the owner ${owner}, with ${counted(Object.keys(tests).length, 'file')} of tests, hash ${hash}`,
    ...(prune ? ['deletes the policies of the owner that have no file here'] : []),
    ...(adopt ? ['takes over policies that were created over the API'] : []),
  ];
  return `${lines.map((line) => `# ${line}\n`).join('')}\n`;
}

const activate: Command = {
  name: 'activate',
  takes: '<name>',
  summary: 'applies a draft, if its tests pass, and removes it',
  help: 'Applies nothing if the draft changes in the meantime or, for a draft with tests, if the policies or a target change.',
  options: {
    hash: { value: 'HASH', help: 'refuses if the draft no longer has this hash, so that you activate exactly what you reviewed' },
    ...EXPECT,
    reason: REASON,
  },
  async run(given) {
    const path = pathOf(given);
    const [hash, reason] = ['hash', 'reason'].map((option) => given.text(option));
    const client = connect(given);
    const plan = await client.having<{ revision: number; changes: readonly { action: string; name: string }[] }>(
      'changes',
      'POST',
      `${path}/activate`,
      {
        ...expectedIn(given),
        ...(reason === undefined ? {} : { reason }),
      },
      hash === undefined ? {} : { 'if-match': `"${hash}"` },
    );
    const lines = plan.changes.map(({ action, name }) => `  ${action} ${JSON.stringify(name)}\n`);
    const head = plan.changes.length === 0 ? 'The policies already match the draft' : `Applied, as revision ${plan.revision}`;
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
  summary: 'shows which decisions the draft would have changed since its shadow began',
  help: `With --begin, the gateway evaluates each later decision against the draft, too. It reads the decisions from the audit log, seconds after
they were made, and the draft has no effect on them. If you save a changed draft under the same name, the shadow restarts.`,
  options: {
    begin: { help: 'begins the shadow' },
    end: { help: 'ends the shadow' },
    'detailed-exitcode': { help: `exits with ${EXIT.changes} if the draft would have changed a decision` },
  },
  async run(given) {
    const path = pathOf(given, '/shadow');
    const client = connect(given);
    if (given.flag('begin') && given.flag('end')) throw new UsageError('pass either --begin or --end, not both');
    if (given.flag('end')) {
      await client.call('DELETE', path);
      return { text: `${given.args[0]} is no longer shadowed\n`, json: { ended: given.args[0] } };
    }
    const report = await client.having<ReportJson & { problem: string | null }>(
      'flips',
      given.flag('begin') ? 'PUT' : 'GET',
      path,
    );
    const problem =
      report.problem === null
        ? ''
        : `The shadow is paused, because the draft cannot be applied to the current policies: ${report.problem}\n\n`;
    return {
      code: report.flips.length > 0 && given.flag('detailed-exitcode') ? EXIT.changes : EXIT.ok,
      text: problem + reportText(report),
      json: report,
    };
  },
};

export const draftsGroup: CommandGroup = {
  path: 'portcullis drafts',
  about: `Proposed policy changes that the gateway stores, so that you can try them before you apply them. The commands simulate, test --remote and
replay of portcullis policies take --draft NAME.`,
  notes: CLIENT_NOTES,
  commands: [list, save, show, shadow, activate, remove],
  options: CLIENT_OPTIONS,
};
