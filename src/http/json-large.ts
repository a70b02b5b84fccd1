/** JSON of any size, read without keeping the thread: small texts at once, large ones in the lane. */
import { lane } from '../lane.ts';
import { decodeUtf8, type JsonReading, type JsonRules, readJsonText } from './json.ts';
import { readInSteps, type Selection } from './json-steps.ts';

/** Characters from which on a text is read in steps. */
export const LARGE_TEXT = 64 * 1024;
const STEP_CHARACTERS = 8 * 1024;

const STEP_BYTES = 128 * 1024;

/** The bytes as text; null: they are not valid UTF-8. */
export function decodeLarge(bytes: Uint8Array, owner: string): string | null | Promise<string | null> {
  return bytes.length <= LARGE_TEXT ? decodeUtf8(bytes) : decodeInLane(bytes, owner, false);
}

/** `lossy`: what is not valid UTF-8 becomes U+FFFD; null otherwise. */
export async function decodeInLane(bytes: Uint8Array, owner: string, lossy: boolean): Promise<string | null> {
  const decoder = new TextDecoder('utf-8', { fatal: !lossy, ignoreBOM: true });
  const parts: string[] = [];
  let at = 0;
  try {
    await lane.run(owner, () => {
      const end = at + STEP_BYTES;
      parts.push(decoder.decode(bytes.subarray(at, end), { stream: end < bytes.length }));
      at = end;
      return end >= bytes.length;
    });
  } catch {
    return null;
  }
  return parts.join('');
}

export interface LargeRules extends Partial<JsonRules> {
  /** What of a large text is built; all of a small one is. */
  readonly selection: Selection;
}

/** `owner`: whose text it is, for turns. */
export function readLargeJson(text: string, rules: LargeRules, owner: string): JsonReading | Promise<JsonReading> {
  return text.length <= LARGE_TEXT ? readJsonText(text, rules) : inLane(text, rules, owner);
}

async function inLane(text: string, { selection, ...rules }: LargeRules, owner: string): Promise<JsonReading> {
  const steps = readInSteps(text, rules, selection);
  let until = 0;
  await lane.run(owner, () => {
    until += STEP_CHARACTERS;
    return steps.advance(until);
  });
  return steps.reading;
}
