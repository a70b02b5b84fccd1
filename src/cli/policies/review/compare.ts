/** `portcullis policies compare`: two revisions of a gateway, or two folders without a gateway. */
import { writeFileSync } from 'node:fs';
import { compareFolders, newFindings } from '../../../policies/review/compare-folders.ts';
import { type Review, reviewMarkdown } from '../../../policies/review/markdown.ts';
import { connect, type Progress, progressOf, type Say } from '../../client.ts';
import { type Command, counted, EXIT, type Given, type Outcome, UsageError } from '../../command.ts';
import { type DecisionChangesJson, flipsText } from '../decision-changes.ts';
import { dirOf, manifestIn, namedOwner, testDirOf } from '../manifest.ts';
import { changing } from '../policy-folder.ts';
import { type Between, betweenOf, DIR, SET_OPTIONS } from '../policy-set.ts';
import { CONTEXT, folderSet, INVARIANTS, readFolder } from './folder-set.ts';
import { failuresText, testCases, testFilesIfAny, testFolder } from './folder-tests.ts';
import { findingText, lintSet } from './lint.ts';

const FOLDER_OPTIONS = {
  with: { value: 'DIR', help: 'compares the folder of --dir with this earlier one, without a gateway' },
  dir: DIR,
  owner: SET_OPTIONS.owner,
  context: CONTEXT,
  invariants: INVARIANTS,
  markdown: { value: 'FILE', help: 'writes a report for a pull request' },
} as const;

export const compareCommand: Command = {
  name: 'compare',
  takes: '[<from>] [<to>]',
  summary:
    'says whether a revision or a folder is equal to an earlier one, stricter, looser or incomparable, with example requests',
  help: `The second revision defaults to the current one. With --with, two folders are compared on this machine, such as those of two git
revisions. That also shows the findings of lint that are new, and runs the tests of the folder.
The analysis covers all possible requests, not only examples: docs/policies.md says which requests these are, and which limits apply.`,
  options: {
    ...FOLDER_OPTIONS,
    'detailed-exitcode': { help: `exits with ${EXIT.changes} unless every request gets the same effect` },
  },
  run(given, say) {
    if (given.text('with') === undefined) return revisions(given, say);
    if (given.args.length > 0) throw new UsageError('pass either revisions or --with, not both');
    return folders(given, say);
  },
};

const codeOf = (given: Given, verdict: Review['verdict']) =>
  given.flag('detailed-exitcode') && verdict !== 'equal' ? EXIT.changes : EXIT.ok;

async function revisions(given: Given, say: Say): Promise<Outcome> {
  const option = Object.keys(FOLDER_OPTIONS).find((name) => given.text(name) !== undefined);
  if (option !== undefined) throw new UsageError(`--${option} is only allowed with --with`);
  if (given.args.length === 0) throw new UsageError('compare needs <from> [<to>], or --with');
  const path = `/api/policies/compare?${betweenOf(given)}`;
  const answer = await connect(given).follow<Between & DecisionChangesJson, Progress>('GET', path, undefined, progressOf(say));
  const { from, to, verdict } = answer;
  return {
    code: codeOf(given, verdict),
    text: `From revision ${from} to ${to}. ${flipsText(answer, { before: `at ${from}`, after: `at ${to}` })}`,
    json: answer,
  };
}

async function folders(given: Given, say: Say): Promise<Outcome> {
  const [from = '', to] = [given.text('with'), dirOf(given)];
  const cases = testCases(given, testFilesIfAny(given));
  // An earlier folder without a manifest has the same owner.
  const owner = (manifestIn(from) === null ? namedOwner(given) : null) ?? given.text('owner');
  const earlier: Given = {
    ...given,
    text: (option) => (option === 'dir' ? from : option === 'owner' ? owner : given.text(option)),
  };
  const [old, current] = [readFolder(earlier), readFolder(given)];
  const after = await folderSet(given, say, { cases, folder: current, other: old });
  const before = await folderSet(earlier, () => undefined, { cases, folder: old, other: current });
  const tested = cases.length === 0 ? null : await testFolder(after, cases, testDirOf(given));
  const review: Review = {
    ...{ from, to, context: after.context, ...(await compareFolders(before, after)) },
    findings: newFindings(await lintSet(before, from), await lintSet(after, to)),
    tests: tested && {
      ...{ passed: tested.passed, failed: tested.failed, failures: tested.results.filter(({ passed }) => !passed) },
    },
  };
  const markdown = given.text('markdown');
  if (markdown !== undefined) changing(markdown, () => writeFileSync(markdown, reviewMarkdown(review)));
  return { code: codeOf(given, review.verdict), text: reviewText(review, testDirOf(given)), json: review };
}

function reviewText(review: Review, tests: string): string {
  const { from, to, context, changes, findings } = review;
  const others = context === null ? '' : `, with the policies of other owners at revision ${context.revision} (${context.as_of})`;
  const changed = changes.map(
    ({ action, file, members }) => `${action} ${file}${members.length > 0 ? `: ${members.join(', ')}` : ''}\n`,
  );
  const parts = [
    `From ${from} to ${to}${others}. ${flipsText(review, { before: 'before', after: 'after' })}`,
    `${counted(changes.length, 'policy', 'policies')} changed.\n${changed.join('')}`,
    `${counted(findings.length, 'new finding')}.\n${findings.map((finding) => findingText(finding, to)).join('')}`,
    review.tests === null
      ? ''
      : `${review.tests.passed} tests passed, ${review.tests.failed} failed.\n${failuresText(review.tests.failures, tests)}`,
  ];
  return parts.filter((part) => part !== '').join('\n');
}
