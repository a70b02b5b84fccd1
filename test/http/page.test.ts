import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import type { Request, Response } from 'express';
import { openContext } from '../../src/http/context.ts';
import { readInParts, sendPage } from '../../src/http/page.ts';

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

test('a list with large items is read in parts, as its client reads it', async (t) => {
  const asked: number[] = [];
  const keys = Array.from({ length: 25 }, (_, i) => `${i}`);
  const res = {} as Response;
  openContext(res, { requestId: 'r' });
  const items = readInParts(res, keys, async (some) => {
    asked.push(some.length);
    return some.filter((key) => key !== '3');
  });
  const seen = [(await items.next()).value];
  t.deepEqual(asked, [4]);
  for await (const item of items) seen.push(item);
  t.deepEqual(asked, [4, 4, 4, 4, 4, 4, 1]);
  t.deepEqual(
    seen,
    keys.filter((key) => key !== '3'),
    'what was deleted meanwhile is left out',
  );
});
