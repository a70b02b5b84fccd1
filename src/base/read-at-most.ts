/** Files that a person or an operator names. */
import { closeSync, openSync, readSync } from 'node:fs';

/** Returns the text of a file, pipe or open descriptor; null: it has more than `max` bytes. A device such as /dev/zero has no end. */
export function readAtMost(file: string | number, max: number): string | null {
  const bytes = Buffer.allocUnsafe(max + 1);
  const from = typeof file === 'number' ? file : openSync(file, 'r');
  try {
    let size = 0;
    for (let read = -1; read !== 0 && size < bytes.length; size += read)
      read = readSync(from, bytes, size, bytes.length - size, null);
    return size > max ? null : bytes.toString('utf8', 0, size);
  } finally {
    if (from !== file) closeSync(from);
  }
}
