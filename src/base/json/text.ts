/** Writes JSON in steps, so that a long text does not block the thread. */
import { partsOf } from '../turns/slices.ts';
import type { JsonValue } from './json.ts';

/** The part of a string that is written in one step. Strings up to this length are written without a pause. */
const PART_LENGTH = 32 * 1024;
/** How many values are written in one step. */
const STEP_VALUES = 1_000;

/** The same as `JSON.stringify`, with a pause after each part of a long string, and after some values. */
export function* jsonText(value: JsonValue, written = { values: 0 }): Generator<undefined, string> {
  if (++written.values % STEP_VALUES === 0) yield;
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
    for (const item of value) text += `${text === '' ? '' : ','}${yield* jsonText(item, written)}`;
    return `[${text}]`;
  }
  for (const [name, member] of Object.entries(value))
    text += `${text === '' ? '' : ','}${JSON.stringify(name)}:${yield* jsonText(member, written)}`;
  return `{${text}}`;
}
