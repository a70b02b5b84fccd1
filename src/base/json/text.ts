/** Writes JSON in steps, so that a long text does not block the thread. */
import { partsOf } from '../turns/slices.ts';
import type { JsonValue } from './json.ts';

/** The part of a string that is written in one step. */
const PART_LENGTH = 32 * 1024;
/** What a value counts beside its characters. */
const VALUE_LENGTH = 32;

/** The characters that were written since the last pause. All writers share it, because many short texts take as long as one long text. */
let written = 0;

/** Counts characters that were written. Pauses after some. */
export function* wrote(length: number): Generator<undefined, void> {
  written += length;
  if (written < PART_LENGTH) return;
  written = 0;
  yield;
}

/** The same as `JSON.stringify`, with a pause after some characters and values. `isSorted`: members are in the order of their names. */
export function* jsonText(value: JsonValue, isSorted = false): Generator<undefined, string> {
  yield* wrote(typeof value === 'string' ? VALUE_LENGTH + Math.min(value.length, PART_LENGTH) : VALUE_LENGTH);
  if (typeof value === 'string' && value.length > PART_LENGTH) {
    let text = '"';
    for (const part of partsOf([value], PART_LENGTH)) {
      text += JSON.stringify(part).slice(1, -1);
      yield;
    }
    return `${text}"`;
  }
  if (typeof value !== 'object' || value === null) return JSON.stringify(value);
  let text = '';
  if (Array.isArray(value)) {
    for (const item of value) text += `${text === '' ? '' : ','}${yield* jsonText(item, isSorted)}`;
    return `[${text}]`;
  }
  const names = Object.keys(value);
  for (const name of isSorted ? names.sort() : names)
    text += `${text === '' ? '' : ','}${yield* jsonText(name)}:${yield* jsonText(value[name] ?? null, isSorted)}`;
  return `{${text}}`;
}
