/** `portcullis policies lint`. */
import { writeFileSync } from 'node:fs';
import { relative } from 'node:path';
import { VERSION } from '../../../base/version.ts';
import { createEngine } from '../../../engine/engine.ts';
import { formatBaseline, readBaseline } from '../../../policies/review/baseline.ts';
import { type FolderFinding, type FolderLint, hideKnown, lintFolder, placesOf } from '../../../policies/review/lint-folder.ts';
import { sarifOf } from '../../../policies/review/sarif.ts';
import type { LintReport } from '../../../policies/sets/lint-report.ts';
import { connect, type Progress, progressOf, type Say } from '../../client.ts';
import { type Command, CommandError, counted, EXIT, type Given, jsonText, type Option, UsageError } from '../../command.ts';
import { readWhole } from '../../read-text.ts';
import { dirOf } from '../manifest.ts';
import { changing } from '../policy-folder.ts';
import { DIR, SET_OPTIONS } from '../policy-set.ts';
import { CONTEXT, type FolderSet, folderSet, INVARIANTS, refused } from './folder-set.ts';

const SEVERITIES: readonly string[] = ['error', 'warning', 'info'];

const FOLDER_OPTIONS = {
  dir: DIR,
  owner: SET_OPTIONS.owner,
  baseline: {
    value: 'FILE',
    help: 'hides the findings of this file; then every other finding fails, unless --severity is given',
  },
  'write-baseline': { help: 'writes the findings, except errors, into the file of --baseline' },
  context: CONTEXT,
  invariants: INVARIANTS,
  sarif: { value: 'FILE', help: 'writes the findings as SARIF 2.1.0, for code scanning' },
} as const satisfies Record<string, Option>;

export const lintCommand: Command = {
  name: 'lint',
  summary: 'finds policies that never decide, contradict each other, or allow more than they seem to',
  help: `This command needs no gateway: it analyses the files of the folder. With --live, the gateway analyses its current policies
and invariants together with its targets, users, roles and groups. docs/policies.md explains each finding.
A comment in a policy file hides a finding that is not an error: # portcullis-ignore broad_allow until 2027-01-31: reason
Exit code: 0 no finding of this severity or above; 1 at least one; 2 wrong usage.`,
  options: {
    ...FOLDER_OPTIONS,
    live: { help: 'the gateway analyses its current policies' },
    severity: {
      value: 'LEVEL',
      help: 'fails on findings of this severity or above: error, warning or info (default: error)',
    },
  },
  async run(given, say) {
    const severity = given.text('severity') ?? (given.text('baseline') === undefined ? 'error' : 'info');
    const level = SEVERITIES.indexOf(severity);
    if (level === -1) throw new UsageError(`--severity must be error, warning or info, not ${severity}`);
    const report = given.flag('live') ? await lintLive(given, say) : await lintHere(given, say);
    const severe = report.findings.some((finding) => SEVERITIES.indexOf(finding.severity) <= level);
    return { code: severe ? EXIT.failed : EXIT.ok, text: reportText(report, dirOf(given)), json: report };
  },
};

function lintLive(given: Given, say: Say): Promise<LintReport> {
  const option = Object.keys(FOLDER_OPTIONS).find((name) => given.text(name) !== undefined || given.flag(name));
  if (option !== undefined) throw new UsageError(`--${option} is about files: it is not allowed with --live`);
  return connect(given).follow<LintReport, Progress>('GET', '/api/policies/lint', undefined, progressOf(say));
}

async function lintHere(given: Given, say: Say): Promise<FolderLint & { readonly gone?: number }> {
  const [baseline, sarif] = [given.text('baseline'), given.text('sarif')];
  const writes = given.flag('write-baseline');
  if (writes && baseline === undefined) throw new UsageError('--write-baseline needs --baseline, the file to write');
  const found = await lintSet(await folderSet(given, say), dirOf(given));
  if (writes && baseline !== undefined) changing(baseline, () => writeFileSync(baseline, formatBaseline(found.findings)));
  const report = baseline === undefined ? found : hideKnown(found, baselineIn(baseline));
  if (sarif !== undefined) {
    const uriOf = (path: string): string => encodeURI(relative('.', path).replaceAll('\\', '/'));
    const document = sarifOf(report, { version: VERSION, dir: dirOf(given), uriOf });
    changing(sarif, () => writeFileSync(sarif, `${jsonText(document)}\n`));
  }
  return report;
}

export async function lintSet(set: FolderSet, dir: string): Promise<FolderLint> {
  const { texts, module, invariants: files } = set;
  const build = (policies: FolderSet['policies']) => createEngine({ module, policies, revision: 0 });
  const now = Date.now();
  const today = new Date(now).toISOString().slice(0, 10);
  const report = await lintFolder(set, { texts, today, invariants: { files, build, now } });
  if ('errors' in report) throw refused(dir, report.errors);
  return report;
}

function baselineIn(file: string): ReadonlySet<string> {
  let text: string;
  try {
    text = readWhole(file);
  } catch (error) {
    const { message } = error as Error;
    throw new CommandError(
      `${file} cannot be read: ${message}. lint --baseline ${file} --write-baseline makes it`,
      'invalid_file',
    );
  }
  const known = readBaseline(text);
  if (typeof known === 'string') throw new CommandError(`${file} is not a baseline: ${known}`, 'invalid_file');
  return known;
}

function reportText(report: LintReport | (FolderLint & { readonly gone?: number }), dir: string): string {
  const lines = report.findings.map((finding) => findingText(finding, dir));
  const sums = [`${counted(report.findings.length, 'finding')} in ${counted(report.analysed, 'policy', 'policies')}.`];
  if ('hidden' in report && report.hidden.length > 0) {
    const by = (what: string): number => report.hidden.filter(({ hidden_by }) => hidden_by === what).length;
    sums.push(`Hidden: ${by('comment')} by comments, ${by('baseline')} by the baseline.`);
  }
  if ('gone' in report && report.gone) {
    sums.push(`${counted(report.gone, 'entry', 'entries')} of the baseline without a finding: --write-baseline removes them.`);
  }
  return `${lines.join('')}${sums.join(' ')}\n`;
}

/** Begins with the place in the form that terminals and editors find. */
export function findingText(finding: LintReport['findings'][number] | FolderFinding, dir: string): string {
  const { code, severity, message, policies } = finding;
  const [about] = policies;
  const [place] = 'invariant' in finding ? placesOf(finding, dir) : [];
  const file = about?.file ? `${about.file}: ` : '';
  const at = place === undefined ? file : `${place.path}:${place.line}:${place.column}: `;
  return `${at}${severity} ${code}${about?.owner ? ` (owner ${about.owner})` : ''}: ${message}\n`;
}
