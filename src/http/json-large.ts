/** JSON of any size, read without keeping the thread: what takes long is read in the lane. */
import { lane } from '../lane.ts';
import { decodeUtf8, type JsonReading, type JsonRules, readJsonText } from './json.ts';
import { readInSteps, type Selection } from './json-steps.ts';

/** A text with more characters is read in steps, and only the values that somebody looks into are built. */
export const LARGE_TEXT = 64 * 1024;
/** A text with more values than this is read in steps too. All of them are built. */
const QUICK_VALUES = 2_000;
const WHOLE: Selection = {
  lists: new Set(),
  skipped: new Set(),
  members: Infinity,
  itemValues: Infinity,
  builtValues: Infinity,
};
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
  /** What is built of a large text. All of a smaller one is built. */
  readonly selection: Selection;
}

/** `owner`: whose text it is, for turns. */
export function readLargeJson(text: string, rules: LargeRules, owner: string): JsonReading | Promise<JsonReading> {
  if (text.length > LARGE_TEXT) return inLane(text, rules, owner);
  return isQuick(text) ? readJsonText(text, rules) : inLane(text, { ...rules, selection: WHOLE }, owner);
}

/** Counts the commas and brackets of strings too. So it may send a text into the lane that is quick to read. */
function isQuick(text: string): boolean {
  if (text.length <= 2 * QUICK_VALUES) return true;
  let values = 1;
  for (let at = 0; at < text.length; at++) {
    const c = text.charCodeAt(at);
    if ((c === 0x2c || c === 0x5b || c === 0x7b) && ++values > QUICK_VALUES) return false;
  }
  return true;
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
