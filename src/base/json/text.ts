/** Writes JSON in steps, so that a long text does not block the thread. */
import { partsOf } from '../turns/slices.ts';
import type { JsonValue } from './json.ts';

/** The part of a string that is written in one step. Strings up to this length are written without a pause. */
const PART_LENGTH = 32 * 1024;

/** The same as `JSON.stringify`, with a pause after each part of a long string. */
export function* jsonText(value: JsonValue): Generator<undefined, string> {
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
    for (const item of value) text += `${text === '' ? '' : ','}${yield* jsonText(item)}`;
    return `[${text}]`;
  }
  for (const [name, member] of Object.entries(value))
    text += `${text === '' ? '' : ','}${JSON.stringify(name)}:${yield* jsonText(member)}`;
  return `{${text}}`;
}
