/** Makes text from others safe to show. */

/** Control characters (but no line breaks), line separators, bidirectional controls, and lone surrogates. */
const MOVING = /[^\P{Cc}\n]|[\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]|\p{Cs}/gu;

/** Escapes what could move the cursor, reverse text or begin a line. */
export function printable(text: string): string {
  return text.replace(MOVING, (character) => `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`);
}

/** The same JSON, with those characters escaped in its texts. */
export const printableJson = (json: string): string =>
  json.replace(MOVING, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, '0')}`);
