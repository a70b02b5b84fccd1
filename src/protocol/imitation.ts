/**
 * Finds names that are protocol names only after case folding: such a name is an attack, not data. Some receivers match member names
 * case-insensitively and read `"Name"` as `"name"`. Go's encoding/json does, with Unicode folding: U+017F is an `s`, U+212A a `k`. In Java, U+0130
 * is an `i`. Pure.
 */
import type { JsonObject } from '../base/json/json.ts';

/** The characters outside of ASCII that become ASCII letters when they change case, and these letters. */
const LETTERS: ReadonlyMap<string, string> = new Map([
  ...([
    ['\u00df', 'ss'],
    ['\u0130', 'i'],
    ['\u0131', 'i'],
    ['\u017f', 's'],
    ['\u212a', 'k'],
    ['\ufb00', 'ff'],
  ] as const),
  ...([
    ['\ufb01', 'fi'],
    ['\ufb02', 'fl'],
    ['\ufb03', 'ffi'],
    ['\ufb04', 'ffl'],
    ['\ufb05', 'st'],
    ['\ufb06', 'st'],
  ] as const),
]);

/** A tree of names, by their lower-case letters. A message can have a hundred thousand names, and most leave the tree at their first letter. */
interface Place {
  readonly next: Map<string, Place>;
  /** The name that ends here. */
  name: string | null;
}

export type Names = Place;

export function namesOf(...lists: string[]): Names {
  const root: Place = { next: new Map(), name: null };
  for (const name of lists.flatMap((list) => list.split(' '))) {
    let at = root;
    for (const letter of name.toLowerCase()) {
      const next = at.next.get(letter) ?? { next: new Map(), name: null };
      at.next.set(letter, next);
      at = next;
    }
    at.name = name;
  }
  return root;
}

function isImitation(name: string, known: Names): boolean {
  let at: Place | undefined = known;
  for (let i = 0; i < name.length; i++) {
    const letter = name.charAt(i);
    const folded = name.charCodeAt(i) < 128 ? letter.toLowerCase() : LETTERS.get(letter);
    if (folded === undefined) return false;
    for (const each of folded) at = at?.next.get(each);
    if (at === undefined) return false;
  }
  return at.name !== null && at.name !== name;
}

/** Returns the first name of a member that imitates one of the names; null: none does. */
export const imitationIn = (value: JsonObject, known: Names): string | null =>
  Object.keys(value).find((name) => isImitation(name, known)) ?? null;

/** The same check as a function of one name, for the members of many values. */
export function imitationOf(...lists: string[]): (name: string) => boolean {
  const known = namesOf(...lists);
  return (name) => isImitation(name, known);
}
