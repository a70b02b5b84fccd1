/** Prints how a change of the policies changes decisions. */
import type { DecisionChanges, Flip } from '../../policies/sets/decision-changes.ts';
import { answerText, quote } from './policy-set.ts';

/** The answer of the API. */
export interface DecisionChangesJson {
  readonly verdict: DecisionChanges['verdict'];
  readonly changes: readonly { readonly name: string; readonly flips: readonly Flip[] | null }[];
}

interface Sides {
  readonly before: string;
  readonly after: string;
}

const WHAT = {
  equal: 'equal: every request gets the same effect',
  stricter: 'stricter: some requests that were allowed are denied, and none that were denied are allowed',
  looser: 'looser: some requests that were denied are allowed, and none that were allowed are denied',
  incomparable: 'incomparable: some requests that were denied are allowed, and some that were allowed are denied',
  unknown: 'unknown: the comparison would exceed the limits',
} as const satisfies Record<DecisionChanges['verdict'], string>;

const NAMES_SHOWN = 10;
/** For each effect. */
const FLIPS_SHOWN = 10;

/** `sides`: the names of the two policy sets. */
export function flipsText({ verdict, changes }: DecisionChangesJson, sides: Sides): string {
  // One request can flip because of several changes.
  const flips = [...new Map(changes.flatMap(({ flips }) => flips ?? []).map((flip) => [JSON.stringify(flip), flip])).values()];
  const shown = (effect: Flip['after']['effect'], head: string): string => {
    const texts = flips.filter(({ after }) => after.effect === effect).map((flip) => flipText(flip, sides));
    const rest = texts.length - FLIPS_SHOWN;
    const more = rest > 0 ? `  and ${rest} more: --json has them all\n` : '';
    return texts.length === 0 ? '' : `\n${head}, for example:\n\n${texts.slice(0, FLIPS_SHOWN).join('')}${more}`;
  };
  const without = changes.filter(({ flips }) => flips?.length === 0);
  const open = changes.filter(({ flips }) => flips === null);
  const notes = [
    ...(without.length === 0 || verdict === 'equal' ? [] : [`No outcome changes because of ${namesText(without)}.`]),
    ...(open.length === 0
      ? []
      : [`Unknown which outcomes change because of ${namesText(open)}: the comparison would exceed the limits.`]),
  ];
  return `Decisions: ${WHAT[verdict]}.\n${shown('allow', 'Allowed')}${shown('deny', 'Denied')}${notes.length === 0 ? '' : `\n${notes.join('\n')}\n`}`;
}

function namesText(changes: DecisionChangesJson['changes']): string {
  const more = changes.length - NAMES_SHOWN;
  const names = changes.slice(0, NAMES_SHOWN).map(({ name }) => quote(name));
  return [...names, ...(more > 0 ? [`${more} more`] : [])].join(', ');
}

function flipText({ subjects, target, resource_type, resource_name, is_template, before, after }: Flip, sides: Sides): string {
  const who = subjects.map(({ subject_type, subject_value }) => `${subject_type} ${quote(subject_value)}`).join(' and ');
  const what = resource_type === null ? '' : `, ${resource_type}${is_template ? ' template' : ''} ${quote(resource_name ?? '')}`;
  const width = Math.max(sides.before.length, sides.after.length) + 2;
  const line = (side: string, answer: Flip['before']): string =>
    `    ${`${side}:`.padEnd(width)}${answerText({ ...answer, reason: 'default' })}\n`;
  const sign = after.effect === 'allow' ? '+' : '-';
  return `${sign} ${who === '' ? 'anybody' : who}, ${target}${what}\n${line(sides.before, before)}${line(sides.after, after)}`;
}
