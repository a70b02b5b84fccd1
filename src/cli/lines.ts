/**
 * Yields the lines of a text in UTF-8, without their ends `\n` or `\r\n`. Other characters that some readers treat as line ends (U+2028
 * in Node's `readline`) may occur inside a line of JSON.
 */
export async function* linesOf(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const chunk of chunks) {
    const [first = '', ...more] = decoder.decode(chunk, { stream: true }).split('\n');
    rest += first;
    for (const next of more) {
      yield withoutReturn(rest);
      rest = next;
    }
  }
  rest += decoder.decode();
  if (rest !== '') yield withoutReturn(rest);
}

const withoutReturn = (line: string): string => (line.endsWith('\r') ? line.slice(0, -1) : line);
