/** The report of a comparison for a pull request, as Markdown that GitHub and GitLab render. Pure. */

import { failureText, type TestResult } from '../files/test-run.ts';
import type { Flip } from '../sets/decision-changes.ts';
import type { FolderComparison } from './compare-folders.ts';
import { type FolderFinding, placesOf } from './lint-folder.ts';

export interface Review extends FolderComparison {
  /** The folders. */
  readonly from: string;
  readonly to: string;
  /** The policies of other owners that the comparison includes; null: none. */
  readonly context: { readonly revision: number; readonly as_of: string } | null;
  /** The findings of lint that are new. */
  readonly findings: readonly FolderFinding[];
  /** null: the folder has no tests. */
  readonly tests: { readonly passed: number; readonly failed: number; readonly failures: readonly TestResult[] } | null;
}

const VERDICTS = {
  equal: 'Every request gets the same answer as before.',
  stricter: 'Some requests that were allowed are denied, and none that were denied are allowed.',
  looser: 'Some requests that were denied are allowed, and none that were allowed are denied.',
  incomparable: 'Some requests that were denied are allowed, and some that were allowed are denied.',
  unknown: 'The comparison would exceed the limits, so more requests may be allowed or denied than this report shows.',
} as const satisfies Record<Review['verdict'], string>;

/** Characters of one section. A comment at GitHub has at most 65,536 characters. */
const SECTION_MAX = 18_000;
/** Rows of one section: what a person reads. */
const ROWS_MAX = 25;
/** Characters of one text that a stranger may have written. */
const TEXT_MAX = 120;
const MESSAGE_MAX = 400;

export function reviewMarkdown(review: Review): string {
  const { verdict, changes, findings, tests, context } = review;
  return [
    `## Policies: ${verdict}\n\n${VERDICTS[verdict]}`,
    [
      `Policies: ${changes.length} changed`,
      `new findings: ${findings.length}`,
      tests === null ? 'tests: none' : `tests: ${tests.failed} failed, ${tests.passed} passed`,
    ].join(' · '),
    table(
      ['Change', 'File', 'Newly allowed', 'Newly denied'],
      changes.map(({ action, file, members, flips }) => [
        `${action}${members.length === 0 ? '' : ` ${members.map(text).join(', ')}`}`,
        text(file),
        flipsText(flips, 'allow'),
        flipsText(flips, 'deny'),
      ]),
    ),
    section(
      'New findings of lint',
      table(
        ['Severity', 'Finding', 'Place', 'Message'],
        findings.map((finding) => {
          const { severity, code, message } = finding;
          const [place] = placesOf(finding, '');
          return [severity, code, place === undefined ? '' : text(`${place.path}:${place.line}`), text(message, MESSAGE_MAX)];
        }),
      ),
    ),
    section(
      'Failed tests',
      table(
        ['Place', 'Test', 'Principal, request', 'Result'],
        (tests?.failures ?? []).map((failure) => [
          text(`${failure.file}:${failure.line}`),
          text(failure.test),
          text(`${failure.principal}, ${failure.request}`),
          text(failureText(failure), MESSAGE_MAX),
        ]),
      ),
    ),
    `From ${text(review.from)} to ${text(review.to)}${context === null ? ', without the policies of other owners' : `, with the policies of other owners at revision ${context.revision} (${context.as_of})`}.`,
  ]
    .filter((part) => part !== '')
    .join('\n\n')
    .concat('\n');
}

const section = (head: string, rows: string): string => (rows === '' ? '' : `### ${head}\n\n${rows}`);

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  if (rows.length === 0) return '';
  const lines = [`| ${head.join(' | ')} |`, `|${' --- |'.repeat(head.length)}`];
  let left = SECTION_MAX;
  for (const row of rows.slice(0, ROWS_MAX)) {
    const line = `| ${row.join(' | ')} |`;
    left -= line.length;
    if (left < 0) break;
    lines.push(line);
  }
  const more = rows.length - (lines.length - 2);
  return `${lines.join('\n')}${more > 0 ? `\n\nand ${more} more: \`--json\` has all of them` : ''}`;
}

function flipsText(flips: readonly Flip[] | null, effect: 'allow' | 'deny'): string {
  if (flips === null) return 'unknown';
  const found = flips.filter(({ after }) => after.effect === effect);
  return found.length === 0 ? 'none' : found.map(flipText).join('<br>');
}

function flipText({ subjects, target, resource_type, resource_name, is_template }: Flip): string {
  const who = subjects.map(({ subject_type, subject_value }) => `${subject_type} ${text(subject_value)}`).join(' and ');
  const what = resource_type === null ? '' : `, ${resource_type}${is_template ? ' template' : ''} ${text(resource_name ?? '')}`;
  return `${who === '' ? 'anybody' : who} at ${text(target)}${what}`;
}

/**
 * Shows a text that a stranger may have written. Every other character becomes a reference, which cannot be markup, a link or the end of a
 * table cell. GitHub and GitLab notify no user whose name is in `code`.
 */
function text(raw: string, max = TEXT_MAX): string {
  const characters = [...raw];
  const shown = characters.length > max ? [...characters.slice(0, max), '…'] : characters;
  return `<code>${shown.map((character) => (PLAIN.test(character) ? character : reference(character))).join('')}</code>`;
}

const PLAIN = /^[A-Za-z0-9 /-]$/;
/** Characters that do not show themselves, or that reverse text. */
const UNSEEN = /[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}]/u;

function reference(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  return UNSEEN.test(character) ? `&#92;u&#123;${code.toString(16)}&#125;` : `&#${code};`;
}
