/** What tests of a name cost at most. The figures were measured in WASM on the slower of two machines, with names of 60 to 2,048 bytes. */

/** Nanoseconds: for each name, and for each byte of the name. */
export interface Weight {
  readonly name: number;
  readonly byte: number;
}

export const NOTHING: Weight = { name: 0, byte: 0 };

const TEST_NS = 300;
const MATCH_NS = 2_000;
/** OPA compares the text at each byte of the name, and RE2 reads each byte. */
const BYTE_NS = 3.5;
/** A character that is compared in vain, because the name contains the beginning of the text. */
const COMPARED_NS = 0.5;
/** RE2 is slower by one reading for each so many units of the pattern's `cost` (re2.ts). */
const COST_OF_READING = 20;

export const plus = (a: Weight, b: Weight): Weight => ({ name: a.name + b.name, byte: a.byte + b.byte });
export const atLeast = (a: Weight, b: Weight): Weight => ({ name: Math.max(a.name, b.name), byte: Math.max(a.byte, b.byte) });

/** A test whether the name contains the text. */
export const textWeight = (text: string): Weight => ({ name: TEST_NS, byte: BYTE_NS + COMPARED_NS * comparisons(text) });

/** RE2 compiles a pattern when a name first needs it, and again when the heap has been rewound. */
const COMPILE_NS = 20_000;
const COMPILE_COST_NS = 700;
/** To make states (`stateWork` in automaton.ts). A pattern with little work soon has all of them, one with more makes some for most names. */
const WORK_NS = 25;
const LITTLE_WORK = 10_000;
/** For each byte, RE2 makes a state of a pattern that has too many, and searches its memory for room. */
const ENDLESS_BYTE_NS = 270_000;

/**
 * A regular expression of this cost (re2.ts) and work (automaton.ts), after the test whether the name contains the text. It is compiled already,
 * and a pattern with little work has its states.
 */
export const regexWeight = (text: string, cost: number, work: number | null): Weight => {
  const states = work === null || work <= LITTLE_WORK ? 0 : WORK_NS * work;
  const byte = work === null ? ENDLESS_BYTE_NS : BYTE_NS * (1 + cost / COST_OF_READING);
  return plus(textWeight(text), { name: MATCH_NS + states, byte });
};

/** The first use of a regular expression: RE2 also compiles it and makes all its states. */
export const firstUse = (cost: number, work: number | null): Weight => ({
  name: MATCH_NS + COMPILE_NS + COMPILE_COST_NS * cost + WORK_NS * (work ?? 0),
  byte: regexWeight('', cost, work).byte,
});

const SEARCH_NS = 7_000;

/** How many searches of the longest name take as long as the first use of a regular expression: compiling it, making its states and reading. */
export const regexSearches = (cost: number, work: number): number =>
  1 + Math.ceil((COMPILE_NS + COMPILE_COST_NS * cost + WORK_NS * work) / SEARCH_NS);

const TEXT_BYTE_NS = BYTE_NS + 2 * COMPARED_NS;

/** How many searches for ordinary texts, such as `/repo/`, take as long as the search for this text. A whole number from 1. */
export const searches = (text: string): number => Math.ceil(textWeight(text).byte / TEXT_BYTE_NS);

/**
 * How many characters of the text are compared at each position of a name, on average, in the worst name. It is 1 to 2 for most texts. A text
 * that repeats itself, such as `aaaab`, can be found in part at every position: the beginning of length n that repeats itself after p characters
 * occurs after every p characters.
 */
function comparisons(text: string): number {
  /** For each beginning of the text: the length of its longest proper beginning that is also its end. */
  const borders = new Uint16Array(text.length);
  let most = 1;
  for (let at = 1, border = 0; at < text.length; at++) {
    while (border > 0 && text[at] !== text[border]) border = borders[border - 1] ?? 0;
    if (text[at] === text[border]) border++;
    borders[at] = border;
    most = Math.max(most, (at + 1) / (at + 1 - border));
  }
  return most;
}
