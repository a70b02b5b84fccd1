import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import test from 'ava';
import fc from 'fast-check';
import { createSseReader, eventParts, formatEvent, type SseEvent, SseFault } from '../../src/protocol/sse.ts';

const event = (data: string, id?: string, retry?: number): SseEvent => ({ data, id, retry });
const read = (text: string): SseEvent[] => createSseReader(1000).push(Buffer.from(text));

test('lines end in CR, LF or CRLF', (t) => {
  for (const end of ['\n', '\r', '\r\n'])
    t.deepEqual(read(`id: 1${end}data: a${end}${end}data: b${end}${end}`), [event('a', '1'), event('b')]);
});

test('several data lines make one text, and a field needs neither a colon nor a space', (t) => {
  t.deepEqual(read('data: a\ndata:b\ndata\n\n'), [event('a\nb\n')]);
  t.deepEqual(read('data:  a\n\n'), [event(' a')]);
});

test('comments and unknown fields are ignored', (t) => {
  t.deepEqual(read(': hello\n\nfoo: bar\ndata: a\nDATA: b\n\n'), [event('a')]);
  t.deepEqual(read(':\n\n:\n\n'), []);
});

test('an event with only an id or a retry is reported, and a bad id or retry is not', (t) => {
  t.deepEqual(read('id: 5\ndata:\n\n'), [event('', '5')]);
  t.deepEqual(read('retry: 100\n\n'), [event('', undefined, 100)]);
  t.deepEqual(read('retry: soon\nid: a\0b\ndata: x\n\n'), [event('x')]);
});

test('a long id or name of an event does not stay in memory', (t) => {
  const [only] = createSseReader(100_000).push(
    Buffer.from(`event: ${'n'.repeat(10_000)}\nid: 1\nid: ${'i'.repeat(10_000)}\ndata: a\n\n`),
  );
  t.deepEqual(only, { ...event('a'), event: 'unknown' });
  t.deepEqual(createSseReader(100_000).push(Buffer.from(`id: ${'i'.repeat(2_048)}\n\n`)), [event('', 'i'.repeat(2_048))]);
});

test('an incomplete event is not reported', (t) => t.deepEqual(read('data: a\n\ndata: b\n'), [event('a')]));

test('an event of very many lines has them all', (t) => {
  for (const count of [1_023, 1_024, 1_025, 5_000]) {
    const lines = Array.from({ length: count }, (_, at) => String(at));
    const written = `${lines.map((line) => `data: ${line}\n`).join('')}\ndata: next\n\n`;
    t.deepEqual(createSseReader(100_000).push(Buffer.from(written)), [event(lines.join('\n')), event('next')]);
  }
});

test('the events are the same wherever the bytes are split', (t) => {
  const stream = fc
    .array(fc.tuple(fc.string({ unit: 'grapheme' }), fc.constantFrom('\n', '\r', '\r\n')))
    .map((parts) => parts.map(([text, end]) => `data: ${text.replace(/[\r\n]/g, '')}${end}${end}`).join(''));
  fc.assert(
    fc.property(stream, fc.array(fc.nat({ max: 400 })), (text, cuts) => {
      const bytes = Buffer.from(text);
      const whole = createSseReader(10_000).push(bytes);
      const reader = createSseReader(10_000);
      const places = [0, ...cuts.filter((cut) => cut < bytes.length).sort((a, b) => a - b), bytes.length];
      const parts = places.slice(1).flatMap((to, index) => reader.push(bytes.subarray(places[index], to)));
      return JSON.stringify(parts) === JSON.stringify(whole);
    }),
  );
  t.is(read('data: é\n\n')[0]?.data, 'é');
});

test('too long lines, too long events and bytes that are not UTF-8 are faults', (t) => {
  t.throws(() => createSseReader(100).push(Buffer.from('x'.repeat(101))), { instanceOf: SseFault });
  t.throws(() => createSseReader(100).push(Buffer.from('data: aaaaaaaaa\n'.repeat(20))), { instanceOf: SseFault });
  t.throws(() => createSseReader(100).push(Buffer.from([0x64, 0xff, 0xfe])), { instanceOf: SseFault });
});

test('a written message is read as one event with the same JSON, whatever it holds', (t) => {
  fc.assert(
    fc.property(fc.anything({ maxDepth: 2 }), (value) => {
      const text = JSON.stringify({ value, evil: '\n\ndata: {}\r\u0085\u2028\u2029', id: 1 }, null, 2);
      const written = formatEvent({ data: text, id: 'x' });
      const inParts = formatEvent({ data: [text.slice(0, 9), text.slice(9)], id: 'x' });
      const inShortParts = [...eventParts({ data: text, id: 'x' }, 10)];
      const [only, ...rest] = read(written);
      return (
        written === inParts &&
        // A line end of two characters can be in two parts.
        inShortParts.join('').replace(/ +/g, ' ') === written.replace(/ +/g, ' ') &&
        rest.length === 0 &&
        // Readers that use `splitlines` of Python must see one line, too.
        !/[\u0085\u2028\u2029]/.test(only?.data ?? '') &&
        only?.id === 'x' &&
        JSON.stringify(JSON.parse(only.data)) === JSON.stringify(JSON.parse(text))
      );
    }),
  );
  t.is(formatEvent({ data: '', id: '1', retry: 5 }), 'id: 1\nretry: 5\ndata: \n\n');
});

test('a line that arrives in single characters is complete, and its waiting length is known', (t) => {
  const reader = createSseReader(1_000_000);
  const text = `data: ${'ä😀x'.repeat(5_000)}`;
  for (const byte of Buffer.from(text)) reader.push(Buffer.of(byte));
  t.true(reader.pending >= text.length && reader.pending < text.length + 64 * 1024);
  t.deepEqual(
    reader.push(Buffer.from('\n\n')).map(({ data }) => data),
    [text.slice('data: '.length)],
  );
  t.is(reader.pending, 0);
});

test('a short event does not keep the chunk in which it came, nor does the beginning of one', (t) => {
  setFlagsFromString('--expose-gc');
  const collectGarbage = runInNewContext('gc') as () => void;
  const held = (): number => {
    collectGarbage();
    return process.memoryUsage().heapUsed;
  };
  const kept: unknown[] = [];
  const before = held();
  for (let i = 0; i < 200; i++) {
    const reader = createSseReader(1_000);
    const chunk = `:${`${i}`.padEnd(60_000, '.')}\ndata: {"a message of a hundred characters": ${i}}\nid: 0123456789012345\n\ndata: the beginning of another`;
    kept.push(reader, reader.push(Buffer.from(chunk)));
  }
  t.is(kept.length, 400);
  const bytes = held() - before;
  t.true(bytes < 4_000_000, `${bytes} bytes`);
});
