/** `portcullis policies suggest`, and the text of its answer. */

import { printable } from '../../base/printable.ts';
import { DRAFT_NAME } from '../../policies/sets/draft.ts';
import type { Suggestion } from '../../policies/suggest/job.ts';
import type { Skipped } from '../../policies/suggest/needs.ts';
import type { LeftOutJson, RoleJson, SuggestedJson } from '../../policies/suggest/report.ts';
import { connect } from '../client.ts';
import { type Command, counted, EXIT, type Given, UsageError } from '../command.ts';
import { type DecisionChangesJson, flipsText } from './decision-changes.ts';
import { requireEmpty, writePolicyFile } from './policy-folder.ts';
import { flipText, type HowFar, type ReportJson, rangeOf, sayingHowFar } from './policy-replay.ts';
import { quote, refText } from './policy-set.ts';

interface SuggestionJson extends DecisionChangesJson {
  readonly revision: number;
  readonly from: string;
  readonly to: string;
  readonly decisions: number;
  readonly skipped: Readonly<Record<Skipped, number>>;
  readonly unlisted: number;
  readonly owner: string;
  readonly prune: boolean;
  readonly adopt: boolean;
  readonly files: Suggestion['files'];
  readonly changes: Suggestion['changesJson'];
  readonly suggested: readonly SuggestedJson[];
  readonly left_out: readonly LeftOutJson[];
  readonly left_out_count: number;
  readonly replay: ReportJson | null;
  readonly beyond: readonly number[];
  readonly role: RoleJson | null;
}

export const suggestCommand: Command = {
  name: 'suggest',
  takes: '[<decision-id>]',
  summary: 'suggests the narrowest policies that allow a denied request, all denied requests, or what a role uses',
  help: `Pass the id of a decision, --denied or --least-privilege. The gateway makes the policies, and proves that they allow exactly what the
report says. Nothing is applied or stored, except a draft with --draft. Without --out, the report is a comment above the files.
docs/policies.md explains the report. Exit code: 0 there is a suggestion, or the role needs none; 1 there is none.`,
  options: {
    denied: { help: 'suggests what would allow the denied requests' },
    'least-privilege': { value: 'ROLE', help: 'suggests the narrowest policies for this role that allow what it has used' },
    since: { value: 'AGO', help: 'decisions of the last 30m, 24h, 7d or 4w (default: 7d; with --least-privilege: 30d)' },
    from: { value: 'TIME', help: 'decisions since this time, such as 2026-01-31T12:00:00Z' },
    to: { value: 'TIME', help: 'decisions until this time (default: now)' },
    for: { value: 'WHO', help: 'who gets access: user (the default), role, or group:NAME' },
    'over-denies': { help: 'the policies may be evaluated before denies that decide now' },
    target: { value: 'NAME', help: 'with --denied: only requests for this target' },
    user: { value: 'USER', help: 'with --denied: only requests of this user, by id or e-mail' },
    role: { value: 'ROLE', help: 'with --denied: only requests of callers with this role' },
    'min-count': { value: 'N', help: 'leaves out what was asked for less often' },
    owner: { value: 'NAME', help: 'the owner of the files (default: default)' },
    out: { value: 'DIR', help: 'writes the files into this folder; for a role, it must be empty or not exist' },
    draft: { value: 'NAME', help: 'saves the files as a draft' },
  },
  async run(given, say) {
    const draft = given.text('draft');
    if (draft !== undefined && !DRAFT_NAME.test(draft)) {
      throw new UsageError(`--draft must consist of a-z, 0-9, ".", "_" and "-"; ${draft} does not`);
    }
    const out = given.text('out');
    const body = bodyOf(given);
    if (out !== undefined && given.text('least-privilege') !== undefined) requireEmpty(out);
    const client = connect(given);
    const answer = await client.follow<SuggestionJson, HowFar>('POST', '/api/policies/suggest', body, sayingHowFar(say));
    const { files, owner, prune, adopt, role, suggested, changes } = answer;
    const report = reportOf(answer);
    const isThere = suggested.length > 0 || (role !== null && changes.length > 0);
    const code = isThere || role !== null ? EXIT.ok : EXIT.failed;
    if (!isThere) return { code, text: report, json: answer };
    if (draft !== undefined) {
      await client.call('PUT', `/api/policies/drafts/${draft}`, { files, owner, prune, adopt });
      return { code, text: `${report}\nSaved the draft ${draft}.\n`, json: answer };
    }
    if (out === undefined) return { code, text: documentsOf(answer, report), json: answer };
    for (const [file, text] of Object.entries(files)) writePolicyFile(out, file, text);
    const how = prune ? `\nTo try them: portcullis policies plan --dir ${out} --owner ${owner} --prune --adopt\n` : '';
    return { code, text: `${report}\nWrote ${counted(Object.keys(files).length, 'file')} into ${out}.\n${how}`, json: answer };
  },
};

/** The question in the form of the API. */
function bodyOf(given: Given): object {
  const [decision] = given.args;
  const role = given.text('least-privilege');
  const isDenied = given.flag('denied');
  if ([decision !== undefined, role !== undefined, isDenied].filter(Boolean).length !== 1) {
    throw new UsageError('pass the id of a decision, --denied or --least-privilege');
  }
  const filter = Object.fromEntries(['target', 'user', 'role'].flatMap((name) => optionOf(given, name, name)));
  const [stray] = isDenied ? [] : Object.keys(filter);
  if (stray !== undefined) throw new UsageError(`--${stray} is only allowed with --denied`);
  if (role !== undefined && (given.text('for') !== undefined || given.flag('over-denies'))) {
    throw new UsageError('--for and --over-denies are not allowed with --least-privilege');
  }
  const least = given.text('min-count');
  if (least !== undefined && !/^[1-9]\d{0,8}$/.test(least))
    throw new UsageError(`--min-count must be a number from 1, not ${least}`);
  return {
    ...(decision === undefined ? {} : { decision_id: decision }),
    ...(isDenied ? { denied: filter } : {}),
    ...(role === undefined ? {} : { least_privilege: role }),
    ...Object.fromEntries([...optionOf(given, 'for', 'for'), ...optionOf(given, 'owner', 'owner')]),
    ...(given.flag('over-denies') ? { over_denies: true } : {}),
    ...(least === undefined ? {} : { min_count: Number(least) }),
    ...rangeOf(given, role === undefined ? '7d' : '30d'),
  };
}

function optionOf(given: Given, option: string, member: string): [string, string][] {
  const value = given.text(option);
  return value === undefined ? [] : [[member, value]];
}

/** Returns the changed files as YAML, under the report as a comment. Each line of the report is escaped, so none can leave the comment. */
function documentsOf({ files, changes, role }: SuggestionJson, report: string): string {
  const head = printable(report)
    .trimEnd()
    .split('\n')
    .map((line) => (line === '' ? '#\n' : `# ${line}\n`));
  const gone = changes.filter(({ action }) => action === 'delete').map(({ file }) => `# without ${file}\n`);
  const texts = changes.flatMap(({ file, after }) => (after === null ? [] : [`# ${file}\n${files[file ?? ''] ?? ''}`]));
  const rest = role === null ? [] : ['#\n# These are the changed files only: --out writes the whole folder.\n'];
  return `${head.join('')}${rest.join('')}${gone.join('')}${texts.join('---\n')}`;
}

const SHOWN = 20;
const few = <T>(items: readonly T[], total: number, textOf: (item: T) => string): string => {
  const shown = items.slice(0, SHOWN).map((item) => `  ${textOf(item)}\n`);
  const rest = total - shown.length;
  return `${shown.join('')}${rest > 0 ? `  and ${rest} more: --json has up to 1000\n` : ''}`;
};

const SKIPPED: Readonly<Record<Skipped, string>> = {
  no_target: 'for a target that does not exist or is disabled: no policy can allow it',
  not_canonical: 'with an ambiguous URI: the gateway refuses it before any policy, so the client must send the canonical URI',
  error: 'that ended in an error: no policy caused the denial',
  erased: 'of users whose data is erased: their groups are unknown',
  damaged: 'that the log no longer has whole: portcullis audit verify says why',
  target_gone: 'for a target that was deleted',
  allowed: 'that was allowed',
  allowed_now: 'that the current policies allow',
  not_in_group: 'of callers who are not in the group',
};

const LEFT_OUT: Readonly<Record<LeftOutJson['reason'], string>> = {
  denied: 'A deny decides. Discuss it with its owner, or pass --over-denies',
  highest: 'A deny with the highest priority decides, so no allow can be evaluated before it',
  inexpressible: 'No pattern within the limits matches exactly this name',
  rare: 'There were fewer requests than --min-count',
  too_many: 'There are too many policies',
};

function reportOf(answer: SuggestionJson): string {
  const { from, to, decisions, skipped, unlisted, suggested, left_out, left_out_count, role, changes } = answer;
  const skips = (Object.keys(SKIPPED) as Skipped[])
    .filter((reason) => skipped[reason] > 0)
    .map((reason) => `Not considered: ${counted(skipped[reason], 'decision')} ${SKIPPED[reason]}.\n`);
  const head = `Decisions from ${from} to ${to}${role === null ? '' : ` of role ${quote(role.role)}`}: ${decisions}.\n`;
  const crowd =
    unlisted === 0
      ? ''
      : `Not considered: ${counted(unlisted, 'request')}, because there were too many different ones: choose a shorter time, or pass --target, --user or --role.\n`;
  const none = suggested.length === 0 ? '\nNo policy is suggested.\n' : '';
  const reasons = (Object.keys(LEFT_OUT) as LeftOutJson['reason'][]).flatMap((reason) => {
    const some = left_out.filter((each) => each.reason === reason);
    return some.length === 0 ? [] : [`\n${LEFT_OUT[reason]}:\n${few(some, some.length, leftOutText)}`];
  });
  const more = left_out_count > left_out.length ? `and ${left_out_count - left_out.length} more that are left out\n` : '';
  const effect = changes.length === 0 ? '' : `\n${flipsText(answer, { before: 'now', after: 'then' })}`;
  return [
    ...[head, ...skips, crowd, none, ...suggested.map((each) => `\n${suggestedText(each)}`), ...reasons, more, effect],
    role === null ? replayText(answer) : roleText(role),
  ].join('');
}

function suggestedText(each: SuggestedJson): string {
  const { file, subject_type, subject_value, target, resource_type, names, priority, outranks, holders, other_holders } = each;
  const who = `${subject_type} ${quote(subject_value)}`;
  const others = other_holders.length === 0 ? '' : `, among them ${other_holders.map(quote).join(', ')}`;
  return [
    `+ ${file}: ${who}, ${target}, priority ${priority}\n`,
    few(names, names.length, ({ resource_name, count, users }) => {
      const what = resource_name === null ? 'the use of the target' : `${resource_type} ${quote(resource_name)}`;
      return `${what}: ${counted(count, 'request')} of ${counted(users, 'user')}`;
    }),
    subject_type === 'user' ? '' : `  Users with ${who}: ${holders}${others}. Denies may still keep some of them out.\n`,
    ...outranks.map((policy) => `  WARNING: this is evaluated before the deny ${refText(policy)}. Discuss it with its owner.\n`),
  ].join('');
}

function leftOutText({ subject_value, target, resource_type, resource_name, policy, count, last }: LeftOutJson): string {
  const what = resource_type === null ? 'the use of the target' : `${resource_type} ${quote(resource_name ?? '')}`;
  const by = policy === null ? '' : `, decided by ${refText(policy)}`;
  return `${quote(subject_value)}, ${target}, ${what}: ${counted(count, 'request')}, last ${last.id}${by}`;
}

function replayText({ replay, beyond }: SuggestionJson): string {
  if (replay === null) return '';
  const others = beyond.flatMap((at) => replay.flips[at] ?? []);
  const { flips, unlisted } = replay;
  const head = `\nRecorded requests that would be allowed: ${flips.reduce((sum, { count }) => sum + count, 0)}.`;
  const rest =
    unlisted === 0
      ? ''
      : `A replay lists at most 1000 different requests, and 100 of one user. It left out ${counted(unlisted, 'decision')}: you may not have asked about some of them.\n`;
  if (others.length > 0) return `${head} Further ones than you asked about:\n${few(others, others.length, flipText)}${rest}`;
  return `${head} You asked about all of them.\n${rest}`;
}

const KEPT: Readonly<Record<RoleJson['kept'][number]['reason'], string>> = {
  other_subjects: 'serves other subjects than the role, and stays for them',
  other_owner: 'belongs to a different owner',
  inexpressible: 'allows a name that no pattern matches exactly',
};

function roleText({ replayed, lost, kept, unused, unused_count }: RoleJson): string {
  const proof = `\nEvaluated again: ${counted(replayed, 'recorded request')}. ${lost === 0 ? 'None gets a different effect.' : `${lost} would be denied, and all others get the same effect.`}\n`;
  const stays = few(
    kept,
    kept.length,
    ({ policy, reason, count }) => `${refText(policy)}: ${KEPT[reason]}; ${counted(count, 'request')}`,
  );
  const goes = few(
    unused,
    unused_count,
    ({ target, resource_type, resource_name }) =>
      `${target}${resource_type === null ? '' : `, ${resource_type} ${quote(resource_name ?? '')}`}`,
  );
  return [
    proof,
    kept.length === 0 ? '' : `\nPolicies that stay:\n${stays}`,
    unused_count === 0 ? '' : `\nListed for the role, never used, and lost:\n${goes}`,
  ].join('');
}
