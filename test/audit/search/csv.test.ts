import test from 'ava';
import type { AuditEntry } from '../../../src/audit/search/entries.ts';
import { csvOf, logJson } from '../../../src/audit/search/log-json.ts';

test('no cell of a CSV begins like a formula', async (t) => {
  const texts = ['=1', '+1', '-1', '@x', '\t=1', '\r=1', '\n=1', '＝1', '＋1', '－1', '＠x'];
  const written: string[] = [];
  for await (const line of csvOf(
    ['a'],
    [...texts, 'x=1', '"'].map((a) => ({ a })),
  ))
    written.push(line);
  t.deepEqual(written.slice(1), [...texts.map((text) => `"'${text}"\r\n`), '"x=1"\r\n', '""""\r\n']);
});

test('an entry with a time that no date has can be shown', (t) => {
  const shown = [2 ** 63 - 1, -(2 ** 63)].map((created_at) => logJson({ created_at } as AuditEntry).created_at);
  t.deepEqual(shown, ['+275760-09-13T00:00:00.000Z', '-271821-04-20T00:00:00.000Z']);
});
