/** How many texts fit into one name. A name that does not contain the text of a regular expression is not read by it. */

/** Longer texts are cut off: it is enough to look at their beginnings. */
const LOOKED_AT = 32;
const TEXTS_AT_ONCE = 20;

/** The texts, by their characters one after the other. */
interface Node {
  readonly next: Map<string, Node>;
  /** How many of the texts end here. */
  count: number;
}

const newNode = (): Node => ({ next: new Map(), count: 0 });

/**
 * Returns a number of the distinct texts that a name of `length` characters cannot exceed. Texts in a name can overlap. Pauses every few texts.
 */
export function* mostTextsInSteps(texts: readonly string[], length: number): Generator<undefined, number> {
  const named = texts.filter((text) => text !== '');
  // Every name contains the empty text.
  const empty = texts.length - named.length;
  if (named.length === 0) return empty;
  const root = newNode();
  const all = named.map((text) => [...text].slice(0, LOOKED_AT));
  /** How many texts can begin at one place: each is the beginning of the next. */
  let together = 0;
  for (const [n, characters] of all.entries()) {
    if (n % TEXTS_AT_ONCE === 0) yield;
    let node = root;
    for (const character of characters) {
      const next = node.next.get(character) ?? newNode();
      node.next.set(character, next);
      node = next;
    }
    node.count++;
  }
  /** The least distance between the places of two texts. */
  let distance = Number.POSITIVE_INFINITY;
  for (const [n, characters] of all.entries()) {
    if (n % TEXTS_AT_ONCE === 0) yield;
    together = Math.max(together, textsAlong(root, characters));
    distance = Math.min(distance, characters.length);
    for (let from = 1; from < distance; from++) if (meets(root, characters, from)) distance = from;
  }
  return empty + Math.min(named.length, Math.ceil(length / distance) * together);
}

/** How many texts are beginnings of these characters. */
function textsAlong(root: Node, characters: readonly string[]): number {
  let count = 0;
  let node: Node | undefined = root;
  for (const character of characters) {
    node = node.next.get(character);
    if (node === undefined) break;
    count += node.count;
  }
  return count;
}

/** Whether a text can begin at `from` in these characters: it ends in them, or they end in it. */
function meets(root: Node, characters: readonly string[], from: number): boolean {
  let node: Node | undefined = root;
  for (let at = from; at < characters.length; at++) {
    node = node.next.get(characters[at] ?? '');
    if (node === undefined) return false;
    if (node.count > 0) return true;
  }
  return true;
}
