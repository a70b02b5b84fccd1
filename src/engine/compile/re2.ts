/**
 * Parses RE2 syntax strictly. An accepted pattern means the same to the RE2 inside OPA's WASM and to Go's regexp. The parser
 * refuses every construct that the two read, or may read, differently.
 */
import {
  ANY,
  ANY_BUT_NEWLINE,
  byteRanges,
  CONTROLS,
  fold,
  LAST,
  negate,
  normalize,
  PERL,
  POSIX,
  type Ranges,
} from './characters.ts';

export type Node =
  | { readonly kind: 'chars'; readonly ranges: Ranges }
  | { readonly kind: 'assert'; readonly at: 'text_start' | 'text_end' | 'line_start' | 'line_end' | 'word_edge' }
  | { readonly kind: 'concat'; readonly items: readonly Node[] }
  | { readonly kind: 'alternate'; readonly items: readonly Node[] }
  /** `lazy`: RE2 prefers few repetitions. It changes what RE2 does, but not which names match. */
  | { readonly kind: 'repeat'; readonly item: Node; readonly min: number; readonly max: number | null; readonly lazy?: true };

/** Its message is one sentence for the author of the pattern. */
export class PatternSyntaxError extends Error {
  constructor(message: string) {
    super(message);
    this.name = 'PatternSyntaxError';
  }
}

/** RE2's own limit for a repetition count. */
const MAX_REPEAT = 1000;

interface Flags {
  readonly fold: boolean;
  readonly dotAll: boolean;
  readonly multiline: boolean;
  readonly swapLazy: boolean;
}

/** Throws `PatternSyntaxError`. */
export function parse(pattern: string): Node {
  const runes = [...pattern];
  const names = new Set<string>();
  let at = 0;
  let flags: Flags = { fold: false, dotAll: false, multiline: false, swapLazy: false };

  const fail = (message: string): never => {
    throw new PatternSyntaxError(message);
  };
  const unknownEscape = (letter: string | undefined): never =>
    fail(letter === undefined ? 'The pattern ends with a backslash.' : `RE2 has no escape \\${letter}.`);

  const inCase = (ranges: Ranges): Ranges => (flags.fold ? fold(ranges) : normalize(ranges));
  /** RE2 folds the case before it negates. */
  const signed = (ranges: Ranges, negative: boolean): Ranges => (negative ? negate(inCase(ranges)) : inCase(ranges));
  const requireAsciiUnderFold = (code: number): number => {
    if (flags.fold && code > 127)
      fail('(?i) cannot be used with characters outside ASCII, because engines fold their case differently.');
    return code;
  };

  function alternation(): Node {
    const branches = [sequence()];
    while (runes[at] === '|') {
      at++;
      branches.push(sequence());
    }
    const [only] = branches;
    return branches.length === 1 && only !== undefined ? only : { kind: 'alternate', items: branches };
  }

  function sequence(): Node {
    const items: Node[] = [];
    while (at < runes.length && runes[at] !== '|' && runes[at] !== ')') {
      if (runes[at] === '\\' && runes[at + 1] === 'Q') {
        quoted(items);
        continue;
      }
      const item = atom();
      if (item === null) {
        if (repetition() !== null) fail('A repetition cannot follow a flag.');
        continue;
      }
      const times = repetition();
      if (times !== null && repetition() !== null) fail('A repetition cannot be repeated directly; put it in a group.');
      items.push(times === null ? item : { kind: 'repeat', item, ...times });
    }
    const [only] = items;
    return items.length === 1 && only !== undefined ? only : { kind: 'concat', items };
  }

  function quoted(items: Node[]): void {
    at += 2;
    while (at < runes.length && !(runes[at] === '\\' && runes[at + 1] === 'E')) items.push(literal());
    if (at >= runes.length) fail('A \\Q has no \\E.');
    at += 2;
    if (repetition() !== null) fail('A repetition cannot follow \\E; put the quoted text in a group.');
  }

  function literal(): Node {
    const code = requireAsciiUnderFold(runes[at++]?.codePointAt(0) ?? 0);
    return { kind: 'chars', ranges: inCase([[code, code]]) };
  }

  /** null: flags, which match nothing themselves. */
  function atom(): Node | null {
    const rune = runes[at];
    switch (rune) {
      case '(':
        return group();
      case '[':
        return set();
      case '.':
        at++;
        return { kind: 'chars', ranges: flags.dotAll ? ANY : ANY_BUT_NEWLINE };
      case '^':
        at++;
        return { kind: 'assert', at: flags.multiline ? 'line_start' : 'text_start' };
      case '$':
        at++;
        return { kind: 'assert', at: flags.multiline ? 'line_end' : 'text_end' };
      case '\\':
        return escaped();
      case '*':
      case '+':
      case '?':
        return fail(`There is nothing before ${rune} to repeat.`);
      default:
        if (rune === '{' && repetition() !== null) fail('There is nothing before { to repeat.');
        return literal();
    }
  }

  function repetition(): { min: number; max: number | null; lazy?: true } | null {
    const rune = runes[at];
    let times: { min: number; max: number | null };
    if (rune === '*') times = { min: 0, max: null };
    else if (rune === '+') times = { min: 1, max: null };
    else if (rune === '?') times = { min: 0, max: 1 };
    else {
      const counted = rune === '{' ? /^\{(\d+)(?:(,)(\d*))?\}/.exec(runes.slice(at, at + 16).join('')) : null;
      if (counted === null) return null;
      const min = Number(counted[1]);
      const max = counted[2] === undefined ? min : counted[3] === '' ? null : Number(counted[3]);
      if (min > MAX_REPEAT || (max ?? 0) > MAX_REPEAT) fail(`A repetition count may be at most ${MAX_REPEAT} in RE2.`);
      if (max !== null && max < min) fail(`The repetition ${counted[0]} has a maximum below its minimum.`);
      times = { min, max };
      at += counted[0].length - 1;
    }
    at++;
    const marked = runes[at] === '?';
    if (marked) at++;
    return marked === flags.swapLazy ? times : { ...times, lazy: true };
  }

  function group(): Node | null {
    at++;
    const outer = flags;
    if (runes[at] === '?') {
      const head = runes.slice(at, at + 300).join('');
      if (/^\?<?[=!]/.test(head)) fail('RE2 has no lookahead or lookbehind.');
      if (/^\?>/.test(head)) fail('RE2 has no atomic groups.');
      const named = /^\?P<(\w+)>/.exec(head);
      const flagged = /^\?([imsU]*)(?:-([imsU]+))?([:)])/.exec(head);
      if (named?.[1] !== undefined) {
        if (names.has(named[1])) fail(`Two groups are named ${named[1]}.`);
        names.add(named[1]);
        at += named[0].length;
      } else if (flagged !== null && flagged[0] !== '?)') {
        at += flagged[0].length;
        const set = (flag: string, before: boolean): boolean =>
          flagged[2]?.includes(flag) === true ? false : before || flagged[1]?.includes(flag) === true;
        flags = {
          fold: set('i', outer.fold),
          dotAll: set('s', outer.dotAll),
          multiline: set('m', outer.multiline),
          swapLazy: set('U', outer.swapLazy),
        };
        if (flagged[3] === ')') return null;
      } else fail('After (?, RE2 only supports (?:...), (?P<name>...) and the flags i, m, s and U.');
    }
    const inside = alternation();
    if (runes[at] !== ')') fail('A group is not closed.');
    at++;
    flags = outer;
    return inside;
  }

  function escaped(): Node {
    const letter = runes[at + 1];
    const lower = letter?.toLowerCase() ?? '';
    // RE2 also looks for \B between the bytes of a character.
    if (letter === 'B') fail('\\B is refused, because engines disagree on it next to characters outside ASCII.');
    if (letter === 'b') {
      at += 2;
      return { kind: 'assert', at: 'word_edge' };
    }
    if (letter === 'A' || letter === 'z') {
      at += 2;
      return { kind: 'assert', at: letter === 'A' ? 'text_start' : 'text_end' };
    }
    const perl = PERL.get(lower);
    if (letter !== undefined && perl !== undefined) {
      at += 2;
      return { kind: 'chars', ranges: signed(perl, letter !== lower) };
    }
    const code = requireAsciiUnderFold(escapedCharacter());
    return { kind: 'chars', ranges: inCase([[code, code]]) };
  }

  /** At a backslash: returns the one character that the escape means, inside a set or outside. */
  function escapedCharacter(): number {
    const rest = runes.slice(at + 1, at + 16).join('');
    const letter = runes[at + 1];
    if (letter === undefined) return unknownEscape(letter);
    if (letter === 'p' || letter === 'P')
      fail(
        'Unicode classes (\\p, \\P) are refused, because engines support different versions of Unicode. Use an explicit range such as [A-Za-z].',
      );
    if (letter === 'C') fail('\\C is refused, because it can match half a character.');
    const numeric = /^(?:x(?:([0-9A-Fa-f]{2})|\{([0-9A-Fa-f]{1,8})\})|(0[0-7]{0,2}|[1-7][0-7]{1,2}))/.exec(rest);
    if (numeric !== null) {
      at += 1 + numeric[0].length;
      const code =
        numeric[3] !== undefined ? Number.parseInt(numeric[3], 8) : Number.parseInt(numeric[1] ?? numeric[2] ?? '', 16);
      if (code > LAST) fail(`\\${numeric[0]} is beyond the last Unicode character.`);
      if (code >= 0xd800 && code <= 0xdfff) fail(`\\${numeric[0]} is half a surrogate pair, not a character.`);
      return code;
    }
    if (/^[1-9]/.test(letter)) fail('RE2 has no back-references.');
    const control = CONTROLS.get(letter);
    if (control === undefined && !/^[!-/:-@[-`{-~ ]$/.test(letter)) return unknownEscape(letter);
    at += 2;
    return control ?? letter.charCodeAt(0);
  }

  function set(): Node {
    at++;
    const negated = runes[at] === '^';
    if (negated) at++;
    const ranges: (readonly [number, number])[] = [];
    for (let first = true; first || runes[at] !== ']'; first = false) {
      if (at >= runes.length) fail('A set [...] is not closed.');
      const group = groupInSet();
      if (group !== null) ranges.push(...group);
      else {
        const low = characterInSet();
        const isRange = runes[at] === '-' && at + 1 < runes.length && runes[at + 1] !== ']';
        if (isRange) at++;
        const high = isRange ? characterInSet() : low;
        if (high < low) fail('A range in a set ends before it begins.');
        ranges.push([low, high]);
      }
    }
    at++;
    return { kind: 'chars', ranges: signed(ranges, negated) };
  }

  function groupInSet(): Ranges | null {
    const posix = /^\[:(\^?)([^:\]]*):\]/.exec(runes.slice(at, at + 16).join(''));
    if (posix !== null) {
      const known = POSIX.get(posix[2] ?? '') ?? fail(`RE2 has no class ${posix[0]}.`);
      at += posix[0].length;
      return signed(known, posix[1] === '^');
    }
    if (runes[at] === '[' && runes[at + 1] === ':')
      fail('Inside a set, [: starts a class such as [:alpha:]. Escape the bracket.');
    const letter = runes[at] === '\\' ? runes[at + 1] : undefined;
    const perl = PERL.get(letter?.toLowerCase() ?? '');
    if (letter === undefined || perl === undefined) return null;
    at += 2;
    return signed(perl, letter !== letter.toLowerCase());
  }

  function characterInSet(): number {
    if (at >= runes.length) fail('A set [...] is not closed.');
    if (runes[at] === '\\') return requireAsciiUnderFold(escapedCharacter());
    return requireAsciiUnderFold(runes[at++]?.codePointAt(0) ?? 0);
  }

  const tree = alternation();
  if (at < runes.length) fail('A ) has no matching (.');
  if (repetitions(tree) > MAX_REPEAT) fail(`Nested repetitions may multiply to at most ${MAX_REPEAT} in RE2.`);
  return tree;
}

/** Returns how often counted repetitions copy the most repeated part into the program. */
function repetitions(node: Node): number {
  switch (node.kind) {
    case 'chars':
    case 'assert':
      return 1;
    case 'concat':
    case 'alternate':
      return node.items.reduce((most, item) => Math.max(most, repetitions(item)), 1);
    case 'repeat':
      return Math.max(1, node.max ?? node.min) * repetitions(node.item);
  }
}

/**
 * Estimates the cost to compile and run a pattern, the same on every machine. The unit is RE2's own: the UTF-8 byte ranges of
 * each character, times the repetitions. The length of the pattern says little: `.{1,1000}` has nine characters.
 */
export function cost(node: Node): number {
  switch (node.kind) {
    case 'chars':
      return Math.max(
        1,
        node.ranges.reduce((sum, [low, high]) => sum + byteRanges(low, high), 0),
      );
    case 'assert':
      return 1;
    case 'concat':
      return node.items.reduce((sum, item) => sum + cost(item), 1);
    case 'alternate':
      return node.items.reduce((sum, item) => sum + cost(item) + 1, 0);
    case 'repeat':
      return (cost(node.item) + 1) * Math.max(1, node.max ?? node.min + 1);
  }
}
