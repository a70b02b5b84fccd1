import { createServer } from 'node:http';
import test from 'ava';
import { type Head, headOf } from '../../src/http/head.ts';
import { connected } from './connected.ts';

const HEADERS = ['Host: a', 'Authorization: Bearer one', 'Content-Length: 2'];

const requestWith = (headers: readonly string[], body = '{}'): string =>
  `POST /mcp/a HTTP/1.1\r\n${headers.map((header) => `${header}\r\n`).join('')}\r\n${body}`;

test('requests of a connection have the same head only while all of their headers are the same', async (t) => {
  const heads: Head[] = [];
  const server = createServer((req, res) => {
    const head = headOf(req);
    t.is(headOf(req), head);
    heads.push(head);
    req.resume().on('end', () => res.end());
  });
  const socket = await connected(t, server);
  const [host = '', token = '', length = ''] = HEADERS;
  /** Whether each request has the head of the one before it. */
  const requests: readonly (readonly [isSame: boolean, headers: readonly string[], body?: string])[] = [
    [false, HEADERS],
    [true, HEADERS],
    [true, [host, token, 'Content-Length: 3'], '{ }'],
    [false, [host, 'Authorization: Bearer two', length]],
    [false, [host, 'authorization: Bearer two', length]],
    [false, [host, 'Authorization: Bearer two', token, length]],
    [false, [host, token, length, 'Origin: https://evil.example']],
    [false, [host, token, length, 'Origin: https://evil.example.com']],
    [false, [token, host, length]],
    [false, HEADERS],
    [true, HEADERS],
  ];
  for (const [isSame, headers, body] of requests) {
    const before = heads.at(-1);
    const answered = new Promise((resolve) => socket.once('data', resolve));
    socket.write(requestWith(headers, body));
    await answered;
    const head = heads.at(-1);
    t.is(head === before, isSame, headers.join());
    t.is(
      head?.raw.find((_, at, raw) => raw[at - 1]?.toLowerCase() === 'authorization'),
      headers.join().match(/Bearer \w+/)?.[0],
    );
  }
  t.is(heads.length, requests.length);
});

test('two connections with the same headers have different heads', async (t) => {
  const heads = new Set<Head>();
  const server = createServer((req, res) => {
    heads.add(headOf(req));
    req.resume().on('end', () => res.end());
  });
  const socket = await connected(t, server);
  socket.write(requestWith(HEADERS) + requestWith(HEADERS));
  const answers = new Promise<void>((resolve) => {
    let text = '';
    socket.on('data', (chunk) => {
      text += String(chunk);
      if (text.split('HTTP/1.1 200').length === 3) resolve();
    });
  });
  await answers;
  const [head] = heads;
  t.is(heads.size, 1);
  const other = await connected(
    t,
    createServer((req, res) => res.end(String(headOf(req) === head))),
  );
  const answer = new Promise((resolve) => other.once('data', resolve));
  other.write(requestWith(HEADERS));
  t.regex(String(await answer), /false$/m);
});
