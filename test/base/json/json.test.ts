import test from 'ava';
import fc from 'fast-check';
import { type JsonReading, readJson, readJsonText } from '../../../src/base/json/json.ts';

const read = (text: string, rules = {}): JsonReading => readJson(Buffer.from(text, 'utf8'), rules);
const reason = (reading: JsonReading): string => (reading.ok ? `accepted ${reading.text.slice(0, 60)}` : reading.reason);

test('the reader accepts what JSON.parse accepts if it has one reading, and returns the same value', (t) => {
  fc.assert(
    fc.property(fc.json({ noUnicodeString: false }), (text) => {
      const reading = read(text);
      // Generated texts may contain something that the reader refuses on purpose. These refusals are listed.
      if (!reading.ok) return /__proto__|round trip|surrogate/.test(reading.reason);
      return JSON.stringify(reading.value) === JSON.stringify(JSON.parse(text));
    }),
    { numRuns: 300 },
  );
  t.true(read(' {"a" : [1, -2.5e3, true, null, "x\\u00e9"]}\n').ok);
});

test('the reader refuses everything that JSON.parse refuses', (t) => {
  const mutated = fc
    .tuple(fc.json(), fc.nat(), fc.constantFrom('', ',', '"', '}', '\\', '\u0001', '0', 'tru'))
    .map(([text, at, junk]) => {
      const cut = at % (text.length + 1);
      return text.slice(0, cut) + junk + text.slice(cut + 1);
    });
  fc.assert(
    fc.property(mutated, (text) => {
      let parses = true;
      try {
        JSON.parse(text);
      } catch {
        parses = false;
      }
      return parses || !readJsonText(text).ok;
    }),
    { numRuns: 500 },
  );
  t.pass();
});

for (const [what, text, expected] of [
  ['a repeated name', '{"name":"ok","name":"secret"}', /second member "name"/],
  ['a name repeated by an escape', '{"name":"ok","\\u006eame":"secret"}', /second member "name"/],
  ['a repeated name among many', `{${Array.from({ length: 20 }, (_, i) => `"k${i}":0`).join()},"k3":1}`, /second member "k3"/],
  ['__proto__', '{"a":{"__proto__":{}}}', /__proto__/],
  ['__proto__ by an escape', '{"\\u005f_proto__":1}', /__proto__/],
  ['trailing text', '{} {}', /after the end/],
  ['a lone surrogate', '{"a":"\\ud800"}', /lone surrogate/],
  ['surrogates in the wrong order', '{"a":"\\udc00\\ud800"}', /lone surrogate/],
  ['a byte order mark', '\ufeff{}', /byte order mark/],
  ['a number that becomes infinite', '[1e400]', /round trip/],
  ['a number that becomes zero', '[1e-400]', /round trip/],
  ['an integer that changes', '[9007199254740993]', /round trip/],
  ['2^60', '[1152921504606846976]', /round trip/],
  ['a leading zero', '[01]', /comma|unexpected/],
  ['a control character', '["\u0001"]', /control character/],
  ['a raw line break', '["a\nb"]', /control character/],
  ['a single quote', "{'a':1}", /name is missing/],
  ['a trailing comma', '[1,]', /unexpected character/],
  ['a comment', '/**/{}', /unexpected character/],
  ['NaN', '[NaN]', /unexpected character/],
  ['nothing', '', /too early/],
] as const) {
  test(`refuses ${what}`, (t) => t.regex(reason(read(text)), expected));
}

test('the path of a repeated member is reported, and other faults have no path', (t) => {
  const repeated = (text: string) => {
    const reading = read(text);
    return reading.ok ? 'accepted' : reading.repeated;
  };
  t.is(repeated('{"a":1,"a":2}'), 'a');
  t.is(repeated('{"a":{"b":[[0],{"c":{"d":1}},{"e":1,"f":{"g":1},"e":2}]}}'), 'a.b.2.e');
  t.is(repeated('[{"x":1},{"x":1,"x":1}]'), '1.x');
  t.is(repeated(`{"${'k'.repeat(100)}":1,"${'k'.repeat(100)}":1}`), 'k'.repeat(64));
  t.is(repeated('{"a":}'), null);
  t.is(repeated('{"__proto__":1}'), null);
});

test('the reader refuses bytes that are not UTF-8', (t) => {
  t.regex(reason(readJson(Buffer.from([0x22, 0xc3, 0x28, 0x22]))), /UTF-8/);
  t.regex(reason(readJson(Buffer.from([0x22, 0xed, 0xa0, 0x80, 0x22]))), /UTF-8/);
});

test('the reader accepts numbers that a double holds, however they are written', (t) => {
  for (const text of ['0', '-0', '1.0', '1.50', '1e20', '1E+2', '0.1', '9007199254740991', '123456789012345678e-17', '5e-324']) {
    t.true(read(text).ok === (text !== '123456789012345678e-17'), text);
  }
});

test('the reader accepts any number and surrogate if exactness is not required', (t) => {
  t.true(read('[12345678901234567890, "\\ud800", 1e400]', { exact: false }).ok);
  t.false(read('{"a":1,"a":2}', { exact: false }).ok);
});

test('depth and number of values are bounded, without a deep stack', (t) => {
  t.true(read('['.repeat(64) + ']'.repeat(64)).ok);
  t.regex(reason(read('['.repeat(65) + ']'.repeat(65))), /deeper than 64/);
  t.regex(reason(read('['.repeat(200_000))), /deeper than 64/);
  t.regex(reason(read(`[${'0,'.repeat(200_000)}0]`)), /more than 200000 values/);
});

test('spans give the positions of values, down to the given depth', (t) => {
  const text = ' {"a": {"b": [1, {"c":2}] }, "d":"x"} ';
  const reading = readJsonText(text, { spanDepth: 2 });
  if (!reading.ok) return t.fail(reading.reason);
  const at = (span: { start: number; end: number } | undefined) => text.slice(span?.start, span?.end);
  const a = reading.span.members?.get('a');
  t.is(at(reading.span), '{"a": {"b": [1, {"c":2}] }, "d":"x"}');
  t.is(at(a), '{"b": [1, {"c":2}] }');
  t.is(at(a?.members?.get('b')), '[1, {"c":2}]');
  t.is(a?.members?.get('b')?.items ?? null, null);
  t.is(at(reading.span.members?.get('d')), '"x"');
});

test('a refusal repeats only a member name from the text', (t) => {
  const reading = read('{"password":"hunter2","password":"hunter3"}');
  t.notRegex(reason(reading), /hunter/);
});
