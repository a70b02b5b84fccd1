import test from 'ava';
import { knownWork, MAX_PATTERN_LENGTH, type PatternReading, readPattern, workOf } from '../../src/engine/compile/pattern.ts';
import { foundFor, takeFound, takePolicies, withReadings } from '../../src/policies/heavy/given.ts';
import { policy } from './policies.ts';

const withPattern = (resource_pattern: string | null) => policy('p', { resource_pattern });

test('a thread takes over the reading of a pattern from the gateway', (t) => {
  const [gone, taken] = [withPattern('^taken_[a-z]+$'), withPattern('^taken_[0-9]+$')];
  const reading = readPattern('^gone_');
  t.deepEqual(
    takePolicies([
      { policy: gone, reading: undefined, work: undefined },
      { policy: taken, reading, work: 7 },
    ]),
    [gone, taken],
  );
  t.is(readPattern('^taken_[0-9]+$'), reading);
  t.is(knownWork(reading), 7, 'the thread does not compute it again');
  t.not(readPattern('^taken_[a-z]+$'), reading);
});

test('the work of a pattern goes with it, if the gateway knows it', (t) => {
  const [known, unknown] = ['known[0-9]x', 'unknown[0-9]x'];
  const reading = readPattern(known);
  readPattern(unknown);
  if (typeof reading === 'string') return t.fail();
  const work = workOf(known, reading);
  t.deepEqual(
    [...withReadings([known, unknown].map(withPattern))].map((given) => given.work),
    [work, undefined],
  );
});

test('a thread keeps a reading of its own, with the work that it knows', (t) => {
  const pattern = 'own[0-9]x';
  const reading = readPattern(pattern);
  if (typeof reading === 'string') return t.fail();
  const work = workOf(pattern, reading);
  takePolicies([{ policy: withPattern(pattern), reading: structuredClone(reading), work: undefined }]);
  t.is(readPattern(pattern), reading);
  t.is(knownWork(readPattern(pattern)), work);
});

test('a thread tells what the gateway did not know of a pattern, and the gateway takes it over', (t) => {
  const [all, half, nothing] = ['all[0-9]x', 'half[0-9]x', 'nothing[0-9]x'];
  const works = [all, half, nothing].map((pattern) => workOf(pattern, readPattern(pattern) as PatternReading));
  const given = [
    { policy: withPattern(null), reading: undefined, work: undefined },
    { policy: withPattern(all), reading: readPattern(all), work: works[0] },
    { policy: withPattern(half), reading: readPattern(half), work: undefined },
    ...[1, 2].map(() => ({ policy: withPattern(nothing), reading: undefined, work: undefined })),
    { policy: withPattern('never[0-9]read'), reading: undefined, work: undefined },
  ];
  const found = [...foundFor(given)];
  t.deepEqual(found, [
    { pattern: half, reading: readPattern(half), work: works[1] },
    { pattern: nothing, reading: readPattern(nothing), work: works[2] },
  ]);
  const [, last] = structuredClone(found);
  if (last === undefined) return t.fail();
  takeFound([{ ...last, pattern: 'taken[0-9]x' }]);
  t.is(readPattern('taken[0-9]x'), last.reading);
  t.is(knownWork(last.reading), works[2]);
});

test('a reading is the same after its way to the thread, also that of a refused pattern', (t) => {
  const patterns = ['^exact$', 'a|b|^c', '^(read|list)_[a-z]{1,3}x', '.*', '(', 'a{1000}'];
  for (const pattern of patterns) readPattern(pattern);
  const sent = structuredClone([...withReadings([...patterns, null].map(withPattern))]);
  t.deepEqual(
    sent.map(({ reading }) => reading),
    [...patterns.map(readPattern), undefined],
  );
});

test('a pattern that the gateway has not read, or does not keep, goes without a reading', (t) => {
  const long = 'x'.repeat(MAX_PATTERN_LENGTH + 1);
  readPattern(long);
  t.deepEqual(
    [...withReadings([withPattern('never_read'), withPattern(long)])].map(({ reading }) => reading),
    [undefined, undefined],
  );
});
