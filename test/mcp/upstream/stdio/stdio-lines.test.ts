import test from 'ava';
import fc from 'fast-check';
import { createEventQueue } from '../../../../src/mcp/upstream/events.ts';
import {
  createLineReader,
  lineParts,
  oversizedId,
  printableLine,
  readLine,
  type Skipped,
  toLine,
} from '../../../../src/mcp/upstream/stdio/lines.ts';
import { createStderr, hideSecrets } from '../../../../src/mcp/upstream/stdio/stderr.ts';

test('lines are the same wherever the bytes are split', (t) => {
  const lineText = fc.string({ unit: 'binary' }).map((text) => text.replace(/[\r\n]/g, ''));
  fc.assert(
    fc.property(fc.array(fc.tuple(lineText, fc.boolean())), fc.infiniteStream(fc.integer({ min: 1, max: 7 })), (lines, sizes) => {
      const bytes = Buffer.from(lines.map(([text, crlf]) => `${text}${crlf ? '\r\n' : '\n'}`).join(''));
      const read: string[] = [];
      const reader = createLineReader(
        1_000_000,
        (line) => read.push(line.toString('utf8')),
        () => t.fail(),
      );
      for (let at = 0; at < bytes.length; ) {
        const size = sizes.next().value ?? 1;
        t.true(reader.push(bytes.subarray(at, at + size)));
        at += size;
      }
      t.deepEqual(
        read,
        lines.map(([text]) => Buffer.from(text).toString('utf8')),
      );
    }),
    { numRuns: 200 },
  );
});

test('a line above the limit is skipped, and the next one is read', (t) => {
  const read: string[] = [];
  const skipped: Skipped[] = [];
  const reader = () =>
    createLineReader(
      10,
      (line) => read.push(line.toString()),
      (one) => skipped.push(one),
    );
  t.true(reader().push(Buffer.from(`${'x'.repeat(10)}\n`)));
  t.deepEqual(read.splice(0), ['xxxxxxxxxx']);
  const text = `${'ab'.repeat(50)}\nnext\n${'x'.repeat(11)}\nlast\n`;
  for (const size of [1, 3, 7, 1000]) {
    const slow = reader();
    for (let at = 0; at < text.length; at += size) t.true(slow.push(Buffer.from(text.slice(at, at + size))));
    t.deepEqual(read.splice(0), ['next', 'last'], `${size}`);
    t.deepEqual(
      skipped.splice(0).map(({ bytes, tail }) => `${bytes} ${tail}`),
      [`100 ${'ab'.repeat(50)}`, `11 ${'x'.repeat(11)}`],
    );
  }
});

test('a line that is dropped is skipped to its end, and tells why', (t) => {
  const read: string[] = [];
  const skipped: Skipped[] = [];
  const reader = createLineReader(
    100,
    (line) => read.push(line.toString()),
    (one) => skipped.push(one),
  );
  reader.push(Buffer.from('a\n0123'));
  t.is(reader.kept, 4);
  reader.drop('no room');
  t.is(reader.kept, 0);
  reader.push(Buffer.from('45678'));
  t.is(reader.kept, 0);
  reader.push(Buffer.from('9\nb\nc'));
  t.deepEqual(read, ['a', 'b']);
  t.deepEqual(
    skipped.map(({ bytes, why, head, tail }) => `${bytes} ${why} ${head} ${tail}`),
    ['10 no room 0123 0123456789'],
  );
  t.is(reader.kept, 1);
});

test('a line without an end is reported, with its beginning, and never stored', (t) => {
  const skipped: Skipped[] = [];
  const reader = createLineReader(
    10,
    () => t.fail(),
    (one) => skipped.push(one),
  );
  const taken = Array.from({ length: 17 }, () => reader.push(Buffer.from('x'.repeat(10))));
  t.deepEqual(taken, [...Array(16).fill(true), false]);
  t.deepEqual(
    skipped.map(({ bytes, head }) => `${bytes} ${head}`),
    [`170 ${'x'.repeat(20)}`],
  );
});

test('a large answer is assigned to its request by its first or last members, as SDKs write them', (t) => {
  const idIn = (head: string, tail: string) => oversizedId({ head: Buffer.from(head), tail: Buffer.from(tail) });
  for (const [why, head, tail, id] of [
    ['Python', '{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"xx', 'xx"}]}}', 7],
    ['TypeScript', '{"result":{"content":[{"type":"text","text":"xx', 'xx"}]},"jsonrpc":"2.0","id":7}', 7],
    ['an error', '{ "id" : 7 , "jsonrpc" : "2.0", "error" : {', '}}\r', 7],
    ['a request', '{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{', '}}', null],
    ['a request, its method first', '{"method":"sampling/createMessage","params":{', '},"jsonrpc":"2.0","id":7}', null],
    ['an id within a text', '{"result":{"text":"xx', String.raw`},\"id\":7}"}}`, null],
    ['an id within the result', '{"result":{"items":[', '{"id":7}]}}', null],
    ['an id of the client kind', '{"jsonrpc":"2.0","id":"7","result":{', '}}', null],
    ['no JSON', 'xxxxxxxx', 'xxxx', null],
  ] as const) {
    t.is(idIn(head, tail), id, why);
  }
});

test('every reader sees a message as one line with the same content', (t) => {
  const value = fc.jsonValue();
  fc.assert(
    fc.property(value, fc.constantFrom('\n', '\r\n', '\r', ' '), (content, gap) => {
      const text = `{${gap}"a":${gap}${JSON.stringify(content)}${gap},"b":"x\u2028y\u2029z\u0085"}`;
      const line = toLine(text);
      t.is(line.indexOf('\n'), line.length - 1);
      t.notRegex(line.slice(0, -1), /[\r\n\u0085\u2028\u2029\v\f]/);
      t.deepEqual(JSON.parse(line), JSON.parse(text));
    }),
  );
});

test('a large message becomes one line with the same content, in short parts', (t) => {
  const values = Array.from({ length: 60_000 }, (_, at) => `${at} \u2028\u0085 \u{1f600}`);
  const parts = [...lineParts(JSON.stringify(values, null, 2).replaceAll('\n', '\r\n'))];
  t.true(parts.length > 10);
  const line = parts.join('');
  t.is(line.indexOf('\n'), line.length - 1);
  t.notRegex(line.slice(0, -1), /[\r\n\u0085\u2028\u2029]/);
  t.deepEqual(JSON.parse(line), values);
});

test('garbage and an unreadable answer get different results', (t) => {
  for (const text of [
    'Welcome',
    '',
    '12',
    'null',
    '[]',
    '{}',
    '{"a":1}',
    '{broken',
    '{"jsonrpc":"2.0","method":7}',
    '\ufeff{"jsonrpc":"2.0","id":1,"result":{}}',
  ]) {
    t.is(readLine(text).kind, 'garbage', text);
  }
  const message = readLine(' {"jsonrpc":"2.0","id":1,"result":{}} ');
  t.is(message.kind, 'message');
  for (const text of [
    '{"jsonrpc":"2.0","id":1,"id":1,"result":{}}',
    '{"jsonrpc":"2.0","id":1,"result":{},"Result":{}}',
    '{"jsonrpc":"2.0","id":1,"result":7}',
    `{"jsonrpc":"2.0","id":1,"result":{"a":${'['.repeat(1000)}${']'.repeat(1000)}}}`,
    '{"jsonrpc":"1.0","id":1,"result":{}}',
  ]) {
    const line = readLine(text);
    t.is(line.kind, 'broken', text);
    t.is(line.kind === 'broken' && line.id, 1);
  }
  t.is(readLine('{"jsonrpc":"2.0","id":1,"method":"a","params":[]}').kind, 'garbage', 'a request is no answer');
  const secret = readLine('{"jsonrpc":"2.0","id":1,"result":{"s3cret \\" more":1,"s3cret \\" more":2}}');
  t.regex(secret.kind === 'broken' ? secret.reason : '', /^a second member "\.\.\." at/, 'a process may repeat its credential');
});

test('printed output can neither move a cursor nor imitate a log line', (t) => {
  t.is(printableLine('a\u001b[31mb\r\n\u0007\u2028\u202ec\td'), 'a\\u{1b}[31mb\\u{d}\\u{a}\\u{7}\\u{2028}\\u{202e}c d');
});

test('secrets are removed, also line by line, longest first', (t) => {
  const { hide } = hideSecrets(['topsecret', 'topsecret-and-more', 'first line\nsecond line', 'abc', '']);
  t.is(hide('x topsecret-and-more y topsecret z'), 'x [redacted] y [redacted] z');
  t.is(hide('second line'), '[redacted]');
  t.is(hide('abc'), 'abc', 'too short to be told from other text');
  for (const user of ['', 'a:', 'ab:', 'abc:']) {
    const shown = hide(`Basic ${Buffer.from(`${user}topsecret!`).toString('base64')}`);
    t.regex(shown, /\[redacted\]/, user);
    t.false(Buffer.from(shown.replace('[redacted]', ''), 'base64').toString('latin1').includes('secret'), user);
  }
  t.is(hideSecrets(['p w/"x']).hide('p%20w%2F%22x p w/\\"x'), '[redacted] [redacted]');
  t.is(hideSecrets(['p w/"x']).hide('p%20w%2f%22x'), '[redacted]');
  t.is(hideSecrets(['a/b c=!~']).hide('a/b%20c%3D%21~ a%2Fb+c%3D%21~'), '[redacted] [redacted]');
  t.is(hideSecrets(["p (w)!'*~"]).hide('p%20%28w%29%21%27%2A~ p+%28w%29%21%27*%7E'), '[redacted] [redacted]');
  t.is(hideSecrets(['top/z']).hide('746f702f7a 746F702F7A'), '[redacted] [redacted]');
});

test('short lines of a secret stay, and too many or too long secrets hide everything: all requests would wait for the search', (t) => {
  const { hide } = hideSecrets(['the\nline\nof a key\n']);
  t.is(hide('the line the\\nline\\nof a key of a key'), 'the [redacted] [redacted] [redacted]');
  t.is(hide(Buffer.from('the\nline\nof a key').toString('base64')), '[redacted]k=', 'without the newline at its end');
  const lines = (length: number): string => Array.from({ length }, (_, i) => `line ${1_000 + i}`).join('\n');
  t.is(hideSecrets([lines(60)]).hide('x line 1007 y'), 'x [redacted] y');
  const encoded = Buffer.from('user:line 1007').toString('base64');
  t.false(
    hideSecrets([lines(60)])
      .hide(encoded)
      .includes(encoded.slice(-8)),
    'a line may be used alone',
  );
  for (const secrets of [[lines(65)], [lines(60), lines(90).slice(-500)], ['k'.repeat(10_000), '\u00fc'.repeat(4_000)]]) {
    const all = hideSecrets(secrets);
    t.is(all.hide('any text'), '[redacted]');
    const stderr = createStderr(all, () => {});
    for (let i = 0; i < 100; i++) stderr.push(Buffer.alloc(1_000, 'k'));
    stderr.push(Buffer.from('\nlast words'));
    stderr.end();
    t.regex(stderr.tail(), /^(?:\[redacted\]\n)+$/);
  }
  // Secrets that are parts of what replaces them.
  t.is(hideSecrets(['reda', 'acte', 'dact', '[red']).hide('reda acte'), '[redacted] [redacted]');
});

test('long secrets that repeat themselves are found as others are', (t) => {
  const pick = (seed: number): string => ((seed * 2_654_435_761) % 2 ** 32 < 2 ** 31 ? 'a' : 'b');
  for (let seed = 0; seed < 200; seed++) {
    const repeated = Array.from({ length: 1 + (seed % 7) }, (_, i) => pick(seed + i))
      .join('')
      .repeat(200);
    const secret = `${repeated.slice(0, 70)}${seed % 2 === 0 ? '' : 'c'}${repeated.slice(seed % 5, 50)}`;
    const text = `${repeated}${secret}${repeated}${secret}${secret}`;
    t.is(hideSecrets([secret]).hide(text), text.replaceAll(secret, '[redacted]'), secret);
  }
});

test('no part of a secret shows, wherever chunks of a line without end are split', (t) => {
  const secrets = ['topsecret-1', 'top', 'K'.repeat(5_000), `-----BEGIN-----\n${'m'.repeat(64)}`];
  for (let pad = 4_080; pad < 4_110; pad++) {
    for (const secret of ['topsecret-1', `${'K'.repeat(5_000)}`]) {
      for (const split of [1, 5, secret.length - 1]) {
        const logged: string[] = [];
        const stderr = createStderr(hideSecrets(secrets), (line) => logged.push(line()));
        const text = `${'.'.repeat(pad)}${secret}${'.'.repeat(6_000)}`;
        stderr.push(Buffer.from(text.slice(0, pad + split)));
        stderr.push(Buffer.from(text.slice(pad + split)));
        stderr.end();
        t.regex(`${stderr.tail()}${logged.join('\n')}\n`, /^(?:[.\n]|\[r?e?d?a?c?t?e?d?(?:\]|\n))*$/, `${pad} ${split}`);
      }
    }
  }
  const { cut, hide } = hideSecrets(secrets);
  const printed = `TOKEN=${'K'.repeat(5_000)} and more`;
  t.is(hide(printed.slice(0, cut(printed, 1_000))), 'TOKEN=');
});

test('a line without end is passed on in parts even if it repeats a secret', (t) => {
  let lines = 0;
  const stderr = createStderr(hideSecrets(['aaaaaaaa', 'aaaa']), () => {
    lines++;
  });
  const chunk = Buffer.alloc(64 * 1024, 'a');
  for (let i = 0; i < 100; i++) stderr.push(chunk);
  t.is(lines, 100);
});

function watchedQueue() {
  const seen = { unread: 0, closed: 0 };
  const queue = createEventQueue('a target', {
    moved(delta) {
      seen.unread += delta;
    },
    closed() {
      seen.closed++;
    },
  });
  return { queue, seen };
}

test('the events of a queue arrive in order, whether the reader or the writer comes first', async (t) => {
  const { queue, seen } = watchedQueue();
  const iterator = queue.events[Symbol.asyncIterator]();
  queue.push('a');
  queue.push('bc');
  t.is(seen.unread, 3 + 2 * 128, 'each event takes memory beside its data');
  const first = await iterator.next();
  t.deepEqual(
    (first.value as { data: string }[]).map(({ data }) => data),
    ['a', 'bc'],
  );
  t.is(seen.unread, 0);
  const second = iterator.next();
  queue.push('d');
  t.is(seen.unread, 0, 'somebody waits for it');
  t.is((await second).value?.[0]?.data, 'd');
  queue.push('e');
  queue.end();
  queue.push('too late');
  t.is((await iterator.next()).value?.length, 1);
  t.is(seen.closed, 0);
  t.true((await iterator.next()).done);
  t.is(seen.closed, 1);
  t.is(queue.pending, 0);
});

test('a queue that fails or has no reader gives no more events and counts nothing', async (t) => {
  for (const way of ['fail', 'close', 'fail after end', 'fail a waiting reader'] as const) {
    const { queue, seen } = watchedQueue();
    const iterator = queue.events[Symbol.asyncIterator]();
    const waiting = way === 'fail a waiting reader' ? iterator.next() : null;
    if (waiting === null) queue.push('a');
    if (way === 'fail after end') queue.end();
    if (way === 'close') queue.close();
    else queue.fail(new Error('broke off'));
    t.is(seen.unread, 0, way);
    t.is(seen.closed, 1, way);
    if (way === 'close') t.true((await iterator.next()).done);
    else await t.throwsAsync(waiting ?? iterator.next(), { message: 'broke off' }, way);
    t.true((await iterator.next()).done, way);
    queue.push('b');
    queue.fail(new Error('again'));
    t.is(seen.unread, 0, way);
    t.is(seen.closed, 1, way);
  }
});
