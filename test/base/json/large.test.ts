import { setImmediate, setTimeout } from 'node:timers/promises';
import { isDeepStrictEqual } from 'node:util';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import test from 'ava';
import { type JsonObject, type JsonValue, readJsonText } from '../../../src/base/json/json.ts';
import { LARGE_TEXT, readLargeJson } from '../../../src/base/json/large.ts';
import { CLIENT_RULES } from '../../../src/base/json/selection.ts';

/** The largest size of a text that is built completely. */
const zeros = `{"values":[${'0,'.repeat(30_000)}0]}`;

const { selection: _, ...RULES } = CLIENT_RULES;

test('other work runs while short texts with many values are read', async (t) => {
  t.true(zeros.length <= LARGE_TEXT);
  let turns = 0;
  let isOver = false;
  const others = (async () => {
    for (; !isOver; turns++) await setImmediate();
  })();
  await Promise.all(Array.from({ length: 8 }, (_, i) => readLargeJson(zeros, CLIENT_RULES, `caller ${i}`)));
  isOver = true;
  await others;
  t.true(turns > 8, `${turns} turns of the event loop`);
});

test('a short text with many values is read like any other, and all of it is built', async (t) => {
  const items = Array.from({ length: 3_000 }, (_, i) => `{"m${i}":[${i}]}`).join();
  const members = Array.from({ length: 11_000 }, (_, i) => `"${i.toString(36)}":0`).join();
  const inString = JSON.stringify(JSON.stringify(Array.from({ length: 3_000 }, (_, i) => i)));
  const texts = [
    zeros,
    `{"params":{"name":[${items}]}}`,
    `{${members}}`.slice(0, LARGE_TEXT - 1),
    `{${members.slice(0, 60_000).replace(/,[^,]*$/, '')}}`,
    `{"text":${inString}}`,
    `{"values":[${'[],'.repeat(5_000)}{"a":1,"a":2}]}`,
    `[${'[],'.repeat(5_000)}`,
    '['.repeat(3_000),
  ];
  for (const text of texts) {
    t.true(text.length <= LARGE_TEXT);
    const reading = await readLargeJson(text, CLIENT_RULES, 'caller');
    t.true(isDeepStrictEqual(reading, readJsonText(text, RULES)), text.slice(0, 40));
  }
});

test('a short text with few values is read at once', (t) => {
  const reading = readLargeJson(`{"text":"${'x'.repeat(60_000)}"}`, CLIENT_RULES, 'caller');
  t.true('ok' in reading && reading.ok);
});

test('a string that may be kept does not keep the text from which it was read', async (t) => {
  setFlagsFromString('--expose-gc');
  const collectGarbage = runInNewContext('gc') as () => void;
  const held = (): number => {
    collectGarbage();
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  const kept: JsonValue[] = [];
  const before = held();
  const lengths = [100, 1_000, 2_000, 4_096].flatMap((length) => [length, length, length]);
  for (const length of lengths) {
    const text = Buffer.from(`{"name":"${'n'.repeat(length)}","other":"${'x'.repeat(5_000_000)}"}`).toString('latin1');
    const reading = await readLargeJson(text, CLIENT_RULES, 'somebody');
    if (reading.ok) kept.push((reading.value as JsonObject)['name'] ?? null);
  }
  t.deepEqual(
    kept.map((name) => String(name).length),
    lengths,
  );
  // The last text is still in use, and what read the others may not have ended yet.
  const most = 12_000_000;
  let bytes = held() - before;
  for (let i = 0; i < 100 && bytes >= most; i++) {
    await setTimeout(50);
    bytes = held() - before;
  }
  t.true(bytes < most, `${bytes} bytes`);
});
