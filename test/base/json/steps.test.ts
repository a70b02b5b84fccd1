import test from 'ava';
import fc from 'fast-check';
import { isUnread, type Selection, UnreadFault } from '../../../src/base/json/built.ts';
import { type JsonReading, type JsonRules, type JsonSpan, readJsonText } from '../../../src/base/json/json.ts';
import { hashOf } from '../../../src/base/json/names.ts';
import { readInSteps } from '../../../src/base/json/steps.ts';

const ALL: Selection = {
  lists: new Set(['content', 'many']),
  skipped: new Set(),
  members: Infinity,
  itemValues: Infinity,
  builtValues: Infinity,
};

/** Reads with a cut after every so many characters. */
function inSteps(text: string, rules: Partial<JsonRules>, width: number, selection = ALL): JsonReading {
  const steps = readInSteps(text, rules, selection);
  for (let until = width; !steps.advance(until); until += width) {
    if (until > text.length + width) throw new Error('no verdict at the end of the text');
  }
  return steps.reading;
}

test('a text of a target may have some lone surrogates, and not very many', (t) => {
  const read = (text: string) => inSteps(JSON.stringify({ a: text }), { exact: false }, 1_000);
  t.true(read('\ud800'.repeat(10_000)).ok);
  t.true(read('\udc00'.repeat(5_000) + '\ud800'.repeat(5_000)).ok);
  for (const many of ['\ud800'.repeat(10_001), `${'\ud800x'.repeat(10_001)}`]) {
    const reading = read(many);
    t.regex(reading.ok ? '' : reading.reason, /more than 10000 lone surrogates/);
  }
  const pairs = `{"a":"${'\\ud83d\\ude00'.repeat(20_000)}"}`;
  t.true(inSteps(pairs, { exact: false }, 1_000).ok);
});

const TOKENS = [
  ...[
    '{',
    '}',
    '[',
    ']',
    ',',
    ':',
    '"a"',
    '"b"',
    '"\\u0061"',
    '"__proto__"',
    '"\\u005f_proto__"',
    '"\\ud800"',
    '"\\ud83d\\ude00"',
  ],
  ...[
    '"é"',
    '"\\n"',
    '"\\x"',
    '"\u0001"',
    '"open',
    '0',
    '-0',
    '01',
    '1e400',
    '12345678901234567',
    '1.0',
    '-',
    'true',
    'nul',
    ' ',
  ],
  ...['\n', '\ufeff', '"', '\\'],
];
/** Texts that are JSON, nearly JSON, or anything. */
const texts = fc.oneof(
  fc.json({ noUnicodeString: false, maxDepth: 6 }),
  fc.tuple(fc.json({ maxDepth: 6 }), fc.nat(), fc.constantFrom(...TOKENS)).map(([text, at, token]) => {
    const cut = at % (text.length + 1);
    return text.slice(0, cut) + token + text.slice(cut + 1);
  }),
  fc.array(fc.constantFrom(...TOKENS), { maxLength: 30 }).map((tokens) => tokens.join('')),
  // Long strings, in which something else begins after any number of plain characters.
  fc
    .array(
      fc.oneof(
        fc.nat(80).map((count) => 'a'.repeat(count)),
        fc.constantFrom(...TOKENS, '\\n', '\u0000', '\u001f', '\ud83d'),
      ),
      {
        maxLength: 6,
      },
    )
    .map((parts) => `{"long":"${parts.join('')}","${parts.join('')}":1}`),
  fc
    .array(fc.constantFrom('a', 'b', 'c', '\\u0061', 'd"', 'xyz'), { maxLength: 12 })
    .map((names) => `{"o":{${names.map((name) => `"${name}":[{}]`).join()}}}`),
);
const rules = fc.record({
  exact: fc.boolean(),
  spanDepth: fc.nat(6),
  maxDepth: fc.constantFrom(1, 3, 64),
  maxValues: fc.constantFrom(1, 5, 1_000),
});

test('a text that is read in steps has the same verdict, value and spans as one that is read at once, wherever it is cut', (t) => {
  fc.assert(
    fc.property(texts, rules, fc.constantFrom(1, 2, 3, 7, 1_000), (text, some, width) => {
      t.deepEqual(inSteps(text, some, width), readJsonText(text, some));
    }),
    { numRuns: 5_000 },
  );
});

test('repeated names are found among few and many names, with escapes and in nested objects', (t) => {
  const named = (count: number, last: string) =>
    `{"outer":{${Array.from({ length: count }, (_, i) => `"${i % 7 === 0 ? '\\u006b' : 'k'}${i}":{"k${i}":0}`).join()},"${last}":0},"outer2":0}`;
  for (const count of [7, 8, 9, 63, 64, 65, 130, 5_000, 40_000]) {
    for (const last of ['fresh', 'k0', `k${count - 1}`, '\\u006b1', 'outer']) {
      const text = named(count, last);
      const expected = readJsonText(text);
      const reading = inSteps(text, {}, 1_000);
      t.is(reading.ok, expected.ok, `${count} ${last}`);
      if (!reading.ok && !expected.ok) t.deepEqual(reading, expected);
    }
  }
  // Read one object after the other: the second must not find names that the first has left behind.
  const list = `[${Array.from({ length: 5 }, () => named(200, 'fresh')).join()}]`;
  t.true(inSteps(list, {}, 100).ok);
});

/** Returns the spans of the values that were built. */
function reached(span: JsonSpan, value: unknown): unknown {
  if (isUnread(value as never)) return { ...span, members: null, items: null };
  const members =
    span.members && [...span.members].map(([name, at]) => [name, reached(at, (value as Record<string, unknown>)[name])]);
  return { ...span, members, items: span.items?.map((at, index) => reached(at, (value as unknown[])[index])) ?? null };
}

/** Compares a value with the part of it that was built. */
function differs(built: unknown, whole: unknown): boolean {
  if (isUnread(built as never)) return false;
  if (typeof built !== 'object' || built === null) return !Object.is(built, whole);
  if (Array.isArray(built) !== Array.isArray(whole) || whole === null) return true;
  const names = Object.keys(built);
  if (names.join() !== Object.keys(whole as object).join()) return true;
  return names.some((name) => differs((built as Record<string, unknown>)[name], (whole as Record<string, unknown>)[name]));
}

test('values that are not built change neither the verdict nor the other values', (t) => {
  const selections = fc.record({
    lists: fc.subarray(['a', 'b', 'o']).map((names) => new Set(names)),
    skipped: fc.subarray(['a', 'b', 'o', 'result']).map((names) => new Set(names)),
    members: fc.constant(Infinity),
    itemValues: fc.constantFrom(0, 1, 2, 5),
    builtValues: fc.constant(Infinity),
  });
  fc.assert(
    fc.property(texts, rules, selections, fc.constantFrom(1, 1_000), (text, some, selection, width) => {
      const whole = readJsonText(text, some);
      const partly = inSteps(text, some, width, selection);
      if (!whole.ok || !partly.ok) {
        t.deepEqual(partly, whole);
        return;
      }
      t.false(differs(partly.value, whole.value), text);
      t.deepEqual(reached(partly.span, partly.value), reached(whole.span, partly.value));
      t.is(partly.values, whole.values);
    }),
    { numRuns: 3_000 },
  );
});

test('a value that was not built cannot be mistaken for an empty one', (t) => {
  const text = '{"result":{"content":[{"type":"text"}],"big":{"x":[1,2]},"many":[[1,2,3,4,5,6]]}}';
  const reading = inSteps(text, {}, 1_000, {
    lists: new Set(['content', 'many']),
    skipped: new Set(['big']),
    members: Infinity,
    itemValues: 5,
    builtValues: 100,
  });
  t.true(reading.ok);
  if (!reading.ok) return;
  const { result } = reading.value as unknown as { result: { content: unknown; big: object; many: unknown[][] } };
  t.deepEqual(result.content, [{ type: 'text' }]);
  const [items] = result.many;
  for (const value of [result.big, items as object]) {
    t.true(isUnread(value as never));
    t.throws(() => Object.keys(value), { instanceOf: UnreadFault });
    t.throws(() => 'x' in value, { instanceOf: UnreadFault });
    t.throws(() => (value as { x?: unknown }).x, { instanceOf: UnreadFault });
    t.throws(() => Object.hasOwn(value, 'x'), { instanceOf: UnreadFault });
    t.throws(() => JSON.stringify({ value }), { instanceOf: UnreadFault });
    t.throws(() => ({ ...value }), { instanceOf: UnreadFault });
  }
  t.true(Array.isArray(items));
});

test('a text with too many values that must be built is refused', (t) => {
  const text = `{"result":{"content":[${'0,'.repeat(200)}0]}}`;
  const reading = inSteps(text, {}, 1_000, { ...ALL, builtValues: 100 });
  t.false(reading.ok);
  t.regex(reading.ok ? '' : reading.reason, /more than 100 values that the gateway must inspect/);
});

test('an object outside of items that has too many members is refused', (t) => {
  const members = Array.from({ length: 101 }, (_, i) => `"m${i}":{"a":1}`).join();
  const reading = (text: string): JsonReading => inSteps(text, {}, 1_000, { ...ALL, members: 100 });
  const refused = reading(`{"result":{${members}}}`);
  t.regex(refused.ok ? '' : refused.reason, /more than 100 members of one object/);
  t.true(reading(`{"result":{"structured":{${members}}}}`).ok);
  t.true(reading(`{"result":{${members.slice(0, members.lastIndexOf(','))}}}`).ok);
});

test('numbers and names that are too long are refused by both readers, and the longest are read', (t) => {
  for (const [text, reason] of [
    ['1'.repeat(4_096), null],
    ['1'.repeat(4_097), /^a number of more than 4096 characters at offset 1$/],
    [`-0.${'1'.repeat(20_000_000)}`, /^a number of more than 4096 characters at offset 1$/],
    [`{"${'n'.repeat(65_536)}":0}`, null],
    [`{"${'n'.repeat(65_537)}":0}`, /^a member name of more than 65536 characters/],
    [`{"${'\\u006e'.repeat(20_000)}":0}`, /^a member name of more than 65536 characters/],
  ] as const) {
    const readings = [readJsonText(`[${text}]`, { exact: false }), inSteps(`[${text}]`, { exact: false }, 8_192)];
    t.deepEqual(readings[0], readings[1]);
    for (const reading of readings) {
      if (reason === null) t.true(reading.ok);
      else t.regex(reading.ok ? '' : reading.reason, reason);
    }
  }
});

test.serial('a long string with escapes is decoded in parts', (t) => {
  const contents = [
    '\\u0061'.repeat(300_000),
    `${'a'.repeat(1_000_000)}\\n${'b'.repeat(1_000_000)}`,
    '\\ud83d\\ude00'.repeat(100_000),
    `x${'\\ud83d\\ude00y\\\\'.repeat(70_000)}`,
    '\\n',
  ];
  const text = JSON.stringify({ before: '\n' }).replace('}', `,${contents.map((content, i) => `"c${i}":"${content}"`).join()}}`);
  const expected = JSON.parse(text) as unknown;
  for (const [width, exact] of [
    [8_192, true],
    [8_191, false],
  ] as const) {
    const { parse } = JSON;
    let longest = 0;
    JSON.parse = (part: string) => {
      longest = Math.max(longest, part.length);
      return parse(part) as unknown;
    };
    const reading = inSteps(text, { exact }, width);
    JSON.parse = parse;
    t.deepEqual(reading.ok ? reading.value : null, expected as never);
    t.true(longest < 64 * 1024, `${longest} characters were decoded at once`);
  }
});

test('names that consist only of characters with code 0 do not collide', (t) => {
  const hashes = Array.from({ length: 1_000 }, (_, length) => hashOf('\0'.repeat(length)));
  t.is(new Set(hashes).size, hashes.length);
});
