import test from 'ava';
import { csvOf } from '../../../src/audit/search/log-json.ts';

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
