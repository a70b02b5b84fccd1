/** Which patterns have more states than RE2 can keep. */
import test from 'ava';
import { stateWork, stateWorkInSteps } from '../../../src/engine/compile/automaton.ts';
import { stateProblem } from '../../../src/engine/compile/pattern.ts';
import { parse } from '../../../src/engine/compile/re2.ts';

const workOf = (pattern: string): number | null => stateWork(parse(pattern), pattern);

function areEndless(t: { is(value: unknown, expected: unknown, message: string): void }, patterns: readonly string[]): void {
  for (const pattern of patterns) t.is(workOf(pattern), null, pattern);
}

test('a condition does not hold everywhere, so what follows it does not hide the states', (t) => {
  areEndless(
    t,
    ['\\b', '\\z', '$', '(?m:^)', '(?m:$)', '^'].map((condition) => `a(?:[ab]|${condition}){50}c`),
  );
  areEndless(t, ['^.*a(?:[ab]|\\b){50}c$']);
});

test('a pattern that ends with $ has the states of the reading from the end', (t) => {
  areEndless(t, ['c[ab]{50}a[^1]*$', 'c[ab]{50}a[^1]*\\z', '(?:c[ab]{50}a[^1]*$)', '(?:x|c[ab]{50}a[^1]*$)']);
  t.not(workOf('a[ab]{50}c$'), null, 'from the end, it has few states');
  t.is(workOf('(?:a[ab]{50}c$)'), null, 'RE2 does not look for $ in all groups, so both ways count');
  t.is(workOf('a[ab]{50}c\\$'), null, 'this is not the end');
  t.not(workOf('^c[ab]{50}a[^1]*$'), null, 'a pattern with both anchors is read from the beginning');
  t.is(workOf('(?:^|x)c[ab]{50}a[^1]*$'), null);
});

test('after a match at the beginning, RE2 goes on with what it prefers', (t) => {
  areEndless(t, ['^(?:[abc]*c[abc]{50}d|[abc])', '(?:^[abc]*c[abc]{50}d|^[abc])', '(?:)^(?:[abc]*c[abc]{50}d|[abc])']);
  t.not(workOf('^(?:[abc]|[abc]*c[abc]{50}d)'), null, 'it prefers the match');
});

test('RE2 prefers few repetitions if ? or (?U) says so', (t) => {
  const pattern = (times: string): string => `^(?:[abc]*c[abc]{50}d)${times}[abc]`;
  areEndless(t, [pattern('?'), `(?U)${pattern('??')}`]);
  t.not(workOf(pattern('??')), null);
  t.not(workOf(`^(?U:${pattern('?').slice(1)})`), null);
});

test('RE2 keeps the states apart by the order in which matches begin', (t) => {
  const latches = (count: number): string =>
    Array.from({ length: count }, (_, at) => `${String.fromCharCode(97 + at)}[^${String.fromCharCode(65 + at)}]*1`).join('|');
  const [six, five] = [workOf(latches(6)), workOf(latches(5))];
  t.is(six, null, 'there are 2,000 orders of six');
  t.true(five !== null && five > 50_000, `${five}`);
});

test('sorting the instructions of large states counts', (t) => {
  t.is(workOf('(?:[abc]{200,}){2}x$'), null, 'six of these took 64 ms');
  t.not(workOf('[abc]{200,}x$'), null);
});

test('states are made in short steps', (t) => {
  for (const pattern of ['a[ab]{50}c', 'c[ab]{50}a[^1]*$', '(?:[abc]{200,}){2}x$']) {
    const steps = [...stateWorkInSteps(parse(pattern), pattern)].length;
    t.true(steps >= 30, `${pattern}: ${steps} steps`);
  }
});

test('ordinary patterns with conditions have few states', (t) => {
  for (const pattern of [
    '\\bsecret\\b',
    '(^|/)private($|/)',
    '(?m)^x$',
    '(?i)\\b(drop|delete|truncate)\\b',
    '\\b[0-9]{13,16}\\b',
  ]) {
    const work = workOf(pattern);
    t.true(work !== null && work < 5_000, `${pattern}: ${work}`);
  }
  t.is(stateProblem('file:///.{1,100}\\.env$'), null);
});

test('the message says what to write instead, and that is accepted', (t) => {
  for (const [refused, accepted] of [
    ['.{0,20}secret.{0,20}key', 'secret.*key'],
    ['db_.{1,30}_drop', 'db_.+_drop'],
    ['/[0-9]{4}/[0-9]{2}/.{0,50}report', '/[0-9]{4}/[0-9]{2}/.*report'],
  ] as const) {
    t.regex(
      stateProblem(refused) ?? '',
      /^The pattern has too many states: .* Write \.\* or \.\+ instead, or smaller numbers\.$/,
    );
    t.is(stateProblem(accepted), null, accepted);
  }
});
