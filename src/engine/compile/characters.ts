/** Sets of characters, as RE2 reads them. */

/** Inclusive ranges of code points, ascending and disjoint. */
export type Ranges = readonly (readonly [number, number])[];

export const LAST = 0x10ffff;

/** Returns the ranges that `pairs` names by their first and last characters: `AZaz` means the letters of ASCII. */
function rangesOf(pairs: string): Ranges {
  return [...pairs.matchAll(/(.)(.)/gs)].map(([, low = '', high = '']) => [low.charCodeAt(0), high.charCodeAt(0)]);
}

export const WORD = rangesOf('09AZ__az');
export const PERL = new Map([
  ['d', rangesOf('09')],
  ['s', rangesOf('\t\n\f\r  ')],
  ['w', WORD],
]);
export const POSIX = new Map([
  ['alnum', rangesOf('09AZaz')],
  ['alpha', rangesOf('AZaz')],
  ['ascii', rangesOf('\x00\x7f')],
  ['blank', rangesOf('\t\t  ')],
  ['cntrl', rangesOf('\x00\x1f\x7f\x7f')],
  ['digit', rangesOf('09')],
  ['graph', rangesOf('!~')],
  ['lower', rangesOf('az')],
  ['print', rangesOf(' ~')],
  ['punct', rangesOf('!/:@[`{~')],
  ['space', rangesOf('\t\r  ')],
  ['upper', rangesOf('AZ')],
  ['word', WORD],
  ['xdigit', rangesOf('09AFaf')],
]);
export const CONTROLS = new Map([
  ['a', 7],
  ['f', 12],
  ['n', 10],
  ['r', 13],
  ['t', 9],
  ['v', 11],
]);

export const ANY: Ranges = [[0, LAST]];
export const ANY_BUT_NEWLINE: Ranges = [
  [0, 9],
  [11, LAST],
];

export function normalize(ranges: Ranges): Ranges {
  const merged: [number, number][] = [];
  for (const [low, high] of [...ranges].sort((a, b) => a[0] - b[0])) {
    const last = merged.at(-1);
    if (last !== undefined && low <= last[1] + 1) last[1] = Math.max(last[1], high);
    else merged.push([low, high]);
  }
  return merged;
}

export function negate(ranges: Ranges): Ranges {
  const rest: [number, number][] = [];
  let next = 0;
  for (const [low, high] of normalize(ranges)) {
    if (low > next) rest.push([next, low - 1]);
    next = high + 1;
  }
  if (next <= LAST) rest.push([next, LAST]);
  return rest;
}

/** Folds ASCII letters. Besides the other case, k folds to the Kelvin sign and s to the long s. */
export function fold(ranges: Ranges): Ranges {
  const folded: [number, number][] = [];
  for (const [low, high] of ranges) {
    folded.push([low, high]);
    for (const [first, last, shift] of [
      [65, 90, 32],
      [97, 122, -32],
    ] as const) {
      const from = Math.max(low, first);
      const to = Math.min(high, last);
      if (from <= to) folded.push([from + shift, to + shift]);
    }
    for (const [letter, other] of [
      [75, 0x212a],
      [107, 0x212a],
      [83, 0x17f],
      [115, 0x17f],
    ] as const) {
      if (low <= letter && letter <= high) folded.push([other, other]);
    }
  }
  return normalize(folded);
}

/**
 * Returns the number of byte ranges to which RE2 compiles a range of code points. RE2 splits the range where the bytes before
 * the last one differ.
 */
export function byteRanges(low: number, high: number): number {
  for (const edge of [0x7f, 0x7ff, 0xffff]) {
    if (low <= edge && edge < high) return byteRanges(low, edge) + byteRanges(edge + 1, high);
  }
  if (high <= 0x7f) return 1;
  for (const bits of [6, 12, 18]) {
    const mask = (1 << bits) - 1;
    if ((low & ~mask) === (high & ~mask)) break;
    if ((low & mask) !== 0) return byteRanges(low, low | mask) + byteRanges((low | mask) + 1, high);
    if ((high & mask) !== mask) return byteRanges(low, (high & ~mask) - 1) + byteRanges(high & ~mask, high);
  }
  return high <= 0x7ff ? 2 : high <= 0xffff ? 3 : 4;
}
