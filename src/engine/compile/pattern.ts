/** Decides which resource patterns are accepted, and computes their costs. The limits of a whole set are in set-limits.ts. */
import { copyOf, createRecent } from '../../base/kept.ts';
import { atOnce } from '../../base/turns/slices.ts';
import { stateWorkInSteps } from './automaton.ts';
import { lower, type Screen, type Shape, screen } from './lower.ts';
import { cost, type Node, PatternSyntaxError, parse } from './re2.ts';

/** In code points. */
export const MAX_PATTERN_LENGTH = 512;
/** The maximum `cost` (re2.ts) of one pattern. RE2 compiles such a pattern in WASM within a few milliseconds. */
export const MAX_PATTERN_COST = 4_000;
/** Either plain comparisons that are equivalent to the pattern, or a quick test that excludes most names before the regular expression. */
export type PatternForm =
  | { readonly shapes: readonly Shape[]; readonly screen: null }
  | { readonly shapes: null; readonly screen: Screen };

/**
 * `form` is packed (`formIn`): many thousands of readings are kept and sent to threads, and texts as objects take eight times the memory. `kind`
 * says what the form is: names that are compared as wholes, texts that are searched, or a regular expression.
 */
export interface PatternReading {
  readonly cost: number;
  readonly kind: 'exact' | 'texts' | 'regex';
  readonly form: string;
}

/** Asks the WASM that will run the pattern (`regex.is_valid`). */
export type IsValidPattern = (pattern: string) => boolean;

/** The memory of cached patterns, in bytes: their readings, and the verdicts on them. */
const READ_BYTES = 24 * 1024 * 1024;
const JUDGED_BYTES = 8 * 1024 * 1024;
/** An estimate of what an entry takes besides its characters. */
const ENTRY_BYTES = 250;

/** One character beyond Latin-1 makes all of a text take two bytes each. */
const bytesOfText = (text: string): number => (/[^\0-\xff]/.test(text) ? 2 : 1) * text.length;

const bytesOf = (pattern: string, reading: PatternReading | string): number =>
  ENTRY_BYTES + bytesOfText(pattern) + bytesOfText(typeof reading === 'string' ? reading : reading.form);

/** The cache saves work: every change of one policy also reads the patterns of all others. */
const readings = createRecent(READ_BYTES, bytesOf);
/** The readings of the last two whole sets. They stay, whatever else is read. */
let inUse: readonly ReadonlyMap<string, PatternReading | string>[] = [];

/** Keeps the readings of a whole set until two other sets have been kept. The work of this thread begins with such a set. */
export function keepSet(set: ReadonlyMap<string, PatternReading | string>): void {
  inUse = [set, ...inUse.slice(0, 1)];
}

/** Reads the patterns of the policies that decide from now on, and keeps their readings. Pauses so that the caller can let other work run. */
export function* keepPatterns(patterns: Iterable<string | null>): Generator<undefined, void> {
  const set = new Map<string, PatternReading | string>();
  for (const pattern of patterns) {
    yield;
    if (pattern !== null) set.set(pattern, readPattern(pattern));
  }
  keepSet(set);
}

/** Reads the pattern without the engine. A string is one sentence that says why the pattern is refused. */
export function readPattern(pattern: string): PatternReading | string {
  const known = knownReading(pattern);
  if (known !== undefined) return known;
  const reading = readUncached(pattern);
  keepReading(pattern, reading);
  return reading;
}

/** By reading: computing the work takes up to some 20 milliseconds, so it is done only for limits and estimates, in steps, and once. */
const works = new WeakMap<PatternReading, number | null>();

/** Returns the work if it has been computed in this thread. */
export const knownWork = (reading: PatternReading | string | undefined): number | null | undefined =>
  typeof reading === 'object' ? works.get(reading) : undefined;

/** `work`: what `workOf` returned for the reading in a different thread. */
export const keepWork = (reading: PatternReading, work: number | null): void => void works.set(reading, work);

/** The most work to make the states of a regular expression (automaton.ts). null: too much. `reading`: of this pattern. */
export const workOf = (pattern: string, reading: PatternReading): number | null => atOnce(workOfInSteps(pattern, reading));

/** Like `workOf`, but pauses so that the caller can let other work run. */
export function* workOfInSteps(pattern: string, reading: PatternReading): Generator<undefined, number | null> {
  const known = works.get(reading);
  if (known !== undefined) return known;
  const work = reading.kind === 'regex' ? yield* stateWorkInSteps(parse(pattern), pattern) : 0;
  works.set(reading, work);
  return work;
}

/** `pattern`: what the sentence calls it. */
export const tooManyStates = (pattern: string): string =>
  `${pattern} has too many states: RE2 may need more of them than it can keep, and then reads names slowly. Mostly, the reason is a repetition such as .{1,100}: RE2 counts from each place where it can begin. Write .* or .+ instead, or smaller numbers.`;

/** The same for a pattern that is in no policy: those of policies are checked with the whole set. null: it has few states, or is no pattern. */
export const stateProblem = (pattern: string): string | null => atOnce(stateProblemInSteps(pattern));

/** Like `stateProblem`, but pauses so that the caller can let other work run. */
export function* stateProblemInSteps(pattern: string): Generator<undefined, string | null> {
  const reading = readPattern(pattern);
  if (typeof reading === 'string') return null;
  return (yield* workOfInSteps(pattern, reading)) === null ? tooManyStates('The pattern') : null;
}

/** Returns the reading if the pattern has been read in this thread. */
export const knownReading = (pattern: string): PatternReading | string | undefined =>
  inUse[0]?.get(pattern) ?? inUse[1]?.get(pattern) ?? readings.get(pattern);

/** `reading`: what `readPattern` returned for the pattern in this thread or in another. */
export function keepReading(pattern: string, reading: PatternReading | string): void {
  // Do not cache patterns that are too long.
  if (pattern.length > MAX_PATTERN_LENGTH) return;
  readings.set(copyOf(pattern), reading);
}

function readUncached(pattern: string): PatternReading | string {
  if (pattern === '') return 'The pattern is empty. Use null for every name.';
  if ([...pattern].length > MAX_PATTERN_LENGTH) return `The pattern is longer than ${MAX_PATTERN_LENGTH} characters.`;
  if (/[\p{Cc}\p{Cs}]/u.test(pattern))
    return 'The pattern contains a control character or half a surrogate pair. Write it as an escape such as \\n.';
  let tree: Node;
  try {
    tree = parse(pattern);
  } catch (error) {
    if (error instanceof PatternSyntaxError) return error.message;
    throw error;
  }
  const price = cost(tree);
  if (price > MAX_PATTERN_COST) {
    return `The pattern costs ${price}, more than the limit of ${MAX_PATTERN_COST}. Use fewer repetitions, or smaller sets of characters in them.`;
  }
  return { cost: price, ...packed(formOf(tree)) };
}

const LETTERS = { exact: 'e', prefix: 'p', suffix: 's', contains: 'c' } as const;
const KINDS: ReadonlyMap<string, Shape['kind']> = new Map(
  Object.entries(LETTERS).map(([kind, letter]) => [letter, kind as Shape['kind']]),
);

/** Each text with a letter before it: of its kind, or of what the screen's texts are for. */
function packed({ shapes, screen: test }: PatternForm): Pick<PatternReading, 'kind' | 'form'> {
  if (shapes === null) {
    const { guard, needs } = test;
    const before = guard === null ? 'n' : guard.side === 'start' ? 's' : 'e';
    return { kind: 'regex', form: joined([before + needs, ...(guard?.texts ?? [])]) };
  }
  const texts = shapes.map(({ kind, oneLine, text }) => (oneLine ? LETTERS[kind].toUpperCase() : LETTERS[kind]) + text);
  return { kind: shapes.every(({ kind }) => kind === 'exact') ? 'exact' : 'texts', form: joined(texts) };
}

/** Returns the form that `readPattern` found. */
export function formIn({ kind, form }: PatternReading): PatternForm {
  // Without a text, it matches no name.
  const texts = form === '' ? [] : form.split(SEPARATOR);
  if (kind === 'regex') {
    const [first = '', ...others] = texts;
    const side = first.startsWith('n') ? null : first.startsWith('s') ? 'start' : 'end';
    return { shapes: null, screen: { guard: side && { side, texts: others }, needs: first.slice(1) } };
  }
  return { shapes: texts.map(shapeOf), screen: null };
}

function shapeOf(text: string): Shape {
  const letter = text.charAt(0);
  const kind = KINDS.get(letter.toLowerCase());
  if (kind === undefined) throw new Error(`No shape has the letter ${letter}`);
  return { kind, text: text.slice(1), oneLine: letter !== letter.toLowerCase() };
}

/** Texts of a form have only printable characters (lower.ts). */
const SEPARATOR = '\0';

const joined = (texts: readonly string[]): string => copyOf(texts.join(SEPARATOR));

export function formOf(tree: Node): PatternForm {
  const shapes = lower(tree);
  return shapes === null ? { shapes, screen: screen(tree) } : { shapes, screen: null };
}

/** Returns null if the pattern is accepted, otherwise one sentence that says why not. Verdicts are cached. */
export type PatternCheck = (pattern: string) => string | null;

/** `runs`: whether the engine will run such a pattern, so that it must check it. */
export function createPatternCheck(
  isValid: IsValidPattern,
  runs: (reading: PatternReading) => boolean = () => true,
): PatternCheck {
  const judged = createRecent<string, string | null>(
    JUDGED_BYTES,
    (pattern, problem) => ENTRY_BYTES + pattern.length + (problem?.length ?? 0),
  );
  return (pattern) => {
    let problem = judged.get(pattern);
    if (problem === undefined) {
      const reading = readPattern(pattern);
      if (typeof reading === 'string') problem = reading;
      else problem = !runs(reading) || isValid(pattern) ? null : 'RE2 does not accept the pattern.';
      if (pattern.length <= MAX_PATTERN_LENGTH) judged.set(copyOf(pattern), problem);
    }
    return problem;
  };
}
