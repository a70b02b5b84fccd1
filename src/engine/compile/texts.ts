/** How many texts fit into one name. A name that does not contain the text of a regular expression is not read by it. */

/** Longer texts are cut off: it is enough to look at their beginnings. */
const LOOKED_AT = 32;

/** Returns a number of the distinct texts that a name of `length` characters cannot exceed. Texts in a name can overlap. */
export function mostTexts(texts: readonly string[], length: number): number {
  if (texts.includes(''))
    return (
      1 +
      mostTexts(
        texts.filter((text) => text !== ''),
        length,
      )
    );
  if (texts.length === 0 || length === Number.POSITIVE_INFINITY) return texts.length;
  /** How many of the texts have this beginning as their own. */
  const counts = new Map<string, number>();
  for (const text of texts) {
    const key = [...text].slice(0, LOOKED_AT).join('');
    counts.set(key, (counts.get(key) ?? 0) + 1);
  }
  const beginnings = new Set<string>();
  for (const text of counts.keys()) for (const beginning of beginningsOf([...text])) beginnings.add(beginning);

  /** The least distance between the places of two texts. */
  let distance = Number.POSITIVE_INFINITY;
  /** How many texts can begin at one place: each is the beginning of the next. */
  let together = 0;
  for (const text of counts.keys()) {
    const characters = [...text];
    together = Math.max(
      together,
      beginningsOf(characters).reduce((sum, beginning) => sum + (counts.get(beginning) ?? 0), 0),
    );
    for (let from = 1; from < Math.min(characters.length, distance); from++) {
      const rest = characters.slice(from);
      if (beginnings.has(rest.join('')) || beginningsOf(rest).some((beginning) => counts.has(beginning))) distance = from;
    }
    distance = Math.min(distance, characters.length);
  }
  return Math.min(texts.length, Math.ceil(length / distance) * together);
}

const beginningsOf = (characters: readonly string[]): string[] => characters.map((_, at) => characters.slice(0, at + 1).join(''));
