/** Comments in policy files that hide a finding of lint: `# portcullis-ignore broad_allow until 2027-01-31: reason`. Pure. */
import { SEVERITIES } from '../analysis/analyse.ts';
import { commentsOf, type PolicyFileError } from '../files/yaml.ts';
import { INVARIANT_SEVERITIES } from '../invariants/findings.ts';

export const LINT_SEVERITIES = { ...SEVERITIES, ...INVARIANT_SEVERITIES };
export type LintCode = keyof typeof LINT_SEVERITIES;

export interface Ignore {
  readonly code: LintCode;
  /** The last day, in UTC, such as 2027-01-31. */
  readonly until: string;
  readonly reason: string;
  readonly line: number;
  readonly column: number;
}

/** An error is a policy without any effect. To hide it would hide that somebody relies on a policy that does nothing. */
export const mayBeHidden = (code: string): boolean =>
  Object.hasOwn(LINT_SEVERITIES, code) && LINT_SEVERITIES[code as LintCode] !== 'error';

const BEGIN = /^#+\s*portcullis-ignore\b/;
const FORM = /^# portcullis-ignore ([^\s:]+) until ([^\s:]+): (.*\S)$/;
const FORM_TEXT = '# portcullis-ignore <finding> until <year-month-day>: <reason>';

/** Strict: a comment that begins like this and hides nothing would deceive its reader. */
export function readIgnores(
  text: string,
  file: string,
): { readonly ignores: readonly Ignore[] } | { readonly errors: readonly PolicyFileError[] } {
  const ignores: Ignore[] = [];
  const errors: PolicyFileError[] = [];
  for (const { text: comment, line, column } of commentsOf(text)) {
    if (!BEGIN.test(comment)) continue;
    const [, code = '', until = '', reason = ''] = FORM.exec(comment) ?? [];
    const problem = problemOf(code, until, ignores);
    if (problem === null) ignores.push({ code: code as LintCode, until, reason, line, column });
    else errors.push({ file, line, column, message: problem });
  }
  return errors.length > 0 ? { errors } : { ignores };
}

function problemOf(code: string, until: string, before: readonly Ignore[]): string | null {
  if (code === '') return `a comment that hides a finding must have the form "${FORM_TEXT}"`;
  if (!Object.hasOwn(LINT_SEVERITIES, code)) {
    const known = Object.keys(LINT_SEVERITIES).filter(mayBeHidden);
    return `no finding has the name ${code}: use one of ${known.join(', ')}`;
  }
  if (!mayBeHidden(code)) return `a comment cannot hide ${code}, because it is an error: correct or delete the policy`;
  if (!isDay(until)) return `${until} is not a day: write it as 2027-01-31`;
  if (before.some((other) => other.code === code)) return `a comment above already hides ${code} in this file`;
  return null;
}

/** Whether the text is a day such as 2027-01-31. */
export const isDay = (text: string): boolean => {
  const time = /^\d{4}-\d\d-\d\d$/.test(text) ? Date.parse(`${text}T00:00:00Z`) : Number.NaN;
  return !Number.isNaN(time) && new Date(time).toISOString().startsWith(text);
};
