/** Commands of `portcullis policies` that ask and change nothing: explain, simulate, test, who-can and what-can. */
import { writeFileSync } from 'node:fs';
import { type AccessRow, accessCsv } from '../../policies/access.ts';
import { junitOf } from '../../policies/files/junit.ts';
import type { PolicyRef, TestReport } from '../../policies/files/test-run.ts';
import type { Asked, objectJson } from '../../policies/sets/questions-about.ts';
import { connect, type Say } from '../client.ts';
import { type Command, CommandError, EXIT, type Given, type Option, UsageError } from '../command.ts';
import { readWhole } from '../read-text.ts';
import { dirOf, testDirOf } from './manifest.ts';
import { changing } from './policy-folder.ts';
import { type AnswerJson, answerText, pointing, quote, refText, SET_OPTIONS, setOf } from './policy-set.ts';
import { CONTEXT, folderSet } from './review/folder-set.ts';
import { failuresText, testCases, testFiles, testFolder } from './review/folder-tests.ts';

const WHO_OPTIONS = {
  user: { value: 'USER', help: 'as this user, by id or e-mail' },
  role: { value: 'ROLE', help: 'or as a caller with this role' },
  groups: { value: 'A,B', help: 'and with these groups' },
  sub: { value: 'ID', help: 'and with this user id' },
} as const satisfies Record<string, Option>;

type RequestJson = Pick<Asked, 'principal' | 'target'> & ReturnType<typeof objectJson>;

interface ExplanationJson extends RequestJson, AnswerJson {
  readonly passed_over: readonly (PolicyRef & {
    readonly effect: string;
    readonly misfit: string;
    readonly wants: string | null;
  })[];
  readonly passed_over_count: number;
}

const requestText = ({ principal, target, resource_type, resource_name }: RequestJson): string =>
  `${principal.email ?? `role ${principal.role}`}, ${target.name}${resource_type === null ? '' : `, ${resource_type} ${quote(resource_name ?? '')}`}`;

const notes = ({ principal, target }: RequestJson): string =>
  (principal.enabled
    ? ''
    : 'The gateway refuses every request of this user to the target: the user or their provider is disabled, or no token that the user has or can get reaches it.\n') +
  (target.enabled ? '' : 'The target is disabled: the gateway forwards nothing to it.\n');

const MISFIT_TEXTS: Readonly<Record<string, string>> = {
  enabled: 'it is disabled',
  unreadable: 'it is an allow that cannot be compiled, so it grants nothing',
  target: 'target',
  resource_type: 'type',
  subject: 'subjects',
  pattern: 'pattern',
};

export const explainCommand: Command = {
  name: 'explain',
  takes: '<target> [<type>] [<name>]',
  summary: 'says which policy decides a request, and why the policies evaluated before it do not match',
  help: `Type is tool, resource or prompt. Without a type and name, the question is whether the caller may use the target at all.
Each policy that does not match is listed with the first member that does not match, and the value that this member requires.`,
  options: WHO_OPTIONS,
  async run(given) {
    const answer = await connect(given).call<ExplanationJson>('POST', '/api/policies/explain', requestOf(given));
    const passed = answer.passed_over.map(({ misfit, wants, effect, ...policy }) => {
      const why = MISFIT_TEXTS[misfit] ?? misfit;
      return `  ${effect} ${refText(policy)}\n      ${wants === null ? why : `${why}: ${wants}`}\n`;
    });
    const more = answer.passed_over_count - answer.passed_over.length;
    const head = passed.length === 0 ? '' : '\nPolicies that do not match, in the order of evaluation:\n';
    return {
      text: `${requestText(answer)}: ${answerText(answer)}\n${notes(answer)}${head}${passed.join('')}${more > 0 ? `  and ${more} more\n` : ''}`,
      json: answer,
    };
  },
};

/** The request in the form of the API. */
function requestOf(given: Given): object {
  const [target = '', type, name] = given.args;
  const [user, role, groups, sub] = ['user', 'role', 'groups', 'sub'].map((option) => given.text(option));
  if ((user === undefined) === (role === undefined)) throw new UsageError('pass either --user or --role');
  if (user !== undefined && (groups !== undefined || sub !== undefined))
    throw new UsageError('--groups and --sub are only allowed with --role');
  if (type !== undefined && name === undefined) throw new UsageError('pass a name after the type');
  return {
    principal:
      user !== undefined
        ? { user }
        : { role, ...(sub === undefined ? {} : { sub }), ...(groups === undefined ? {} : { groups: groups.split(',') }) },
    target,
    ...(type === undefined ? {} : { resource_type: type, resource_name: name }),
  };
}

interface SimulationJson {
  readonly revision: number;
  readonly changed: number;
  readonly results: readonly (RequestJson & {
    readonly now: AnswerJson;
    readonly would_be: AnswerJson;
    readonly change: 'none' | 'grants' | 'refuses' | 'policy';
  })[];
}

const SIMULATION_SIGNS = { none: ' ', grants: '+', refuses: '-', policy: '~' } as const;

export const simulateCommand: Command = {
  name: 'simulate',
  takes: '[<target>] [<type>] [<name>]',
  summary: 'shows how requests would be decided if the files were applied, and stores nothing',
  help: `Pass one request as for explain, or a file of requests: a JSON list of {"principal", "target", "resource_type", "resource_name"}.
A principal is {"user"} or {"role", "sub", "groups"}.`,
  options: { ...SET_OPTIONS, ...WHO_OPTIONS, requests: { value: 'FILE', help: 'a JSON file of at most 1000 requests' } },
  async run(given) {
    const file = given.text('requests');
    if ((file === undefined) === (given.args.length === 0)) throw new UsageError('pass either a request or --requests');
    const requests = file === undefined ? [requestOf(given)] : readJsonFile(file);
    const dir = dirOf(given);
    const answer = await pointing(dir, '', () =>
      connect(given).call<SimulationJson>('POST', '/api/policies/simulate', { ...setOf(given), requests }),
    );
    const lines = answer.results.map(({ now, would_be, change, ...request }) => {
      const after = change === 'none' ? '' : `\n    then: ${answerText(would_be)}`;
      return `${SIMULATION_SIGNS[change]} ${requestText(request)}\n    now:  ${answerText(now)}${after}\n`;
    });
    return { text: `${lines.join('')}\n${answer.changed} of ${answer.results.length} would change.\n`, json: answer };
  },
};

function readJsonFile(file: string): unknown {
  try {
    return JSON.parse(readWhole(file));
  } catch (error) {
    throw new CommandError(`${file} cannot be read: ${error instanceof Error ? error.message : String(error)}`, 'invalid_file');
  }
}

export const testCommand: Command = {
  name: 'test',
  summary: 'runs the tests of the policies: who may do what, and which policy decides',
  help: `This command needs no gateway: it compiles the policies of the folder with the same engine as a gateway. With --remote, the
gateway tests the candidate set that apply would create; with --live, its current policies.
The tests are the files in the folder tests inside the policy folder. docs/policies.md describes their format.
Exit code: 0 all passed; 1 a test failed, the coverage is too low, or the tests could not run; 2 wrong usage.`,
  options: {
    ...SET_OPTIONS,
    tests: { value: 'DIR', help: 'the folder of the tests (default: tests inside the policy folder)' },
    coverage: { value: 'PERCENT', help: 'fails unless at least this percentage of the enabled policies decide a test case' },
    junit: { value: 'FILE', help: 'writes the results as JUnit XML, for CI' },
    remote: { help: 'the gateway tests the candidate set that apply would create' },
    live: { help: 'the gateway tests its current policies' },
    context: CONTEXT,
  },
  async run(given, say) {
    if (given.text('context') !== undefined && (given.flag('remote') || given.flag('live')))
      throw new UsageError('--context is only allowed without a gateway, which has the policies of other owners');
    const threshold = percentOf(given.text('coverage'));
    const junit = given.text('junit');
    if (given.flag('remote') && given.flag('live')) throw new UsageError('pass either --remote or --live, not both');
    if (given.text('draft') !== undefined && !given.flag('remote')) throw new UsageError('--draft is only allowed with --remote');
    const report = given.flag('remote') || given.flag('live') ? await testedThere(given) : await testedHere(given, say);
    if (junit !== undefined) changing(junit, () => writeFileSync(junit, junitOf(report, threshold)), 'invalid_file');
    const low = threshold !== null && report.coverage.percent < threshold;
    return {
      code: report.failed > 0 || low ? EXIT.failed : EXIT.ok,
      text: reportText(report, testDirOf(given), low ? threshold : null),
      json: report,
    };
  },
};

function percentOf(text: string | undefined): number | null {
  if (text === undefined) return null;
  if (!/^\d{1,3}(\.\d)?$/.test(text) || Number(text) > 100)
    throw new UsageError(`--coverage must be a number from 0 to 100, not ${text}`);
  return Number(text);
}

function testedHere(given: Given, say: Say): Promise<TestReport> {
  const cases = testCases(given);
  return folderSet(given, say, { cases }).then((set) => testFolder(set, cases, testDirOf(given)));
}

function testedThere(given: Given): Promise<TestReport> {
  const tests = Object.fromEntries(testFiles(given));
  const set = given.flag('remote') ? setOf(given) : {};
  return pointing(dirOf(given), testDirOf(given), () =>
    connect(given).call<TestReport>('POST', '/api/policies/test', { tests, ...set }),
  );
}

function reportText(report: TestReport, dir: string, missed: number | null): string {
  const { passed, failed, coverage } = report;
  const undecided = coverage.undecided.map((policy) => `  decides no case: ${refText(policy)}\n`);
  const low = missed === null ? '' : `The coverage is too low: --coverage requires ${missed}%.\n`;
  return `${failuresText(report.results, dir)}${passed} passed, ${failed} failed. ${coverage.decided} of ${coverage.policies} policies decide a case (${coverage.percent}%).\n${undecided.join('')}${low}`;
}

const ACCESS_OPTIONS = { csv: { help: 'prints CSV, for spreadsheets' } } as const satisfies Record<string, Option>;

export const whoCanCommand: Command = {
  name: 'who-can',
  takes: '<target> [<type>] [<name>]',
  summary: 'lists who can use an object, or without a type and name, who can use the target',
  help: `Lists users, and the roles and groups that policies name: such a role or group stands for a caller who has only that.
Leaves out disabled users.`,
  options: ACCESS_OPTIONS,
  run(given) {
    const [target = '', type, name] = given.args;
    if (type !== undefined && name === undefined) throw new UsageError('pass a name after the type');
    return access(given, type === undefined ? { target } : { target, resource_type: type, resource_name: name ?? '' }, (row) =>
      type === undefined && row.resource_type !== null ? null : holderText(row),
    );
  },
};

export const whatCanCommand: Command = {
  name: 'what-can',
  takes: '<who>',
  summary: 'lists what a caller can use: everyone, role:NAME, group:NAME, or a user by id or e-mail',
  help: `The gateway has no catalogue of the objects of targets. It checks the targets, and the names that callers asked for in the
newest 20000 rows of the audit log.`,
  options: { ...ACCESS_OPTIONS, target: { value: 'NAME', help: 'lists only objects of this target' } },
  run(given) {
    const [who = ''] = given.args;
    const target = given.text('target');
    const query = {
      who: /^(everyone$|role:|group:|user:)/.test(who) ? who : `user:${who}`,
      ...(target === undefined ? {} : { target }),
    };
    return access(given, query, objectText);
  },
};

const holderText = ({ subject_type, subject_value, email }: AccessRow): string =>
  email ?? (subject_value === null ? subject_type : `${subject_type} ${quote(subject_value)}`);
const objectText = ({ target, resource_type, resource_name }: AccessRow): string =>
  resource_type === null ? target : `${target}, ${resource_type} ${quote(resource_name ?? '')}`;

/** `told` returns the text of a row; null: the row does not answer the question. */
async function access(given: Given, query: Readonly<Record<string, string>>, told: (row: AccessRow) => string | null) {
  const found = await connect(given).list<AccessRow>(`/api/policies/access?${new URLSearchParams(query)}`);
  const rows = found.filter((row) => told(row) !== null);
  if (given.flag('csv')) {
    const texts: string[] = [];
    for await (const text of accessCsv(rows)) texts.push(text.replace('\r\n', '\n'));
    return { text: texts.join(''), json: rows };
  }
  const lines = rows.map((row) => `${told(row)}  by ${quote(row.policy_name)} (priority ${row.policy_priority})\n`);
  return { text: lines.length === 0 ? 'None.\n' : lines.join(''), json: rows };
}
