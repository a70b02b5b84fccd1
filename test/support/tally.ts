import { stripVTControlCharacters } from 'node:util';

/**
 * Counts what ava's own report says. (Its TAP report would be easier to read, but in ava 7.0.0 it ends the whole run with a TypeError when
 * a test times out or calls `process.exit()`.)
 */
export interface Tally {
  readonly failed: number;
  read(line: string): void;
  /** Takes the exit code or signal of ava. An abnormal end counts as a failure, too. Then the report of another run of ava may follow. */
  end(status: number | string): void;
  fail(reason: string): void;
  /** Titles of the tests that ava skipped. */
  readonly skipped: readonly string[];
  /** The last of the lines is `N passed, N failed`. */
  summary(): string[];
}

// Two columns, exactly: what tests log is indented further.
const MARKED = /^ {2}(✔|✘|√|×) (.*)$/u;
const CRASHED = /^ {2}((?:Uncaught exception|Unhandled rejection) in .*)$/;
const STOPPED = /^ {2}(?:✘|×) (?:Timed out|Exiting due to SIGINT)/u;
const PENDING = /^ {2}(\d+) tests were pending in (.*)$/;
const REMAINING = /^(\d+) tests? remaining in /;
const SKIPPED = /^ {2}- \[skip\] (.*)$/;
const SEPARATOR = /^ {2}(─|-)$/u;
/** How many lines of ava's texts about failures are said again at the end: some services show only the end of the output. */
const MOST_TOLD = 80;

export function createTally(): Tally {
  let passed = 0;
  /** How many tests earlier reports counted. */
  let counted = 0;
  let failedBefore = 0;
  let report: 'running' | 'summary' = 'running';
  const failures: string[] = [];
  const skipped: string[] = [];
  const told: string[] = [];
  const fail = (reason: string, times = 1) => {
    for (let i = 0; i < times; i++) failures.push(reason);
  };

  return {
    get failed() {
      return failures.length;
    },
    read(coloured) {
      const line = stripVTControlCharacters(coloured);
      if (SEPARATOR.test(line)) report = 'summary';
      if (report === 'summary' && failures.length > failedBefore && told.length < MOST_TOLD && line !== '') told.push(line);
      if (report === 'summary' || STOPPED.test(line)) return;
      const [, mark, title = ''] = MARKED.exec(line) ?? [];
      const pending = PENDING.exec(line);
      const skip = SKIPPED.exec(line)?.[1];
      const crash = CRASHED.exec(line)?.[1];
      if (mark === '✔' || mark === '√') passed++;
      else if (skip !== undefined) skipped.push(skip);
      else if (mark !== undefined) fail(title, Number(REMAINING.exec(title)?.[1] ?? 1));
      else if (pending) fail(`pending in ${pending[2]}`, Number(pending[1]));
      else if (crash !== undefined) fail(crash);
    },
    end(status) {
      if (status !== 0 && failures.length === failedBefore) fail(`ava ended with ${status}`);
      if (status === 0 && passed + failures.length === counted) fail('no test ran');
      counted = passed + failures.length;
      failedBefore = failures.length;
      report = 'running';
    },
    fail,
    skipped,
    summary() {
      const names = [...new Set(failures)].map((title) => `  ✘ ${title}`);
      return [...(names.length > 0 ? ['', 'Failed:', ...names, ...told] : []), '', `${passed} passed, ${failures.length} failed`];
    },
  };
}
