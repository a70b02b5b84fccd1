import test from 'ava';
import { createTally } from './tally.ts';

function count(report: string, status: number | string = 1) {
  const tally = createTally();
  for (const line of report.split('\n')) tally.read(line);
  tally.end(status);
  return tally.summary().at(-1);
}

const PASSED =
  '  ✔ a\n  ✔ b › c (101ms)\n    ℹ ✔ what a test logs\n      ✘ and its second line\n  - [skip] d\n  ─\n\n  2 tests passed';

test('a report without failures passes', (t) => {
  t.is(count(PASSED, 0), '2 passed, 0 failed');
});

test('skipped tests are named, and count neither as passed nor as failed', (t) => {
  const tally = createTally();
  for (const line of PASSED.split('\n')) tally.read(line);
  t.deepEqual(tally.skipped, ['d']);
});

test('the reports of several runs of ava are counted together, and each must be whole', (t) => {
  const ends = (...reports: readonly (readonly [string, number])[]) => {
    const tally = createTally();
    for (const [report, status] of reports) {
      for (const line of report.split('\n')) tally.read(line);
      tally.end(status);
    }
    return tally.summary().at(-1);
  };
  t.is(ends([PASSED, 0], [PASSED, 0]), '4 passed, 0 failed');
  t.is(ends(['  ✘ [fail]: a\n  ─', 1], [PASSED, 0]), '2 passed, 1 failed');
  t.is(ends([PASSED, 0], ['', 0]), '2 passed, 1 failed');
  t.is(ends(['  ✘ [fail]: a\n  ─', 1], ['', 9]), '0 passed, 2 failed');
});

test('colours in a report are ignored', (t) => {
  t.is(count('  \u001B[32m✔\u001B[39m a\n  \u001B[31m✘ [fail]:\u001B[39m b'), '1 passed, 1 failed');
});

test('the lines after the separator are not counted again', (t) => {
  t.is(count('  ✘ [fail]: a\n  ─\n\n  a\n\n  ✔ in a message\n  ─\n\n  1 test failed'), '0 passed, 1 failed');
});

test('what ava says about failures is said again at the end, where nobody has to look for it', (t) => {
  const tally = createTally();
  const report = `${PASSED}\n\x1b[31m  a\x1b[39m\n\n  test/a.test.ts:3\n\n  Rejected promise`;
  for (const line of report.split('\n')) tally.read(line);
  tally.end(0);
  for (const line of `  ✘ [fail]: a\n${report.slice(report.indexOf('  ─'))}`.split('\n')) tally.read(line);
  tally.end(1);
  t.deepEqual(tally.summary().slice(0, 5), ['', 'Failed:', '  ✘ [fail]: a', '  ─', '  2 tests passed']);
  t.deepEqual(tally.summary().slice(5), ['  a', '  test/a.test.ts:3', '  Rejected promise', '', '2 passed, 1 failed']);
});

test('crashes, early ends and pending tests count', (t) => {
  t.is(count('  Uncaught exception in test/a.test.ts\n  Unhandled rejection in test/b.test.ts'), '0 passed, 2 failed');
  t.is(count('  ✘ test/a.test.ts exited due to SIGKILL\n  ✘ 3 tests remaining in test/b.test.ts'), '0 passed, 4 failed');
  t.is(
    count('\n  ✘ Timed out while running tests\n\n  2 tests were pending in test/a.test.ts\n\n  ◌ a › b'),
    '0 passed, 2 failed',
  );
});

test('a missing report counts as a failure', (t) => {
  t.is(count('', 0), '0 passed, 1 failed');
  t.is(count('', 'SIGKILL'), '0 passed, 1 failed');
  t.is(count('  ✔ a', 1), '1 passed, 1 failed');
});
