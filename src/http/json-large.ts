/** JSON of any size, read without keeping the thread: small texts at once, large ones in the lane. */
import { lane } from '../lane.ts';
import { type JsonReading, type JsonRules, readJsonText } from './json.ts';
import { readInSteps, type Selection } from './json-steps.ts';

/** Characters from which on a text is read in steps. */
export const LARGE_TEXT = 64 * 1024;
const STEP_CHARACTERS = 8 * 1024;

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
