import { Writable } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import type { Request, Response } from 'express';
import type { Held } from '../../src/auth/rights.ts';
import { deferred } from '../../src/base/promises.ts';
import { openContext } from '../../src/http/context.ts';
import { sendLargeList, sendPage } from '../../src/http/page.ts';
import type { Admission } from '../../src/state/admission.ts';

const ITEMS = Array.from({ length: 40 }, (_, i) => ({ id: `é${i}` }));

/** Answers with a page of the items, and returns the answer. */
async function sent(limit: number | null, items: readonly { id: string }[], show: (item: { id: string }) => object) {
  const headers: Record<string, string> = {};
  let text = '';
  const res = {
    setHeader(name: string, value: string) {
      headers[name] = value;
      return res;
    },
    end: (body: Buffer) => {
      text = body.toString();
    },
  };
  const req = { query: {}, path: '/', baseUrl: '/api/things' };
  openContext(res as unknown as Response, { requestId: 'r' });
  await sendPage(req as unknown as Request, res as unknown as Response, { limit, cursor: null }, items, ({ id }) => id, show);
  return { headers, text };
}

test('other work runs while a long list is written', async (t) => {
  let turns = 0;
  let isOver = false;
  const others = (async () => {
    for (; !isOver; turns++) await setImmediate();
  })();
  const { text } = await sent(null, ITEMS, (item) => {
    for (const until = performance.now() + 1; performance.now() < until; );
    return { shown: item.id };
  }).finally(() => {
    isOver = true;
  });
  await others;
  t.deepEqual(
    JSON.parse(text),
    ITEMS.map(({ id }) => ({ shown: id })),
  );
  t.true(turns >= 5, `${turns} turns of the event loop`);
});

test('a page names the next one, and an empty list is a list', async (t) => {
  const { headers, text } = await sent(2, ITEMS.slice(0, 3), (item) => item);
  t.is(text, '[{"id":"é0"},{"id":"é1"}]');
  t.deepEqual(headers, {
    Link: `</api/things?cursor=${Buffer.from('é1').toString('base64url')}&limit=2>; rel="next"`,
    'Content-Type': 'application/json; charset=utf-8',
  });
  t.is((await sent(null, [], (item) => item)).text, '[]');
});

test('a list with large items is read in parts, as it is written', async (t) => {
  const asked: number[] = [];
  let held = 0;
  let mostHeld = 0;
  const keys = Array.from({ length: 25 }, (_, i) => `${i}`);
  const written: string[] = [];
  const res = Object.assign(new Writable({ write: (text, _, done) => done(void written.push(String(text))) }), {
    setHeader() {},
  });
  const allowed = { requestId: 'r', admit: async () => ({}) as Admission, authorize: () => ({}) as Held };
  openContext(res as unknown as Response, allowed);
  const answers = Array.from({ length: 9 }, () => {
    const other = { closed: false, setHeader() {}, end: () => undefined } as unknown as Response;
    openContext(other, allowed);
    return other;
  });
  const never = deferred<readonly string[]>();
  const waiting = answers.slice(0, 7).map((other) =>
    sendLargeList(
      other,
      ['a'],
      () => never.promise,
      () => ({}),
    ),
  );
  await sendLargeList(
    res as unknown as Response,
    keys,
    async (some) => {
      asked.push(some.length);
      const found = some.filter((key) => key !== '3');
      held += found.length;
      mostHeld = Math.max(mostHeld, held);
      return found;
    },
    (key) => {
      held--;
      return { key, text: 'x'.repeat(20_000) };
    },
  );
  t.deepEqual(asked, [4, 4, 4, 4, 4, 4, 1]);
  // Those of one part, and what was left of the part before.
  t.true(mostHeld <= 4 + 3, `${mostHeld} items were held at once`);
  const shown = JSON.parse(written.join('')) as { key: string }[];
  t.deepEqual(
    shown.map(({ key }) => key),
    keys.filter((key) => key !== '3'),
    'what was deleted meanwhile is left out',
  );

  // A list is a long answer before anything of it is read.
  const [, , , , , , , eighth, ninth] = answers as Response[];
  waiting.push(
    sendLargeList(
      eighth as Response,
      ['a'],
      () => never.promise,
      () => ({}),
    ),
  );
  await t.throwsAsync(
    sendLargeList(
      ninth as Response,
      ['a'],
      () => never.promise,
      () => ({}),
    ),
    { code: 'too_many_requests' },
  );
  never.resolve([]);
  await Promise.all(waiting);
});
