/** Sets of characters, as RE2 reads them. */

/** Inclusive ranges of code points, ascending and disjoint. */
export type Ranges = readonly (readonly [number, number])[];

export const LAST = 0x10ffff;

const DIGIT: Ranges = [[48, 57]];
export const WORD: Ranges = [
  [48, 57],
  [65, 90],
  [95, 95],
  [97, 122],
];
export const PERL = new Map<string, Ranges>([
  ['d', DIGIT],
  [
    's',
    [
      [9, 10],
      [12, 13],
      [32, 32],
    ],
  ],
  ['w', WORD],
]);
export const POSIX = new Map<string, Ranges>([
  [
    'alnum',
    [
      [48, 57],
      [65, 90],
      [97, 122],
    ],
  ],
  [
    'alpha',
    [
      [65, 90],
      [97, 122],
    ],
  ],
  ['ascii', [[0, 127]]],
  [
    'blank',
    [
      [9, 9],
      [32, 32],
    ],
  ],
  [
    'cntrl',
    [
      [0, 31],
      [127, 127],
    ],
  ],
  ['digit', DIGIT],
  ['graph', [[33, 126]]],
  ['lower', [[97, 122]]],
  ['print', [[32, 126]]],
  [
    'punct',
    [
      [33, 47],
      [58, 64],
      [91, 96],
      [123, 126],
    ],
  ],
  [
    'space',
    [
      [9, 13],
      [32, 32],
    ],
  ],
  ['upper', [[65, 90]]],
  ['word', WORD],
  [
    'xdigit',
    [
      [48, 57],
      [65, 70],
      [97, 102],
    ],
  ],
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
 * Returns the number of byte ranges into which RE2 compiles a range of code points: it splits where the bytes before the last one
 * differ.
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
