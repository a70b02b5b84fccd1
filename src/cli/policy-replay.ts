/** `portcullis policies replay`, and how flips are told. */

import type { ReplayReport } from '../policies/replay/report.ts';
import { connect } from './client.ts';
import { type Command, EXIT, type Given, UsageError } from './command.ts';
import { type AnswerJson, answerText, dirOf, pointing, quote, refText, SET_OPTIONS, setOf } from './policy-set.ts';

export type ReportJson = ReplayReport & { readonly revision: number; readonly from: string; readonly to: string };

const UNITS = { m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 } as const;

export const replayCommand: Command = {
  name: 'replay',
  summary: 'shows which recorded decisions would flip if the files were applied, and stores nothing',
  help: `Decisions of the audit log are made again, with the files, a draft, or (--live) the policies as they are now. What cannot be made
again is counted: requests that no policy was asked about, and those of users whose data was erased. Of names that lists did not
show nothing is recorded, so it is not known which of them would be shown.`,
  options: {
    ...SET_OPTIONS,
    live: { help: 'with the policies as they are now: what has changed since' },
    since: { value: 'AGO', help: 'decisions of the last 30m, 24h, 7d, 4w; 24h, if no time is given' },
    from: { value: 'TIME', help: 'or from this time on, such as 2026-01-31T12:00:00Z' },
    to: { value: 'TIME', help: 'until this time; now, if not given' },
    'detailed-exitcode': { help: `exits with ${EXIT.changes} where something would flip` },
  },
  async run(given, say) {
    const body = { ...(given.flag('live') ? {} : setOf(given)), ...rangeOf(given) };
    let said = Date.now();
    const report = await pointing(dirOf(given), '', () =>
      connect(given).follow<ReportJson, { done: number; at: string }>('POST', '/api/policies/replay', body, ({ done, at }) => {
        if (Date.now() - said < PROGRESS_MS) return;
        said = Date.now();
        say(`${done} decisions, until ${at}`);
      }),
    );
    return {
      code: report.flips.length > 0 && given.flag('detailed-exitcode') ? EXIT.changes : EXIT.ok,
      text: reportText(report),
      json: report,
    };
  },
};

const PROGRESS_MS = 2_000;

function rangeOf(given: Given): { readonly from: string; readonly to?: string } {
  const [from, to, since] = ['from', 'to', 'since'].map((option) => given.text(option));
  if (from !== undefined && since !== undefined) throw new UsageError('--since or --from, not both');
  const until = to === undefined ? {} : { to };
  if (from !== undefined) return { from, ...until };
  const [, count, unit] = /^([1-9]\d{0,4})([mhdw])$/.exec(since ?? '24h') ?? [];
  if (count === undefined) throw new UsageError(`--since is a number and one of m, h, d, w, such as 24h, and not ${since}`);
  const ago = Number(count) * UNITS[unit as keyof typeof UNITS];
  return { from: new Date(Date.now() - ago).toISOString(), ...until };
}

const SIGNS = { allow: '+', deny: '-' } as const;
const SHOWN = 50;

/** For people. */
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
    `Decisions from ${report.from} to ${report.to}: ${decisions}, made again ${replayed}${coverage === null ? '' : ` (${coverage}%)`}.\n`,
    ...(causes.length === 0 ? [] : [`Not made again: ${causes.join(', ')}.\n`]),
    ...(lists.lists === 0
      ? []
      : [`Names in ${lists.lists} lists: ${lists.names}; ${lists.hidden} more were not shown, and nothing is known of them.\n`]),
    '\n',
    ...shown,
    ...(rest > 0 ? [`  and ${rest} more like these\n`] : []),
    ...(unlisted > 0 ? [`  and ${unlisted} decisions that are not listed\n`] : []),
    ...(flips.length > 0 ? ['\n'] : []),
    `Would be allowed: ${grants}. Would be denied: ${refuses}. Would be hidden in lists: ${lists.hides}.\n`,
    ...(already > 0 ? [`Of these, ${already} are decided so already by the policies as they are.\n`] : []),
    ...(unexercised.length > 0
      ? [
          `Of ${unexercised.length} of ${changes} changed policies this says nothing, because no decision was theirs:\n`,
          ...unexercised,
        ]
      : []),
  ];
  return lines.join('');
}

const NOT_REPLAYED = {
  no_target: 'for no target',
  not_canonical: 'of a URI with more than one reading',
  error: 'that had failed',
  erased: 'of users whose data is erased',
} as const;

function flipText({
  kind,
  principal,
  target,
  resource_type,
  resource_name,
  recorded,
  would_be,
  count,
  last,
}: ReportJson['flips'][number]) {
  const who = principal.email ?? principal.sub;
  const what = `${target.name ?? target.id}${resource_type === null ? '' : `, ${resource_type} ${quote(resource_name ?? '')}`}`;
  const times = count === 1 ? 'once' : `${count} times`;
  const was =
    kind === 'listed'
      ? 'was shown in a list'
      : `${recorded.effect}${recorded.policy === null ? '' : ` by ${quote(recorded.policy.name ?? '')}`}`;
  return `${SIGNS[would_be.effect]} ${who}, ${what}: ${was}, ${times}, last ${last.created_at}\n    then: ${answerText(would_be as AnswerJson)}`;
}
