import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import test from 'ava';
import fc from 'fast-check';
import { atOnce } from '../../../src/base/turns/slices.ts';
import { compile } from '../../../src/engine/compile/compile.ts';
import {
  createPatternCheck,
  formIn,
  formOf,
  keepPatterns,
  keepReading,
  knownReading,
  MAX_PATTERN_COST,
  readPattern,
} from '../../../src/engine/compile/pattern.ts';
import { parse } from '../../../src/engine/compile/re2.ts';
import { loadPolicyModule } from '../../../src/engine/engine.ts';
import { policyWith } from '../support.ts';

const { checkPattern } = await loadPolicyModule();

const ADMITTED = [
  ...[
    '^get_issue$',
    'read',
    '^(get|list)_',
    '(?i)^kiosk$',
    '[[:alpha:]]+',
    '[^[:space:]]',
    '\\Qa.b\\E',
    '^\\x41\\x{1F600}$',
    '(?P<verb>get)_x',
  ],
  ...[
    'a{1000}',
    'a{,5}',
    'a{',
    '[]a]',
    '[a-]',
    '[^]a]',
    '\\_',
    '\\012',
    '\\0',
    'a|',
    '(?:)',
    '(?i:a)b',
    '(?s-m:a.)',
    'é+',
    'x*?y+?z??',
    '(?m)^a$',
  ],
  'a'.repeat(512),
  '😀'.repeat(512),
];

for (const pattern of ADMITTED) {
  test(`admitted: ${pattern.slice(0, 40)}`, (t) => t.is(checkPattern(pattern), null));
}

const REFUSED: readonly (readonly [pattern: string, message: RegExp])[] = [
  ['', /empty/],
  ['a'.repeat(513), /longer than 512/],
  ['a\0b', /control character/],
  ['a\nb', /control character/],
  ['a\u0085b', /control character/],
  ['a\ud800', /half a surrogate pair/],
  ['(?=a)', /RE2 has no lookahead/],
  ['(?!a)', /RE2 has no lookahead/],
  ['(?<=a)b', /RE2 has no lookahead or lookbehind/],
  ['(?<!a)b', /RE2 has no lookahead or lookbehind/],
  ['(a)\\1', /RE2 has no back-references/],
  ['(?<n>x)', /RE2 only supports/],
  ['(?>a)', /RE2 has no atomic groups/],
  ['(?P<n>a)(?P<n>b)', /named n/],
  ['\\pL', /Unicode classes/],
  ['\\P{Lu}', /Unicode classes/],
  ['[\\p{Greek}]', /Unicode classes/],
  ['\\C', /half a character/],
  ['a\\B', /engines disagree/],
  ['(?i)é', /outside ASCII/],
  ['(?i)\\x{e9}', /outside ASCII/],
  ['(?i)[a-é]', /outside ASCII/],
  ['(?i)[\\xe0-\\xff]', /outside ASCII/],
  ['x(?i:\\Qß\\E)', /outside ASCII/],
  ['a{1001}', /at most 1000/],
  ['((a{10}){10}){11}', /multiply to at most 1000/],
  ['((){40}){40}', /multiply to at most 1000/],
  ['(a{2,40}){30,}', /multiply to at most 1000/],
  ['a{2,1}', /maximum below its minimum/],
  ['[z-a]', /ends before it begins/],
  ['a**', /repeated directly/],
  ['a{2}{3}', /repeated directly/],
  ['*a', /nothing before \*/],
  ['(|+)', /nothing before \+/],
  ['(', /not closed/],
  [')', /no matching \(/],
  ['[a', /not closed/],
  ['[a-\\d]', /no escape \\d/],
  ['[[:foo:]]', /no class/],
  ['\\q', /no escape \\q/],
  ['\\u0041', /no escape \\u/],
  ['\\Z', /no escape \\Z/],
  ['a\\', /ends with a backslash/],
  ['\\x{110000}', /beyond the last/],
  ['\\x{d800}', /surrogate/],
  ['\\Qabc', /has no \\E/],
  ['.{1,1000}', /costs \d+, more than/],
  ['((a.{1,9}){1,9}){1,9}', /costs \d+, more than/],
  ['(.{1,100}-){1,10}', /costs \d+, more than/],
];

for (const [pattern, message] of REFUSED) {
  test(`refused: ${JSON.stringify(pattern).slice(0, 40)}`, (t) => {
    const problem = checkPattern(pattern);
    t.regex(problem ?? 'admitted', message);
    t.regex(problem ?? '', /^[^\n]+\.$/, 'one sentence');
  });
}

test('a pattern that the parser admits and the engine does not is refused', (t) => {
  const check = createPatternCheck(() => false);
  t.regex(check('^a$') ?? '', /RE2 does not accept/);
});

test('admission answers for every text, and the engine accepts each admitted pattern', (t) => {
  const parts = fc.constantFrom(
    ...'a|b|(|)|[|]|{|}|*|+|?|\\|^|$|.|-|,|:|1|2|i|s|P|<|>|=|x|d|W|Q|E|z|A|é|&'.split('|'),
    '|',
    '[:alpha:]',
    '(?i)',
    '(?:',
    '\\b',
    '{2,3}',
  );
  const { checkPattern: fresh } = { checkPattern };
  fc.assert(
    fc.property(fc.array(parts, { minLength: 1, maxLength: 12 }), (texts) => {
      const pattern = texts.join('');
      // The admitted ones have been accepted by the engine within; none of those that this parser reads may have been refused there.
      return typeof readPattern(pattern) === 'string' || fresh(pattern) === null;
    }),
    { numRuns: 20_000 },
  );
  t.pass();
});

test('the cost grows with repetition and with the bytes of what is repeated', (t) => {
  const costOf = (pattern: string): number => {
    const reading = readPattern(pattern);
    return typeof reading === 'string' ? Number.POSITIVE_INFINITY : reading.cost;
  };
  t.true(costOf('a{100}') > 10 * costOf('a{5}'));
  t.true(costOf('.{50}') > 5 * costOf('a{50}'));
  t.true(costOf('[a-z]{50}') <= costOf('[a-zé]{50}'));
  t.is(costOf('^get_issue$'), costOf('^get_issue$'));
  t.true(costOf('^[a-z0-9_-]{1,64}$') < MAX_PATTERN_COST / 4, 'what people write is far from the limit');
});

test('a pattern is parsed once', (t) => {
  t.is(readPattern('^read_[a-z]+$'), readPattern('^read_[a-z]+$'));
  t.not(readPattern('^read_[a-z]+$'), readPattern('^read_[a-y]+$'));
});

test('patterns that are read again are kept, however many others are read', (t) => {
  const [stored, once] = ['^kept_[a-z]+$', '^read_once_[a-z]+$'];
  const [reading, gone] = [readPattern(stored), readPattern(once)];
  const refused = 'x'.repeat(1_000);
  for (let i = 0; i < 250_000; i++) {
    keepReading(`other ${i}`, refused);
    if (i % 10_000 === 0) readPattern(stored);
  }
  t.is(readPattern(stored), reading);
  t.is(knownReading('other 0'), undefined);
  t.not(readPattern(once), gone);
});

test('the patterns of the last two whole sets stay, whatever else is read', (t) => {
  const sets = [0, 1, 2].map((set) => [`^of_set_${set}_[a-z]+$`, `^also_of_set_${set}$`]);
  const first = sets.map((patterns) => patterns.map((pattern) => readPattern(pattern)));
  for (const patterns of sets) {
    atOnce(keepPatterns(patterns));
    // The compilation of another set, such as that of an earlier revision, changes nothing.
    compile([policyWith({ id: 'p', resource_pattern: '^of_another_set$' })], { checkPattern: () => null });
  }
  const refused = 'x'.repeat(1_000);
  for (let i = 0; i < 60_000; i++) keepReading(`beside ${i}`, refused);
  t.is(knownReading('beside 0'), undefined);
  const [oldest, ...kept] = sets.map((patterns) => patterns.map((pattern) => knownReading(pattern)));
  t.deepEqual(oldest, [undefined, undefined]);
  for (const [i, readings] of kept.entries()) for (const [j, reading] of readings.entries()) t.is(reading, first[i + 1]?.[j]);
});

test('the memory of patterns that have been read is limited, whatever is found in them', (t) => {
  // Each has 60 texts, which take about a kilobyte.
  const of = (i: number): string => `^(${Array.from({ length: 60 }, (_, n) => `t${n}x`).join('|')})_${i}$`;
  const reading = readPattern(of(0));
  if (typeof reading !== 'object') return t.fail();
  t.is(formIn(reading).shapes?.length, 60);
  for (let i = 1; i < 40_000; i++) keepReading(of(i), reading);
  t.is(knownReading(of(0)), undefined);
  t.is(knownReading(of(39_000)), reading);
});

test('a pattern that was cut from a file, and its texts, keep no other text in memory', (t) => {
  setFlagsFromString('--expose-gc');
  const collectGarbage = runInNewContext('gc') as () => void;
  const used = (): number => {
    collectGarbage();
    return process.memoryUsage().heapUsed;
  };
  const before = used();
  for (let i = 0; i < 400; i++) {
    const file = `pattern: ^[ab]_from_a_file_${i}[ab]_${'y'.repeat(400)}$ # ${'x'.repeat(100_000)}`;
    readPattern(file.slice(9, file.indexOf(' #')));
  }
  const kept = (used() - before) / (1024 * 1024);
  t.true(kept < 5, `${kept} MiB`);
});

test('a reading returns the form that was found, whatever its texts contain', (t) => {
  for (const pattern of [
    '^a$',
    '^(?s:a.*)$|b$|(?:^c)|e',
    '^$',
    '^(?:)',
    '^a\\x{0}$|^b\\x{ff}$',
    '^[^\\x00-\\x{10FFFF}]$',
    '[^\\s\\S][0-9]+',
    '^[\\x00-\\x1f]b[0-9]+',
    'x[0-9]+y',
    '^ab[0-9]+',
    '[0-9]+cd$',
    '[0-9]+',
  ]) {
    const reading = readPattern(pattern);
    if (typeof reading === 'string') return t.fail(reading);
    t.deepEqual(formIn(structuredClone(reading)), formOf(parse(pattern)), pattern);
  }
});
