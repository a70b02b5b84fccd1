/** Reads JSON of any size without blocking the thread: long work runs in the lane. */
import { isAscii } from 'node:buffer';
import { lane } from '../turns/lane.ts';
import type { Selection } from './built.ts';
import { decodeUtf8, type JsonReading, type JsonRules, readJsonText } from './json.ts';
import { readInSteps } from './steps.ts';

/** A text with more characters is read in steps, and only the values that are looked at are built. */
export const LARGE_TEXT = 64 * 1024;
/** A text with more values than this is also read in steps, but completely built. */
const QUICK_VALUES = 2_000;
/** Builds every value. */
export const WHOLE: Selection = {
  lists: new Set(),
  skipped: new Set(),
  members: Infinity,
  itemValues: Infinity,
  builtValues: Infinity,
};
const STEP_CHARACTERS = 8 * 1024;

const STEP_BYTES = 128 * 1024;

/** Returns the bytes as text; null if they are not valid UTF-8. */
export function decodeLarge(bytes: Uint8Array, owner: string): string | null | Promise<string | null> {
  return bytes.length <= LARGE_TEXT ? decodeUtf8(bytes) : decodeInLane(bytes, owner, false);
}

/** Decodes the bytes in the lane. If `lossy`, invalid UTF-8 becomes U+FFFD; otherwise the result is null. */
export async function decodeInLane(bytes: Uint8Array, owner: string, lossy: boolean): Promise<string | null> {
  const decoder = new TextDecoder('utf-8', { fatal: !lossy, ignoreBOM: true });
  const parts: string[] = [];
  let text: string | null = null;
  let at = 0;
  try {
    await lane.run(owner, () => {
      // A plain text is copied at once, which takes no longer than joining its parts. A decoder that is fed in parts makes strings of
      // two bytes a character, and so would every text that is cut from them.
      if (at === 0 && isAscii(bytes)) text = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length).toString('latin1');
      // Joining takes as long as many other steps, so it is one of its own.
      else if (at >= bytes.length) text = parts.join('');
      else parts.push(decoder.decode(bytes.subarray(at, at + STEP_BYTES), { stream: at + STEP_BYTES < bytes.length }));
      at += STEP_BYTES;
      return text !== null;
    });
  } catch {
    return null;
  }
  return text;
}

export interface LargeRules extends Partial<JsonRules> {
  /** Which values of a large text are built. A smaller text is built completely. */
  readonly selection: Selection;
}

/** Reads the JSON text. Owners of large texts take turns. */
export function readLargeJson(text: string, rules: LargeRules, owner: string): JsonReading | Promise<JsonReading> {
  if (text.length > LARGE_TEXT) return inLane(text, rules, owner);
  return isQuick(text) ? readJsonText(text, rules) : inLane(text, { ...rules, selection: WHOLE }, owner);
}

/** Whether the text has few values. Commas and brackets inside strings count too, so a quick text may go to the lane. */
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
