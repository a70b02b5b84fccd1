/** `portcullis policies`: policies as files in git, and their history, over the REST API of a gateway. */
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { FILE_NAME, fileOf, MANIFEST_NAME } from '../../policies/files/file.ts';
import { describePolicyFileError, formatPolicyFile, type PolicyFile, parsePolicyFile } from '../../policies/files/yaml.ts';
import type { BrokenInvariant } from '../../policies/invariants/judge.ts';
import { type PolicyJson, policyFromJson, subjectKey } from '../../policies/schema.ts';
import type { changesJson, planCounts } from '../../policies/sets/plan-json.ts';
import type { RevisionJson } from '../../rest/policy-sets/routes.ts';
import { CLIENT_NOTES, CLIENT_OPTIONS, type Client, connect, type Progress, progressOf, type Say } from '../client.ts';
import { type Command, CommandError, type CommandGroup, counted, EXIT, type Given, type Option, UsageError } from '../command.ts';
import { idOf } from '../resources/find.ts';
import { type DecisionChangesJson, flipsText } from './decision-changes.ts';
import { MANIFEST_SCHEMA, POLICY_FILE_SCHEMA, TEST_FILE_SCHEMA } from './file-schema.ts';
import { invariantsText } from './invariants.ts';
import { dirOf, manifestIn, ownerOf, testDirOf } from './manifest.ts';
import { readPolicyFolder, removePolicyFile, writeManifest, writePolicyFile } from './policy-folder.ts';
import { explainCommand, simulateCommand, testCommand, whatCanCommand, whoCanCommand } from './policy-questions.ts';
import { replayCommand } from './policy-replay.ts';
import { type Between, betweenOf, DIR, EXPECT, expectedIn, fileSetOf, OWNER, pointing, revisionOf } from './policy-set.ts';
import { suggestCommand } from './policy-suggest.ts';
import { compareCommand } from './review/compare.ts';
import { contextCommand } from './review/context.ts';
import { testFilesIfAny } from './review/folder-tests.ts';
import { lintCommand } from './review/lint.ts';

type Change = ReturnType<typeof changesJson>[number];
type Plan = ReturnType<typeof planCounts> & { readonly changes: readonly Change[] };

interface PlanWithFlips extends Plan, DecisionChangesJson {
  readonly invariants: readonly BrokenInvariant[];
  readonly warnings: readonly { readonly message: string }[];
  readonly changes: (Change & DecisionChangesJson['changes'][number])[];
}

const ADOPT: Option = {
  help: 'takes over policies that were created over the API, if export would give them the name of one of the files',
};
const REASON: Option = { value: 'TEXT', help: 'why; the history records it' };

const exportFiles: Command = {
  name: 'export',
  summary: 'writes each policy of the gateway into its file',
  help: `A file that already describes its policy stays as it is, byte for byte. In the other files, comments stay. A policy without a file
gets one, named after the policy; "apply --adopt" then makes the policy belong to that file. If the folder has no portcullis.yaml, the
command writes one that names the owner.`,
  options: { dir: DIR, owner: OWNER, prune: { help: 'removes files that belong to no policy' } },
  async run(given) {
    const client = connect(given);
    const dir = given.text('dir') ?? 'policies';
    const owner = ownerOf(given);
    const query = new URLSearchParams({ owner });
    const { files } = await client.having<{ files: Record<string, string> }>('files', 'GET', `/api/policies/export?${query}`);
    const there = existsSync(dir) ? readPolicyFolder(dir, testDirOf(given)) : new Map<string, string>();
    const texts = mergedFiles(dir, new Map(Object.entries(files)), there);

    const written = [...texts].filter(([file, text]) => there.get(file) !== text).map(([file]) => file);
    const extra = [...there.keys()].filter((file) => !texts.has(file));
    const removed = given.flag('prune') ? extra.filter((file) => FILE_NAME.test(file)) : [];
    for (const file of written) writePolicyFile(dir, file, texts.get(file) ?? '');
    const isNew = manifestIn(dir) === null;
    if (isNew) writeManifest(dir, owner);
    for (const file of removed) removePolicyFile(dir, file);
    const left = extra.filter((file) => !removed.includes(file));
    const lines = [
      ...(isNew ? [`wrote ${join(dir, MANIFEST_NAME)}`] : []),
      ...written.map((file) => `wrote ${join(dir, file)}`),
      ...removed.map((file) => `removed ${join(dir, file)}`),
      ...left.map((file) => `${join(dir, file)} belongs to no policy: apply would create one from it, export --prune removes it`),
      `${counted(texts.size, 'policy', 'policies')}: ${counted(written.length, 'file')} written, ${texts.size - written.length} unchanged.`,
    ];
    return {
      text: `${lines.join('\n')}\n`,
      json: { dir, manifest: isNew, written, removed, extra: left, unchanged: texts.size - written.length },
    };
  },
};

/** Reads everything before the command writes anything. */
function mergedFiles(dir: string, remote: ReadonlyMap<string, string>, there: ReadonlyMap<string, string>): Map<string, string> {
  const errors: string[] = [];
  const texts = new Map<string, string>();
  for (const [file, text] of remote) {
    const mine = there.get(file);
    const theirs = parsePolicyFile(text, file);
    const own = mine === undefined ? null : parsePolicyFile(mine, join(dir, file));
    if ('errors' in theirs) throw new CommandError(theirs.errors.map(describePolicyFileError).join('\n'), 'no_gateway');
    if (own !== null && 'errors' in own) errors.push(...own.errors.map(describePolicyFileError));
    else texts.set(file, formatPolicyFile(theirs.policy, mine));
  }
  if (errors.length === 0) return texts;
  throw new CommandError(`${errors.join('\n')}\nnothing was written: correct these files, or remove them`, 'invalid_file');
}

const FILE_OPTIONS = {
  dir: DIR,
  owner: OWNER,
  prune: { help: 'deletes policies of this owner whose files no longer exist; keeps policies that were created over the API' },
  adopt: ADOPT,
  ...EXPECT,
} as const satisfies Record<string, Option>;

const plan: Command = {
  name: 'plan',
  summary: 'shows what apply would change, and which decisions would flip; changes nothing',
  help: `If the gateway could not apply a file, it refuses and names the file, line and column.
If the change would break an invariant, the plan shows a request, and the exit code is 1.
Like compare, it analyses all possible requests to find the decisions that would flip.`,
  options: {
    ...FILE_OPTIONS,
    'detailed-exitcode': { help: `exits with ${EXIT.changes} if apply would change something` },
    'fail-on-unmanaged': { help: `exits with ${EXIT.changes} if policies would belong to no file` },
  },
  async run(given, say) {
    const answer = await sendFiles<PlanWithFlips>(given, '/api/policies/plan', {}, say);
    const changes = answer.changes.length > 0;
    const decisions = changes
      ? `${flipsText(answer, { before: 'now', after: 'then' })}${warningsText(answer)}\n${invariantsText(answer.invariants)}`
      : '';
    const refused = answer.invariants.length > 0;
    const notable = (changes && given.flag('detailed-exitcode')) || (answer.unmanaged > 0 && given.flag('fail-on-unmanaged'));
    return {
      code: refused ? EXIT.failed : notable ? EXIT.changes : EXIT.ok,
      text:
        decisions +
        planText(answer, changes ? `Revision ${answer.revision} would become:` : '') +
        (changes
          ? `To apply exactly this, pass --expect-revision ${answer.owner_revision} --expect-targets ${answer.targets_hash}.\n`
          : ''),
      json: answer,
    };
  },
};

const apply: Command = {
  name: 'apply',
  summary: 'makes the policies of the gateway match the files, in one transaction',
  help: `If the folder contains a folder named tests, the gateway first runs those tests on the candidate set. If one fails, it applies
nothing. It also applies nothing if the policies change in the meantime.`,
  options: { ...FILE_OPTIONS, reason: REASON, 'skip-tests': { help: 'applies without running the tests' } },
  async run(given) {
    const answer = await sendFiles<Plan>(given, '/api/policies/apply', given.flag('skip-tests') ? {} : testsIn(given));
    return {
      text: planText(answer, answer.changes.length > 0 ? `Applied, as revision ${answer.revision}:` : ''),
      json: answer,
    };
  },
};

/** The member `tests`, if the folder has tests. */
function testsIn(given: Given): object {
  const tests = testFilesIfAny(given);
  return tests.size === 0 ? {} : { tests: Object.fromEntries(tests) };
}

/** `say`: if it is given, the gateway reports its progress. */
function sendFiles<T>(given: Given, path: string, more: object, say?: Say): Promise<T> {
  const client = connect(given);
  const dir = dirOf(given);
  const reason = given.text('reason');
  const body = {
    // `fileSetOf` refuses an empty folder: with `--prune` it would delete every policy, and the folder is probably the wrong one.
    ...fileSetOf(given),
    ...more,
    ...expectedIn(given),
    ...(reason === undefined ? {} : { reason }),
  };
  return pointing(dir, testDirOf(given), () =>
    say === undefined ? client.call<T>('POST', path, body) : client.follow<T, Progress>('POST', path, body, progressOf(say)),
  );
}

const history: Command = {
  name: 'history',
  summary: 'lists revisions, newest first: when, who, what, why',
  options: { limit: { value: 'N', help: 'how many, from 1 to 1000 (default: 20)' } },
  async run(given) {
    const limit = given.text('limit') ?? '20';
    const rows: RevisionJson[] = [];
    // A page is shorter if its revisions have many changes.
    for await (const { items } of connect(given).pages<RevisionJson>(`/api/policies/history?${new URLSearchParams({ limit })}`)) {
      rows.push(...items.slice(0, Number(limit) - rows.length));
      if (rows.length >= Number(limit)) break;
    }
    return { text: rows.length === 0 ? 'There are no revisions yet.\n' : rows.map(revisionLine).join(''), json: rows };
  },
};

const show: Command = {
  name: 'show',
  takes: '<revision>',
  summary: 'prints every policy as it was at a revision; 0 is before the first',
  async run(given) {
    const client = connect(given);
    const revision = revisionOf(given.args[0] ?? '');
    const set = await client.call<{ made: RevisionJson | null; policies: PolicyJson[] }>(
      'GET',
      `/api/policies/history/${revision}`,
    );
    const names = await targetNames(client);
    const texts = set.policies.map((policy) => {
      const { managed_as: managed, drift_since: drift } = policy;
      const outside = drift === null ? '' : `, changed outside of its file since revision ${drift}`;
      const head = `# ${policy.id}${managed === null ? '' : `, ${managed}`}${outside}\n`;
      return head + formatPolicyFile(fileOf(policyFromJson(policy), (id) => names.get(id)));
    });
    return { text: `${set.made === null ? '' : `# ${revisionLine(set.made)}`}${texts.join('---\n')}`, json: set };
  },
};

const diff: Command = {
  name: 'diff',
  takes: '<from> [<to>]',
  summary: 'shows how two revisions differ; the second defaults to the current one',
  async run(given) {
    const answer = await connect(given).call<Between & { changes: Change[] }>('GET', `/api/policies/diff?${betweenOf(given)}`);
    const head = `From revision ${answer.from} to ${answer.to}:`;
    return { text: answer.changes.length === 0 ? 'No difference.\n' : changesText(answer.changes, head), json: answer };
  },
};

const rollback: Command = {
  name: 'rollback',
  takes: '<revision>',
  summary: 'restores the policies of an earlier revision, as a new revision; without --yes, only shows what would change',
  help: `With --owner, restores only the policies that this owner has now, and those that it had then and that no other owner has now.
Does not change files: run export, or check out the old files from git.
Exit code: 0 success, or nothing to do; 1 failure, or --yes is missing; 2 wrong usage.`,
  options: {
    yes: { help: 'rolls back exactly as the plan shows; changes nothing if the policies change in the meantime' },
    owner: { value: 'NAME', help: 'only policies of this owner (default: every policy)' },
    'expect-revision': { value: 'REVISION', help: 'refuses if the policies are at a different revision' },
    reason: REASON,
  },
  async run(given, say) {
    const client = connect(given);
    const [expected, reason, owner] = ['expect-revision', 'reason', 'owner'].map((option) => given.text(option));
    const revision = revisionOf(given.args[0] ?? '');
    const body = { revision, ...(owner === undefined ? {} : { owner }) };
    const planned = await client.follow<PlanWithFlips, Progress>(
      'POST',
      '/api/policies/rollback/plan',
      { ...body, ...(expected === undefined ? {} : { expected_revision: revisionOf(expected) }) },
      progressOf(say),
    );
    if (planned.changes.length === 0) {
      const what = owner === undefined ? 'The policies already match' : `No policy of the owner ${owner} differs from`;
      return { text: `${what} revision ${revision}.\n`, json: planned };
    }
    const decisions = `${flipsText(planned, { before: 'now', after: 'then' })}${warningsText(planned)}\n${invariantsText(planned.invariants)}`;
    if (!given.flag('yes')) {
      const changes = changesText(planned.changes, `To match revision ${revision}, revision ${planned.revision} would become:`);
      return { code: EXIT.failed, text: `${decisions}${changes}\nNothing was changed. Add --yes to roll back.\n`, json: planned };
    }
    const answer = await client.call<{ revision: number; changes: Change[] }>('POST', '/api/policies/rollback', {
      ...body,
      expected_revision: planned.revision,
      ...(reason === undefined ? {} : { reason }),
    });
    return {
      text: decisions + changesText(answer.changes, `Rolled back to revision ${revision}, as revision ${answer.revision}:`),
      json: answer,
    };
  },
};

const move: Command = {
  name: 'move',
  takes: '<policy> <position>',
  summary: 'moves a policy, by name or id, in the order of evaluation; without --yes, only shows what would change',
  help: `Positions count from 1. Changes the priority of the policy and, if there is no room between its new neighbours, the priorities
of as few other policies as possible, in one revision.
Exit code: 0 success, or nothing to do; 1 failure, or --yes is missing; 2 wrong usage.`,
  options: {
    yes: { help: 'moves exactly as the plan shows; changes nothing if the policies change in the meantime' },
    override: { help: 'also changes policies that belong to files; plans then show the change as drift' },
    'expect-revision': { value: 'REVISION', help: 'refuses if the policies are at a different revision' },
    reason: REASON,
  },
  async run(given, say) {
    const client = connect(given);
    const [name = '', place = ''] = given.args;
    if (!/^[1-9][0-9]{0,8}$/.test(place)) throw new UsageError(`the position ${place} must be a number from 1`);
    const [expected, reason] = [given.text('expect-revision'), given.text('reason')];
    const body = { policy_id: await idOf(client, 'policy', name), position: Number(place), override: given.flag('override') };
    const planned = await client.follow<PlanWithFlips, Progress>(
      'POST',
      '/api/policies/order/plan',
      { ...body, ...(expected === undefined ? {} : { expected_revision: revisionOf(expected) }) },
      progressOf(say),
    );
    if (planned.changes.length === 0) return { text: `The policy already has the position ${place}.\n`, json: planned };
    const decisions = `${flipsText(planned, { before: 'now', after: 'then' })}${warningsText(planned)}\n${invariantsText(planned.invariants)}`;
    if (!given.flag('yes')) {
      const changes = changesText(
        planned.changes,
        `To give the policy position ${place}, revision ${planned.revision} would become:`,
      );
      return {
        code: EXIT.failed,
        text: `${decisions}${changes}\nNothing was changed. Add --yes to move the policy.\n`,
        json: planned,
      };
    }
    const answer = await client.call<{ revision: number; changes: Change[] }>('POST', '/api/policies/order', {
      ...body,
      expected_revision: planned.revision,
      ...(reason === undefined ? {} : { reason }),
    });
    return {
      text: decisions + changesText(answer.changes, `Moved to position ${place}, as revision ${answer.revision}:`),
      json: answer,
    };
  },
};

const schema: Command = {
  name: 'schema',
  summary: 'prints the JSON Schema of policy files, with which editors complete and check them',
  help: 'This command needs no gateway. docs/policies.md says how to configure your editor.',
  options: {
    tests: { help: 'prints the schema of test files instead' },
    manifest: { help: 'prints the schema of portcullis.yaml instead' },
  },
  async run(given) {
    if (given.flag('tests') && given.flag('manifest')) throw new UsageError('pass either --tests or --manifest, not both');
    const json = given.flag('tests') ? TEST_FILE_SCHEMA : given.flag('manifest') ? MANIFEST_SCHEMA : POLICY_FILE_SCHEMA;
    return { text: `${JSON.stringify(json, null, 2)}\n`, json };
  },
};

export const policiesGroup: CommandGroup = {
  path: 'portcullis policies',
  about: 'Policies as files in git, their history, and questions about them.',
  notes: CLIENT_NOTES,
  commands: [
    ...[exportFiles, plan, apply, history, show, diff, compareCommand, rollback, move],
    ...[explainCommand, simulateCommand, replayCommand, suggestCommand, testCommand, whoCanCommand, whatCanCommand],
    ...[lintCommand, contextCommand, schema],
  ],
  options: CLIENT_OPTIONS,
};

async function targetNames(client: Client): Promise<Map<string, string>> {
  const targets = await client.items<{ id: string; name: string }>('/api/targets');
  return new Map(targets.map(({ id, name }) => [id, name]));
}

function revisionLine({
  revision,
  created_at,
  actor,
  reason,
  created,
  updated,
  deleted,
  override,
  policy,
}: RevisionJson): string {
  const verbs = [
    [created, 'created'],
    [updated, 'changed'],
    [deleted, 'deleted'],
  ] as const;
  const what = verbs.flatMap(([count, verb]) =>
    count === 0 ? [] : [policy === null ? `${count} ${verb}` : `${verb} ${JSON.stringify(policy.name)}`],
  );
  return `${revision}  ${created_at}  ${actor.email}  ${what.join(', ')}${override ? ' outside of files' : ''}${reason === null ? '' : `  (${reason})`}\n`;
}

function planText({ changes, unchanged, left, unmanaged }: Plan, head: string): string {
  const count = (action: Change['action']): number => changes.filter((change) => change.action === action).length;
  const notes = [
    ...left.map(
      ({ file, name, drift_since: drift }) =>
        `${file} no longer exists, but its policy ${JSON.stringify(name)} stays${drift === null ? '' : `, changed outside of its file since revision ${drift}`}: --prune deletes it.`,
    ),
    ...(unmanaged === 0
      ? []
      : [
          `Policies without a file: ${unmanaged}. --adopt takes over those to which export would give the name of one of the files.`,
        ]),
  ].map((line) => `${line}\n`);
  if (changes.length === 0)
    return `No changes: ${counted(unchanged, 'file matches its policy', 'files match their policies')}.\n${notes.join('')}`;
  const counts = (['create', 'update', 'adopt', 'delete'] as const).map((action) => `${count(action)} to ${action}`);
  return `${changesText(changes, head)}\n${counts.join(', ')}, ${unchanged} unchanged.\n${notes.join('')}`;
}

const SIGNS = { create: '+', update: '~', adopt: '~', delete: '-' } as const;

/** People do not read more than this. `--json` has all of them. */
const CHANGES_SHOWN = 50;
const WARNINGS_SHOWN = 20;

const more = (all: readonly unknown[], shown: number, what: string): string =>
  all.length > shown ? `and ${all.length - shown} more ${what}: --json has them all\n` : '';

const changesText = (changes: readonly Change[], head: string): string =>
  `${head}\n\n${changes.slice(0, CHANGES_SHOWN).map(changeText).join('\n')}${changes.length > CHANGES_SHOWN ? '\n' : ''}${more(changes, CHANGES_SHOWN, 'changes')}`;

function warningsText({ warnings }: Pick<PlanWithFlips, 'warnings'>): string {
  if (warnings.length === 0) return '';
  const lines = warnings.slice(0, WARNINGS_SHOWN).map(({ message }) => `warning: ${message}\n`);
  return `\n${lines.join('')}${more(warnings, WARNINGS_SHOWN, 'warnings')}`;
}

function changeText({ action, file, policy_id, name, drift_since, members, before, after }: Change): string {
  const sign = SIGNS[action];
  const since = drift_since === null ? '' : ` since revision ${drift_since}`;
  const isDrift = drift_since !== null || members.includes('drift_since');
  const drift = isDrift ? `    ${before === null ? 'deleted' : 'changed'} outside of its file${since}\n` : '';
  const head = `${sign} ${action} ${JSON.stringify(name)} (${[file, policy_id].filter((part) => part !== null).join(', ')})\n${drift}`;
  if (before !== null && after !== null) return head + members.map((member) => memberText(member, before, after)).join('');
  const whole = after ?? before;
  if (whole === null) return head;
  return head + indented(formatPolicyFile(whole).trimEnd().split('\n'), sign);
}

const indented = (lines: readonly string[], sign: string, depth = 4): string =>
  lines.map((line) => `${' '.repeat(depth)}${sign} ${line}\n`).join('');

function memberText(member: string, before: PolicyFile, after: PolicyFile): string {
  switch (member) {
    case 'drift_since':
      return '';
    case 'managed_as':
      return '    belongs to the file from now on\n';
    case 'subjects':
      return `    subjects:\n${indented(subjectsOnlyIn(before, after), '-', 6)}${indented(subjectsOnlyIn(after, before), '+', 6)}`;
    default: {
      const shown = (policy: PolicyFile): string => JSON.stringify(policy[member as keyof PolicyFile] ?? null);
      return `    ${member}: ${shown(before)} -> ${shown(after)}\n`;
    }
  }
}

function subjectsOnlyIn(policy: PolicyFile, other: PolicyFile): string[] {
  const known = new Set(other.subjects.map(subjectKey));
  return policy.subjects
    .filter((subject) => !known.has(subjectKey(subject)))
    .map(({ subject_type, subject_value }) =>
      subject_value === null ? subject_type : `${subject_type}: ${JSON.stringify(subject_value)}`,
    );
}
