/** No text of a caller may block the event loop. Quadratic time here once stopped the gateway for hours with one request. */
import test from 'ava';
import { readJsonText } from '../../src/base/json/json.ts';
import { readHeaders } from '../../src/protocol/headers.ts';
import { isCanonicalUri } from '../../src/protocol/uri.ts';
import { sendRaw, startRestOnSqlite } from '../support/rest.ts';

/** Milliseconds of processor time, so that other work on the machine does not count. */
function milliseconds(work: () => unknown): number {
  const began = process.cpuUsage();
  work();
  return spent(began);
}

const spent = (began: NodeJS.CpuUsage): number => process.cpuUsage(began).user / 1_000;

const LIMIT_MS = 500;

test.serial('a number with a long run of zeros is read in linear time', (t) => {
  t.true(milliseconds(() => readJsonText(`1.${'0'.repeat(1_000_000)}1`)) < LIMIT_MS);
});

test.serial('a header with many blanks within is read in linear time', (t) => {
  const raw = Array.from({ length: 50 }, (_, i) => [`x-${i}`, `a${' '.repeat(15_000)}a`]).flat();
  t.true(milliseconds(() => readHeaders(raw)) < LIMIT_MS);
});

test.serial('a URI that can be decoded again is not canonical', (t) => {
  const uri = `a:/%${'25'.repeat(1_000)}`;
  let canonical = true;
  t.true(milliseconds(() => Array.from({ length: 1_000 }, () => (canonical = isCanonicalUri(uri)))) < LIMIT_MS);
  t.false(canonical);
  t.false(isCanonicalUri('a:/100%2525'));
  t.true(isCanonicalUri('a:/100%25'));
});

test.serial('a content type with many blanks, from a caller without a token', async (t) => {
  const { port } = await startRestOnSqlite(t);
  const type = `application/json${' '.repeat(15_000)}x`;
  const head = `POST /api/auth/login HTTP/1.1\r\nHost: localhost\r\nContent-Type: ${type}\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}`;
  const began = process.cpuUsage();
  for (const answer of await Promise.all(Array.from({ length: 20 }, () => sendRaw(port, head))))
    t.regex(answer, /^HTTP\/1.1 415 /);
  t.true(spent(began) < 4 * LIMIT_MS);
});

test.serial('a body with tens of thousands of bad members', async (t) => {
  const rest = await startRestOnSqlite(t);
  const { token } = await rest.account('a@example.com');
  const body = Object.fromEntries(Array.from({ length: 70_000 }, (_, i) => [`k${i}`, 1]));
  const answer = await rest.call('POST', '/api/auth/tokens', { token, body });
  t.is(answer.status, 400);
  t.true(answer.text.length < 1_000, 'the answer names each of them');
});
