/** `portcullis policies replay`, and the text of its report. */
import type { ReplayReport } from '../../policies/replay/report.ts';
import { connect, type Say } from '../client.ts';
import { type Command, EXIT, type Given, spanOf, UsageError } from '../command.ts';
import { dirOf } from './manifest.ts';
import { type AnswerJson, answerText, pointing, quote, refText, SET_OPTIONS, setOf } from './policy-set.ts';

export type ReportJson = ReplayReport & { readonly revision: number; readonly from: string; readonly to: string };

export const replayCommand: Command = {
  name: 'replay',
  summary: 'shows which recorded decisions would flip if you applied the files; stores nothing',
  help: `Evaluates the decisions of the audit log again, with the files, a draft or (--live) the current policies. It counts the decisions that
cannot be evaluated again: those that no policy made, and those of users whose data was erased. The audit log does not record the
names that lists left out, so the report cannot say which of those would be listed.`,
  options: {
    ...SET_OPTIONS,
    live: { help: 'uses the current policies: shows what has changed since the decisions were recorded' },
    since: { value: 'AGO', help: 'decisions of the last 30m, 24h, 7d or 4w (default: 24h)' },
    from: { value: 'TIME', help: 'decisions since this time, such as 2026-01-31T12:00:00Z' },
    to: { value: 'TIME', help: 'decisions until this time (default: now)' },
    'detailed-exitcode': { help: `exits with ${EXIT.changes} if a decision would flip` },
  },
  async run(given, say) {
    const body = { ...(given.flag('live') ? {} : setOf(given)), ...rangeOf(given, '24h') };
    const report = await pointing(dirOf(given), '', () =>
      connect(given).follow<ReportJson, HowFar>('POST', '/api/policies/replay', body, sayingHowFar(say)),
    );
    return {
      code: report.flips.length > 0 && given.flag('detailed-exitcode') ? EXIT.changes : EXIT.ok,
      text: reportText(report),
      json: report,
    };
  },
};

const PROGRESS_MS = 2_000;

export interface HowFar {
  readonly done: number;
  readonly at: string;
}

/** Returns a function that reports how far the log is read, at most once every 2 seconds. */
export function sayingHowFar(say: Say): (progress: HowFar) => void {
  let said = Date.now();
  return ({ done, at }) => {
    if (Date.now() - said < PROGRESS_MS) return;
    said = Date.now();
    say(`${done} decisions, until ${at}`);
  };
}

/** `standard`: the range if none is given. */
export function rangeOf(given: Given, standard: string): { readonly from: string; readonly to?: string } {
  const [from, to, since] = ['from', 'to', 'since'].map((option) => given.text(option));
  if (from !== undefined && since !== undefined) throw new UsageError('pass either --since or --from, not both');
  const until = to === undefined ? {} : { to };
  if (from !== undefined) return { from, ...until };
  const ago = spanOf(since ?? standard);
  if (ago === null) throw new UsageError(`--since must be a number and one of m, h, d, w, such as 24h, not ${since}`);
  return { from: new Date(Date.now() - ago).toISOString(), ...until };
}

const SIGNS = { allow: '+', deny: '-' } as const;
const SHOWN = 50;

/** Returns the report as text for people. */
export function reportText(report: Omit<ReportJson, 'revision'>): string {
  const { decisions, replayed, coverage, grants, refuses, already, lists, not_replayed, unlisted, flips, changes } = report;
  const shown = flips.slice(0, SHOWN).map((flip) => `${flipText(flip)}\n`);
  const rest = flips.length - shown.length;
  const causes = Object.entries(NOT_REPLAYED).flatMap(([reason, text]) => {
    const count = not_replayed[reason as keyof typeof not_replayed];
    return count === 0 ? [] : [`${count} ${text}`];
  });
  const unexercised = report.unexercised.map((policy) => `  ${refText(policy)}\n`);
  const lines = [
    `Decisions from ${report.from} to ${report.to}: ${decisions}, evaluated again: ${replayed}${coverage === null ? '' : ` (${coverage}%)`}.\n`,
    ...(causes.length === 0 ? [] : [`Not evaluated again: ${causes.join(', ')}.\n`]),
    ...(lists.lists === 0
      ? []
      : [
          `Names in ${lists.lists} lists: ${lists.names}. The lists left out ${lists.hidden} more names, which the audit log does not record.\n`,
        ]),
    '\n',
    ...shown,
    ...(rest > 0 ? [`  and ${rest} more like these\n`] : []),
    ...(unlisted > 0 ? [`  and ${unlisted} decisions that are not listed\n`] : []),
    ...(flips.length > 0 ? ['\n'] : []),
    `Would be allowed: ${grants}. Would be denied: ${refuses}. Would be hidden in lists: ${lists.hides}.\n`,
    ...(already > 0 ? [`The current policies already decide ${already} of these the same way.\n`] : []),
    ...(unexercised.length > 0
      ? [
          `The report says nothing about ${unexercised.length} of ${changes} changed policies, because they made none of these decisions:\n`,
          ...unexercised,
        ]
      : []),
  ];
  return lines.join('');
}

const NOT_REPLAYED = {
  no_target: 'without a target',
  not_canonical: 'about an ambiguous URI',
  error: 'that ended in an error',
  erased: 'of users whose data is erased',
  damaged: 'that the log no longer has whole: portcullis audit verify says why',
} as const;

export function flipText(flip: ReportJson['flips'][number]): string {
  const { kind, principal, target, resource_type, resource_name, recorded, would_be, count, last } = flip;
  const who = principal.email ?? principal.sub;
  const what = `${target.name ?? target.id}${resource_type === null ? '' : `, ${resource_type} ${quote(resource_name ?? '')}`}`;
  const times = count === 1 ? 'once' : `${count} times`;
  const was =
    kind === 'listed'
      ? 'was listed'
      : `${recorded.effect}${recorded.policy === null ? '' : ` by ${quote(recorded.policy.name ?? '')}`}`;
  return `${SIGNS[would_be.effect]} ${who}, ${what}: ${was}, ${times}, last ${last.created_at}\n    then: ${answerText(would_be as AnswerJson)}`;
}
