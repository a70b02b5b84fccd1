import test from 'ava';
import { linesOf } from '../../src/cli/lines.ts';

const read = async (text: string, size: number): Promise<string[]> => {
  const bytes = Buffer.from(text);
  const chunks = async function* () {
    for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
  };
  const lines: string[] = [];
  for await (const line of linesOf(chunks())) lines.push(line);
  return lines;
};

test('only line feeds end a line, wherever the text is cut', async (t) => {
  const text = '{"name":"a\u2028b\u2029c\u0085d\rä€𝄞"}\r\n\n{"last":true}';
  for (let size = 1; size < 50; size++) {
    const lines = ['{"name":"a\u2028b\u2029c\u0085d\rä€𝄞"}', '', '{"last":true}'];
    t.deepEqual(await read(text, size), lines, `${size}`);
    t.deepEqual(await read(`${text}\n`, size), lines, `${size}`);
  }
  t.deepEqual(await read('', 1), []);
});
