/**
 * Makes ids: UUIDs of version 7 (RFC 9562). Each is greater than the one before, so rows in the order of their ids are in the order of time,
 * unless the clock was set back by more than a minute. Random bits keep the ids unique also then.
 */
import { randomFillSync } from 'node:crypto';

/** A call to the generator of random numbers costs far more than the bytes that it gives, so many ids share one. */
const random = new Uint32Array(1_024);
let used = random.length;

function nextRandom(): number {
  if (used === random.length) {
    randomFillSync(random);
    used = 0;
  }
  return random[used++] ?? 0;
}

const DIGITS = Buffer.from('0123456789abcdef');
const text = Buffer.from('00000000-0000-7000-8000-000000000000');
let ms = 0;
/** If the clock is set back by more, ids follow it. Otherwise, their times would be wrong for as long as the clock was ahead. */
export const SET_BACK_MS = 60_000;
/** Counts the ids of a millisecond. It begins at a random number below 2^31, and has 32 bits. */
let count = 0;

/** Writes the lowest `digits` hexadecimal digits of the value. */
function write(at: number, digits: number, value: number): void {
  for (let i = at + digits - 1, rest = value; i >= at; i--) {
    text[i] = DIGITS[rest & 15] ?? 0;
    rest >>>= 4;
  }
}

export function uuidv7(now: number = Date.now()): string {
  const isSetBack = now < ms - SET_BACK_MS;
  if (now > ms || isSetBack || count === 0xffff_ffff) {
    ms = isSetBack ? now : Math.max(now, ms + 1);
    count = nextRandom() >>> 1;
    write(0, 8, Math.floor(ms / 0x1_0000));
    write(9, 4, ms & 0xffff);
  } else count++;
  const tail = nextRandom();
  write(15, 3, count >>> 20);
  write(19, 4, 0x8000 | ((count >>> 6) & 0x3fff));
  write(24, 4, ((count & 0x3f) << 10) | (tail & 0x3ff));
  write(28, 8, nextRandom());
  return text.toString('latin1');
}
