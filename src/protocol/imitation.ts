/**
 * Finds names that are protocol names only after case folding, or up to a NUL: such a name is an attack, not data. Some receivers match member
 * names case-insensitively and read `"Name"` as `"name"`. Go's encoding/json does, with Unicode folding: U+017F is an `s`, U+212A a `k`. In Java,
 * U+0130 is an `i`. cJSON reads `"name\u0000x"` as `"name"`. Pure.
 */
import type { JsonObject } from '../base/json/json.ts';

/** The characters outside of ASCII that become ASCII letters when they change case, and these letters. */
const LETTERS: ReadonlyMap<number, string> = new Map(
  Object.entries({
    '\u00df': 'ss',
    '\u0130': 'i',
    '\u0131': 'i',
    '\u017f': 's',
    '\u1e9e': 'ss',
    '\u212a': 'k',
    '\ufb00': 'ff',
    '\ufb01': 'fi',
    '\ufb02': 'fl',
    '\ufb03': 'ffi',
    '\ufb04': 'ffl',
    '\ufb05': 'st',
    '\ufb06': 'st',
  }).map(([character, letters]) => [character.charCodeAt(0), letters]),
);

const ASCII = 128;
/** Readers in C end a name here. */
const NUL = 0;
const IS_ASCII = /^[\x20-\x7e]*$/;
/** No letter leads back to the beginning. */
const NOWHERE = 0;

/**
 * A tree of names in ASCII, by their letters without case. Its places are numbers; a name begins at 0. One message can have a hundred thousand
 * names that leave the tree at their last letter.
 */
export interface Names {
  /** For each place, the next place after each of the 128 letters; 0: none. */
  readonly next: Uint16Array;
  /** The names that end at each place. */
  readonly ends: readonly (string | null)[];
}

export function namesOf(...lists: string[]): Names {
  const names = lists.flatMap((list) => list.split(' '));
  const next = new Uint16Array(ASCII * names.reduce((sum, { length }) => sum + length, 1));
  const ends: (string | null)[] = [null];
  for (const name of names) {
    // No other name imitates it: of the other characters, no two are the same without case that could stand in a name of the protocol.
    if (!IS_ASCII.test(name)) continue;
    let at = 0;
    for (const letter of name) {
      const [upper, lower] = [letter.toUpperCase(), letter.toLowerCase()].map((one) => ASCII * at + one.charCodeAt(0));
      if (upper === undefined || lower === undefined) continue;
      if (next[lower] === NOWHERE) {
        next[lower] = ends.push(null) - 1;
        next[upper] = next[lower];
      }
      at = next[lower] ?? NOWHERE;
    }
    ends[at] = name;
  }
  return { next, ends };
}

function isImitation(name: string, { next, ends }: Names): boolean {
  let at = 0;
  for (let i = 0; i < name.length; i++) {
    const code = name.charCodeAt(i);
    if (code === NUL) break;
    if (code < ASCII) at = next[ASCII * at + code] ?? NOWHERE;
    else {
      const letters = LETTERS.get(code) ?? '';
      if (letters === '') return false;
      for (let j = 0; j < letters.length && (j === 0 || at !== NOWHERE); j++)
        at = next[ASCII * at + letters.charCodeAt(j)] ?? NOWHERE;
    }
    if (at === NOWHERE) return false;
  }
  const known = ends[at] ?? null;
  return known !== null && known !== name;
}

/** Returns the first name of a member that imitates one of the names; null: none does. */
export const imitationIn = (value: JsonObject, known: Names): string | null =>
  Object.keys(value).find((name) => isImitation(name, known)) ?? null;

/** The same check as a function of one name, for the members of many values. */
export function imitationOf(...lists: string[]): (name: string) => boolean {
  const known = namesOf(...lists);
  return (name) => isImitation(name, known);
}
