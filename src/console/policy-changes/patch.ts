/** A change of one file as a patch for `git apply`. Pure. */

const CONTEXT = 3;

const linesOf = (text: string): string[] => (text === '' ? [] : text.replace(/\n$/, '').split('\n'));

/** `after` null: the file is deleted. Returns null if nothing differs. Both texts end with a line break. */
export function patchOf(path: string, before: string, after: string | null): string | null {
  if (before === after) return null;
  const [old, wanted] = [linesOf(before), linesOf(after ?? '')];
  const shorter = Math.min(old.length, wanted.length);
  let same = 0;
  while (same < shorter && old[same] === wanted[same]) same++;
  let sameAtEnd = 0;
  while (sameAtEnd < shorter - same && old.at(-1 - sameAtEnd) === wanted.at(-1 - sameAtEnd)) sameAtEnd++;
  const from = Math.max(0, same - CONTEXT);
  const tail = Math.min(sameAtEnd, CONTEXT);
  const range = (lines: readonly string[]): string => {
    const count = lines.length - sameAtEnd + tail - from;
    return `${count === 0 ? 0 : from + 1},${count}`;
  };
  return [
    `diff --git a/${path} b/${path}`,
    ...(after === null ? ['deleted file mode 100644'] : []),
    ...[`--- a/${path}`, after === null ? '+++ /dev/null' : `+++ b/${path}`],
    `@@ -${range(old)} +${range(wanted)} @@`,
    ...old.slice(from, same).map((line) => ` ${line}`),
    ...old.slice(same, old.length - sameAtEnd).map((line) => `-${line}`),
    ...wanted.slice(same, wanted.length - sameAtEnd).map((line) => `+${line}`),
    ...old.slice(old.length - sameAtEnd, old.length - sameAtEnd + tail).map((line) => ` ${line}`),
    '',
  ].join('\n');
}
