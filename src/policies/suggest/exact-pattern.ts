/** Patterns that match given names and nothing else. */
import { MAX_TEXTS } from '../../engine/compile/lower.ts';
import { formIn, MAX_PATTERN_LENGTH, readPattern } from '../../engine/compile/pattern.ts';

export interface ExactPattern {
  readonly pattern: string;
  readonly names: readonly string[];
}

/** Matches the empty text, which no request can name. An allow with it lets its callers use the target, and no object of it. */
export const NO_NAME = '^$';

const META = /[\\.+*?()|[\]{}^$]/u;
/** Characters that a reviewer cannot see, or takes for an ordinary space. */
const UNSEEN = /(?! )[\p{C}\p{Z}\p{Default_Ignorable_Code_Point}]/u;

/** A name with the part of a pattern that matches it. */
interface Part {
  readonly name: string;
  readonly form: string;
}

/** Returns few patterns, in the order of the names. `inexpressible`: names that no pattern within the limits matches exactly. */
export function exactPatterns(names: Iterable<string>): {
  readonly exact: readonly ExactPattern[];
  readonly inexpressible: readonly string[];
} {
  const exact: ExactPattern[] = [];
  const inexpressible: string[] = [];
  let open: Part[] = [];
  let length = 0;
  const close = (): void => {
    exact.push(...checked(open));
    open = [];
    length = 0;
  };
  for (const name of [...new Set(names)].sort()) {
    const forms = [escaped(name), ...(UNSEEN.test(name) ? [] : [quoted(name)])];
    const form = forms.find((each) => isExact(together([{ name, form: each }])));
    if (form === undefined) {
      inexpressible.push(name);
      continue;
    }
    const longer = [...form].length + 1;
    if (open.length === MAX_TEXTS || length + longer > MAX_PATTERN_LENGTH - '^()$'.length) close();
    open.push({ name, form });
    length += longer;
  }
  close();
  return { exact, inexpressible };
}

/** Splits what exceeds a different limit than the length. Each part is exact alone. */
function checked(parts: readonly Part[]): ExactPattern[] {
  if (parts.length === 0) return [];
  const whole = together(parts);
  if (parts.length === 1 || isExact(whole)) return [whole];
  const middle = Math.ceil(parts.length / 2);
  return [...checked(parts.slice(0, middle)), ...checked(parts.slice(middle))];
}

function together(parts: readonly Part[]): ExactPattern {
  const forms = parts.map(({ form }) => form).join('|');
  return { pattern: parts.length === 1 ? `^${forms}$` : `^(${forms})$`, names: parts.map(({ name }) => name) };
}

const escaped = (name: string): string =>
  [...name]
    .map((character) => {
      if (META.test(character)) return `\\${character}`;
      if (!UNSEEN.test(character)) return character;
      return `\\x{${(character.codePointAt(0) ?? 0).toString(16)}}`;
    })
    .join('');

/** A shorter form of names with many special characters. */
const quoted = (name: string): string => `\\Q${name.replaceAll('\\E', '\\E\\\\E\\Q')}\\E`;

/** Whether the compiler reads the pattern as comparisons with exactly these names. */
export function isExact({ pattern, names }: ExactPattern): boolean {
  const reading = readPattern(pattern);
  if (typeof reading === 'string' || reading.kind !== 'exact') return false;
  const texts = new Set(formIn(reading).shapes?.map(({ text }) => text));
  return texts.size === new Set(names).size && names.every((name) => texts.has(name));
}
