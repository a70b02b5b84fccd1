/**
 * Reads strict JSON like `json.ts`, but for large texts and in steps, between which other work runs. Verdict, spans and values
 * are the same. Values that are not looked at are not built, so that a text of many values does not become a large heap: `built.ts`.
 */
import { copyOf, createBuilder, type Frame, nameOf, type Selection } from './built.ts';
import {
  BAD_NAME,
  isLongName,
  type JsonReading,
  type JsonRules,
  type JsonValue,
  LONG_NAME,
  numberAt,
  REQUEST_RULES,
  repeatedName,
} from './json.ts';
import { createOpenNames, HASH_BEGIN, hashOf, hashStep } from './names.ts';

type State = 'value' | 'firstName' | 'name' | 'inName' | 'colon' | 'firstItem' | 'inString' | 'after';

/** The meaning of the characters after a backslash. */
const ESCAPES = new Map(
  [...'"\\/bfnrt'].map((kind) => [kind.charCodeAt(0), (JSON.parse(`"\\${kind}"`) as string).charCodeAt(0)]),
);
const BAD_HASH = hashOf(BAD_NAME);
/**
 * Characters that stand for themselves in a string: from U+0020 on, without the quote and the backslash. For many of them, the
 * expression is several times faster than a loop.
 */
const PLAIN = /[ !#-[\]-\uffff]*/y;
/** After this many, a string may have many more. */
const SHORT = 32;
/** A string with escapes is decoded in parts of this many characters; the rest is decoded at its end. */
const DECODED_LENGTH = 16 * 1024;
/** JSON.stringify takes 50 ns for each surrogate without a partner, and writes a whole value in one step. */
const MAX_LONE = 10_000;

export function readInSteps(text: string, rules: Partial<JsonRules>, selection: Selection) {
  const { maxDepth, maxValues, exact, spanDepth } = { ...REQUEST_RULES, ...rules };
  const { length } = text;
  const names = createOpenNames(text);
  const builder = createBuilder(text, spanDepth, selection);
  const { frames } = builder;
  let frame: Frame | null = null;
  let at = 0;
  let state: State = 'value';
  let values = 0;
  let stringStart = 0;
  let hasEscapes = false;
  /** For a long string with escapes: the decoded part, and where it ends. */
  let decoded = '';
  let decodedEnd = 0;
  /** Surrogates without a partner so far, and where the last escape of a high one ends. */
  let lone = 0;
  let highEnd = -1;
  let hash = 0;
  let reading: JsonReading | null = null;

  function fail(what: string, repeated: string | null = null): false {
    reading = { ok: false, reason: `${what} at offset ${at}`, repeated };
    return false;
  }

  function blank(until: number): void {
    const limit = until < length ? until : length;
    while (at < limit) {
      const c = text.charCodeAt(at);
      if (c !== 0x20 && c !== 0x0a && c !== 0x0d && c !== 0x09) return;
      at++;
    }
  }

  /**
   * Decodes the string up to `at` if a long part is not decoded yet. Decoding all of it at its end would take too long. `at` must
   * be between two characters.
   */
  function decodeLong(): void {
    if (builder.isBuilding() && at - decodedEnd > DECODED_LENGTH) decode(at);
  }

  function decode(end: number): void {
    const part = text.slice(decodedEnd, end);
    decoded += hasEscapes ? (JSON.parse(`"${part}"`) as string) : part;
    decodedEnd = end;
  }

  function stringValue(): string {
    const [start, contentEnd] = [stringStart + 1, at - 1];
    if (decodedEnd === start) return copyOf(text, start, contentEnd, hasEscapes);
    decode(contentEnd);
    return decoded;
  }

  function open(isObject: boolean): boolean {
    if (frames.length >= maxDepth) return fail(`deeper than ${maxDepth} levels`);
    frame = builder.open(isObject, at, isObject ? names.begin() : 0);
    at++;
    state = isObject ? 'firstName' : 'firstItem';
    return true;
  }

  function close(closed: Frame): boolean {
    at++;
    state = 'after';
    if (closed.isObject) names.end(closed.names);
    const fault = builder.close(at);
    frame = frames.at(-1) ?? null;
    return fault === null || fail(fault);
  }

  /** Ends a value at `at` and adds it to the innermost open container. */
  function end(start: number, value: JsonValue): boolean {
    state = 'after';
    const fault = builder.add(start, at, value);
    return fault === null || fail(fault);
  }

  function begin(): boolean {
    if (++values > maxValues) return fail(`more than ${maxValues} values`);
    const c = text.charCodeAt(at);
    switch (c) {
      case 0x7b:
        return open(true);
      case 0x5b:
        return open(false);
      case 0x22:
        stringStart = at++;
        hasEscapes = false;
        decoded = '';
        decodedEnd = at;
        state = 'inString';
        return true;
      case 0x74:
        return word('true', true);
      case 0x66:
        return word('false', false);
      case 0x6e:
        return word('null', null);
      default:
        return at >= length ? fail('the text ends too early') : number();
    }
  }

  function word(expected: string, value: JsonValue): boolean {
    if (!text.startsWith(expected, at)) return fail('an unexpected character');
    const start = at;
    at += expected.length;
    return end(start, value);
  }

  function number(): boolean {
    const read = numberAt(text, at, exact);
    if ('refused' in read) return fail(read.refused);
    const start = at;
    at += read.literal.length;
    return end(start, builder.isBuilding() ? Number(read.literal) : 0);
  }

  function skipPlain(limit: number): void {
    PLAIN.lastIndex = 0;
    PLAIN.test(text.slice(at, limit));
    at += PLAIN.lastIndex;
  }

  /** Reads a string. True: `at` is after its closing quote. False: there is more to read, or a verdict. */
  function string(until: number, isName: boolean): boolean {
    const limit = until < length ? until : length;
    for (let plain = 1; at < limit; plain++) {
      const c = text.charCodeAt(at);
      if (c === 0x22) {
        at++;
        return true;
      }
      if (c === 0x5c) {
        if (!hasEscapes && !isName) decodeLong();
        hasEscapes = true;
        if (!escaped()) return false;
      } else if (c < 0x20) return fail('a control character in a string');
      else {
        if (isName) hash = hashStep(hash, c);
        at++;
        if (!isName && plain % SHORT === 0) skipPlain(limit);
      }
    }
    if (at >= length) return fail('an unfinished string');
    if (hasEscapes && !isName) decodeLong();
    return false;
  }

  /** Reads an escape. The hash uses the decoded character. */
  function escaped(): boolean {
    const kind = text.charCodeAt(at + 1);
    if (kind !== 0x75) {
      const meant = ESCAPES.get(kind);
      if (meant === undefined) return fail('a bad escape');
      hash = hashStep(hash, meant);
      at += 2;
      return true;
    }
    const unit = hex();
    if (unit === -1) return fail('a bad escape');
    if (!exact) return countLone(unit);
    if (unit >= 0xdc00 && unit <= 0xdfff) return fail('a lone surrogate');
    if (unit < 0xd800 || unit > 0xdbff) return true;
    if (text.charCodeAt(at) !== 0x5c || text.charCodeAt(at + 1) !== 0x75) return fail('a lone surrogate');
    const low = hex();
    if (low === -1) return fail('a bad escape');
    return (low >= 0xdc00 && low <= 0xdfff) || fail('a lone surrogate');
  }

  /** `at` is after the escape of this unit. */
  function countLone(unit: number): boolean {
    const [isHigh, isLow] = [unit >= 0xd800 && unit <= 0xdbff, unit >= 0xdc00 && unit <= 0xdfff];
    if (isLow && highEnd === at - 6) lone--;
    else if (isHigh || isLow) lone++;
    highEnd = isHigh ? at : -1;
    return lone <= MAX_LONE || fail(`more than ${MAX_LONE} lone surrogates`);
  }

  /** Returns the value of four hex digits; -1 if there are not four. */
  function hex(): number {
    let unit = 0;
    for (let i = at + 2; i < at + 6; i++) {
      const c = text.charCodeAt(i);
      const lower = c | 0x20;
      if (c >= 0x30 && c <= 0x39) unit = unit * 16 + c - 0x30;
      else if (lower >= 0x61 && lower <= 0x66) unit = unit * 16 + lower - 0x57;
      else return -1;
    }
    at += 6;
    hash = hashStep(hash, unit);
    return unit;
  }

  function endName(of: Frame): boolean {
    const [start, nameEnd] = [stringStart + 1, at - 1];
    of.nameStart = start;
    of.nameEnd = nameEnd;
    of.nameHasEscapes = hasEscapes;
    if (isLongName(stringStart, at)) return fail(LONG_NAME);
    if (hash === BAD_HASH && nameOf(text, of) === BAD_NAME) return fail(`the member name ${BAD_NAME}`);
    if (!names.add(of.names, hash, start, nameEnd, hasEscapes)) {
      const { what, repeated } = repeatedName(frames.map((outer) => (outer.isObject ? nameOf(text, outer) : outer.index)));
      return fail(what, repeated);
    }
    state = 'colon';
    return true;
  }

  function finish(): boolean {
    if (at !== length) return fail('text after the end of the value');
    const root = builder.root();
    if (root === null) throw new Error('The text has no value');
    const { value, span } = root;
    reading = { ok: true, text, value, span, values, built: builder.count() };
    return false;
  }

  /** Takes one step. False: it stopped at `until` or at a verdict. */
  function step(until: number): boolean {
    switch (state) {
      case 'inString': {
        if (!string(until, false)) return false;
        return end(stringStart, builder.isBuilding() ? stringValue() : '');
      }
      case 'inName':
        return string(until, true) && endName(frame as Frame);
      default:
    }
    blank(until);
    if (at >= until && at < length) return false;
    const c = text.charCodeAt(at);
    switch (state) {
      case 'value':
        return begin();
      case 'firstItem':
        return c === 0x5d ? close(frame as Frame) : begin();
      case 'firstName':
      case 'name':
        if (c === 0x7d && state === 'firstName') return close(frame as Frame);
        if (c !== 0x22) return fail('a member name is missing');
        stringStart = at++;
        hasEscapes = false;
        hash = HASH_BEGIN;
        state = 'inName';
        return true;
      case 'colon':
        if (c !== 0x3a) return fail('a colon is missing');
        at++;
        state = 'value';
        return true;
      case 'after': {
        if (frame === null) return finish();
        if (c === (frame.isObject ? 0x7d : 0x5d)) return close(frame);
        if (c !== 0x2c) return fail(`a comma or a closing ${frame.isObject ? 'brace' : 'bracket'} is missing`);
        at++;
        frame.index++;
        state = frame.isObject ? 'name' : 'value';
        return true;
      }
    }
  }

  if (text.charCodeAt(0) === 0xfeff) fail('a byte order mark');
  return {
    /** Reads at least to this offset, or to the verdict. Returns whether there is a verdict. */
    advance(until: number): boolean {
      while (reading === null && step(until)) {
        // Each step is short.
      }
      return reading !== null;
    },
    /** The result. Read it only after the verdict. */
    get reading(): JsonReading {
      if (reading === null) throw new Error('The text has not been read to its end');
      return reading;
    },
  };
}
