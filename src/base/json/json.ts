/**
 * Strict JSON: an accepted text has exactly one interpretation (RFC 8259 restricted as in I-JSON, RFC 7493). JSON.parse keeps the
 * last of two equal member names, accepts any depth and rounds numbers. Other parsers differ, so a check here could see different
 * values than the program that executes the request.
 */

export type JsonValue = null | boolean | number | string | JsonValue[] | JsonObject;
export interface JsonObject {
  [name: string]: JsonValue;
}

export interface JsonRules {
  readonly maxDepth: number;
  /** The maximum number of values of any kind, so that a small text cannot become a large heap. */
  readonly maxValues: number;
  /** Whether to also refuse values that parsers treat differently: numbers that a double cannot hold, and lone surrogates. */
  readonly exact: boolean;
  /** For values down to this depth (the root is 0), the position in the text is recorded. */
  readonly spanDepth: number;
}

export const REQUEST_RULES: JsonRules = { maxDepth: 64, maxValues: 200_000, exact: true, spanDepth: 0 };

/** The position of a value in its text. It allows the value to be passed on without serializing it again. */
export interface JsonSpan {
  readonly start: number;
  readonly end: number;
  /** The spans of the members, for an object above the span depth. */
  readonly members: ReadonlyMap<string, JsonSpan> | null;
  /** The spans of the items, for an array above the span depth. */
  readonly items: readonly JsonSpan[] | null;
}

/**
 * `reason` may be shown to the sender: it contains at most a member name from the text. `repeated` is the dotted path of a member
 * that its object has twice; null for any other fault. `values` is the number of values of any kind, `built` of those that were
 * built.
 */
export type JsonReading =
  | {
      readonly ok: true;
      readonly text: string;
      readonly value: JsonValue;
      readonly span: JsonSpan;
      readonly values: number;
      readonly built: number;
    }
  | { readonly ok: false; readonly reason: string; readonly repeated: string | null };

/** The reason without the member name, which may be a secret: a target can repeat a credential. */
export const namelessReason = (reason: string): string => reason.replace(/"(?:[^"\\]|\\.)*"/g, '"..."');

/** Not an `Error`: collecting a stack for each broken line of a target would take longer than reading it. */
class JsonFault {
  readonly reason: string;
  readonly repeated: string | null;

  constructor(reason: string, repeated: string | null) {
    this.reason = reason;
    this.repeated = repeated;
  }
}

const utf8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
/** Longer than any double or usual key needs. Reading longer numbers or names would block the thread for too long. */
const MAX_NUMBER_LENGTH = 4_096;
const MAX_NAME_LENGTH = 64 * 1024;
const LONG_NUMBER = `a number of more than ${MAX_NUMBER_LENGTH} characters`;
export const LONG_NAME = `a member name of more than ${MAX_NAME_LENGTH} characters`;
/** A double preserves every decimal with at most this many digits (IEEE 754: 15 significant digits). */
const SAFE_DIGITS = 15;
/** JSON.parse makes this an own property, but copying it by assignment would set the prototype. */
export const BAD_NAME = '__proto__';
const FEW_NAMES = 8;
/** How many characters of a name are shown to the sender. */
const SHOWN_LENGTH = 64;

export function isObject(value: JsonValue | undefined): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export const NOT_UTF8: JsonReading = { ok: false, reason: 'the text is not valid UTF-8', repeated: null };

/** Returns the bytes as text; null if they are not valid UTF-8. */
export function decodeUtf8(bytes: Uint8Array): string | null {
  try {
    return utf8.decode(bytes);
  } catch {
    return null;
  }
}

export function readJson(bytes: Uint8Array, rules: Partial<JsonRules> = {}): JsonReading {
  const text = decodeUtf8(bytes);
  return text === null ? NOT_UTF8 : readJsonText(text, rules);
}

export function readJsonText(text: string, rules: Partial<JsonRules> = {}): JsonReading {
  try {
    const scan = new Scan(text, rules);
    const span = scan.whole();
    return { ok: true, text, value: JSON.parse(text) as JsonValue, span, values: scan.values, built: scan.values };
  } catch (fault) {
    if (fault instanceof JsonFault) return { ok: false, reason: fault.reason, repeated: fault.repeated };
    throw fault;
  }
}

/** Checks one text. A class, because every message comes here: functions inside a function would be made for each text. */
class Scan {
  values = 0;
  private at = 0;
  private readonly text: string;
  private readonly maxDepth: number;
  private readonly maxValues: number;
  private readonly exact: boolean;
  private readonly spanDepth: number;
  /** The member or item being read at each depth. Entries below the current depth are stale. */
  private readonly path: (string | number)[] = [];

  constructor(text: string, rules: Partial<JsonRules>) {
    this.text = text;
    this.maxDepth = rules.maxDepth ?? REQUEST_RULES.maxDepth;
    this.maxValues = rules.maxValues ?? REQUEST_RULES.maxValues;
    this.exact = rules.exact ?? REQUEST_RULES.exact;
    this.spanDepth = rules.spanDepth ?? REQUEST_RULES.spanDepth;
  }

  whole(): JsonSpan {
    const { text } = this;
    if (text.charCodeAt(0) === 0xfeff) this.fail('a byte order mark');
    this.blank();
    const root = this.value(0);
    this.blank();
    if (this.at !== text.length) this.fail('text after the end of the value');
    return root ?? { start: 0, end: text.length, members: null, items: null };
  }

  private fail(what: string, repeated: string | null = null): never {
    throw new JsonFault(`${what} at offset ${this.at}`, repeated);
  }

  private failTwice(name: string, depth: number): never {
    const { what, repeated } = repeatedName([...this.path.slice(0, depth), name]);
    return this.fail(what, repeated);
  }

  /** Moves `at` behind blanks. Returns the code of the character there; NaN: the text has ended. */
  private blank(): number {
    for (;;) {
      const c = this.text.charCodeAt(this.at);
      if (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09) return c;
      this.at++;
    }
  }

  /** Moves `at` behind the closing quote. Returns whether the string has escapes. */
  private string(): boolean {
    const { text } = this;
    let hasEscapes = false;
    for (let at = this.at + 1; ; ) {
      const c = text.charCodeAt(at);
      if (c > 0x5c || (c >= 0x20 && c !== 0x22 && c !== 0x5c)) {
        at++;
        continue;
      }
      this.at = at;
      if (c === 0x22) {
        this.at++;
        return hasEscapes;
      }
      if (c !== 0x5c) this.fail(Number.isNaN(c) ? 'an unfinished string' : 'a control character in a string');
      hasEscapes = true;
      this.escaped();
      at = this.at;
    }
  }

  private escaped(): void {
    const { text } = this;
    const kind = text[this.at + 1];
    if (kind !== 'u') {
      if (kind === undefined || !'"\\/bfnrt'.includes(kind)) this.fail('a bad escape');
      this.at += 2;
      return;
    }
    const unit = this.hex();
    if (!this.exact) return;
    if (unit >= 0xdc00 && unit <= 0xdfff) this.fail('a lone surrogate');
    if (unit < 0xd800 || unit > 0xdbff) return;
    if (text[this.at] !== '\\' || text[this.at + 1] !== 'u') this.fail('a lone surrogate');
    const low = this.hex();
    if (low < 0xdc00 || low > 0xdfff) this.fail('a lone surrogate');
  }

  private hex(): number {
    const digits = this.text.slice(this.at + 2, this.at + 6);
    if (!/^[0-9a-fA-F]{4}$/.test(digits)) this.fail('a bad escape');
    this.at += 6;
    return Number.parseInt(digits, 16);
  }

  private number(): void {
    const read = numberAt(this.text, this.at, this.exact);
    if ('refused' in read) this.fail(read.refused);
    else this.at += read.literal.length;
  }

  private word(expected: string): void {
    if (!this.text.startsWith(expected, this.at)) this.fail('an unexpected character');
    this.at += expected.length;
  }

  private value(depth: number): JsonSpan | null {
    if (++this.values > this.maxValues) this.fail(`more than ${this.maxValues} values`);
    const start = this.at;
    let members: Map<string, JsonSpan> | null = null;
    let items: JsonSpan[] | null = null;
    switch (this.text[start]) {
      case '{':
        members = this.object(depth);
        break;
      case '[':
        items = this.array(depth);
        break;
      case '"':
        this.string();
        break;
      case 't':
        this.word('true');
        break;
      case 'f':
        this.word('false');
        break;
      case 'n':
        this.word('null');
        break;
      case undefined:
        return this.fail('the text ends too early');
      default:
        this.number();
    }
    return depth <= this.spanDepth ? { start, end: this.at, members, items } : null;
  }

  private object(depth: number): Map<string, JsonSpan> | null {
    const { text } = this;
    if (depth >= this.maxDepth) this.fail(`deeper than ${this.maxDepth} levels`);
    const members = depth < this.spanDepth ? new Map<string, JsonSpan>() : null;
    const few: string[] = [];
    let many: Set<string> | null = null;
    this.at++;
    if (this.blank() === 0x7d) {
      this.at++;
      return members;
    }
    for (;;) {
      const from = this.at;
      if (text[from] !== '"') this.fail('a member name is missing');
      const hasEscapes = this.string();
      if (isLongName(from, this.at)) this.fail(LONG_NAME);
      const name = hasEscapes ? (JSON.parse(text.slice(from, this.at)) as string) : text.slice(from + 1, this.at - 1);
      if (name === BAD_NAME) this.fail(`the member name ${BAD_NAME}`);
      if (many === null ? few.includes(name) : many.has(name)) this.failTwice(name, depth);
      if (many !== null) many.add(name);
      else if (few.push(name) > FEW_NAMES) many = new Set(few);
      if (this.blank() !== 0x3a) this.fail('a colon is missing');
      this.at++;
      this.blank();
      this.path[depth] = name;
      const span = this.value(depth + 1);
      if (members !== null && span !== null) members.set(name, span);
      const next = this.blank();
      if (next !== 0x7d && next !== 0x2c) this.fail('a comma or a closing brace is missing');
      this.at++;
      if (next === 0x7d) return members;
      this.blank();
    }
  }

  private array(depth: number): JsonSpan[] | null {
    if (depth >= this.maxDepth) this.fail(`deeper than ${this.maxDepth} levels`);
    const items: JsonSpan[] | null = depth < this.spanDepth ? [] : null;
    this.at++;
    if (this.blank() === 0x5d) {
      this.at++;
      return items;
    }
    for (let index = 0; ; index++) {
      this.path[depth] = index;
      const span = this.value(depth + 1);
      if (items !== null && span !== null) items.push(span);
      const next = this.blank();
      if (next !== 0x5d && next !== 0x2c) this.fail('a comma or a closing bracket is missing');
      this.at++;
      if (next === 0x5d) return items;
      this.blank();
    }
  }
}

/** Returns the refusal of an object that has a member twice. The path leads from the root to the name. */
export function repeatedName(path: readonly (string | number)[]): { readonly what: string; readonly repeated: string } {
  const shown = path.map((part) => String(part).slice(0, SHOWN_LENGTH));
  return { what: `a second member ${JSON.stringify(shown.at(-1))}`, repeated: shown.join('.') };
}

/** Whether the name between these offsets, quotes included, is too long. */
export function isLongName(from: number, to: number): boolean {
  return to - from - 2 > MAX_NAME_LENGTH;
}

/** Returns the number that begins at the offset, or why it is refused. */
export function numberAt(text: string, at: number, exact: boolean): { readonly literal: string } | { readonly refused: string } {
  if (text.length - at > MAX_NUMBER_LENGTH && isLongNumber(text, at)) return { refused: LONG_NUMBER };
  NUMBER.lastIndex = at;
  const literal = NUMBER.exec(text)?.[0];
  if (literal === undefined) return { refused: 'an unexpected character' };
  if (exact && !survivesDouble(literal)) return { refused: 'a number that does not survive a round trip' };
  return { literal };
}

function isLongNumber(text: string, at: number): boolean {
  let length = 0;
  while (length <= MAX_NUMBER_LENGTH && isInNumbers(text.charCodeAt(at + length))) length++;
  return length > MAX_NUMBER_LENGTH;
}

function isInNumbers(c: number): boolean {
  return (c >= 0x30 && c <= 0x39) || c === 0x2d || c === 0x2b || c === 0x2e || (c | 0x20) === 0x65;
}

function survivesDouble(literal: string): boolean {
  if (literal.length <= SAFE_DIGITS && !/[eE]/.test(literal)) return true;
  const value = Number(literal);
  return Number.isFinite(value) && decimal(literal) === decimal(String(value));
}

/** Returns a canonical text for a decimal value: significant digits and exponent, with zeros trimmed. */
function decimal(literal: string): string {
  const [mantissa = '', exponent = '0'] = literal.toLowerCase().split('e');
  const negative = mantissa.startsWith('-');
  const [whole = '', fraction = ''] = (negative ? mantissa.slice(1) : mantissa).split('.');
  const digits = (whole + fraction).replace(/^0+/, '');
  // Not the regex /0+$/: its cost is quadratic in a run of zeros that does not end the text.
  let end = digits.length;
  while (digits[end - 1] === '0') end--;
  const significant = digits.slice(0, end);
  if (significant === '') return '0';
  const scale = Number(exponent) - fraction.length + (digits.length - significant.length);
  return `${negative ? '-' : ''}${significant}e${scale}`;
}
