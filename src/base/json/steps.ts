/**
 * Reads strict JSON like `json.ts`, but for large texts and in steps, between which other work runs. Verdict, spans and values
 * are the same. Values that are not looked at are not built, so that a text of many values does not become a large heap.
 */
import {
  BAD_NAME,
  isLongName,
  type JsonObject,
  type JsonReading,
  type JsonRules,
  type JsonSpan,
  type JsonValue,
  LONG_NAME,
  numberAt,
  REQUEST_RULES,
  repeatedName,
} from './json.ts';
import { createOpenNames, HASH_BEGIN, hashOf, hashStep } from './names.ts';

/** Thrown when code reads a value that was not built. The caller must treat it as a deny. */
export class UnreadFault extends Error {
  constructor() {
    super('a part of the message that holds too many values cannot be read');
    this.name = 'UnreadFault';
  }
}

function unread(): never {
  throw new UnreadFault();
}
const TRAPS: ProxyHandler<object> = {
  get: unread,
  has: unread,
  ownKeys: unread,
  getOwnPropertyDescriptor: unread,
  getPrototypeOf: unread,
};
/** The stand-ins for an object and an array that were not built. */
const UNREAD_OBJECT = new Proxy({}, TRAPS) as JsonObject;
const UNREAD_ARRAY = new Proxy([], TRAPS) as JsonValue[];

/** Returns the result of `look`. null: `look` reads a part that was not built. */
export function unlessUnread<T>(look: () => T): T | null {
  try {
    return look();
  } catch (fault) {
    if (fault instanceof UnreadFault) return null;
    throw fault;
  }
}

/** Whether the value was not built and exists only in the text, at its span. */
export function isUnread(value: JsonValue | undefined): boolean {
  return value === UNREAD_OBJECT || value === UNREAD_ARRAY;
}

/**
 * Which values are built. The message, its `params`, `result` or `error`, and the lists in these that `lists` names are always
 * built. Each element of such a list is an item, and so is any other value inside `params`, `result` or `error`.
 */
export interface Selection {
  /** The names of members in `params` or `result` that hold long lists. */
  readonly lists: ReadonlySet<string>;
  /** Objects and arrays under these names are not built. */
  readonly skipped: ReadonlySet<string>;
  /** An object outside of items with more members than this is refused. */
  readonly members: number;
  /** An item with more values than this is not built. */
  readonly itemValues: number;
  /** A text is refused if more values than this would be built. */
  readonly builtValues: number;
}

type State = 'value' | 'firstName' | 'name' | 'inName' | 'colon' | 'firstItem' | 'inString' | 'after';

/** The meaning of the characters after a backslash. */
const ESCAPES = new Map(
  [...'"\\/bfnrt'].map((kind) => [kind.charCodeAt(0), (JSON.parse(`"\\${kind}"`) as string).charCodeAt(0)]),
);
const BAD_HASH = hashOf(BAD_NAME);
/** Strings up to this length are copied. */
const COPIED_LENGTH = 1_024;
/** A string with escapes is decoded in parts of this many characters; the rest is decoded at its end. */
const DECODED_LENGTH = 16 * 1024;

/** An open object or array. */
interface Frame {
  readonly isObject: boolean;
  readonly start: number;
  /** null: the value is not built. */
  object: JsonObject | null;
  array: JsonValue[] | null;
  members: Map<string, JsonSpan> | null;
  items: JsonSpan[] | null;
  /** The base of `OpenNames`. */
  readonly names: number;
  index: number;
  /** The offsets of the last name, without its quotes. */
  nameStart: number;
  nameEnd: number;
  nameHasEscapes: boolean;
}

export function readInSteps(text: string, rules: Partial<JsonRules>, selection: Selection) {
  const { maxDepth, maxValues, exact, spanDepth } = { ...REQUEST_RULES, ...rules };
  const { length } = text;
  const names = createOpenNames(text);
  const frames: Frame[] = [];
  let frame: Frame | null = null;
  let at = 0;
  let state: State = 'value';
  let values = 0;
  let built = 0;
  /** The depth of the object or array that is not built. Nothing in it is built. */
  let skippedDepth = -1;
  let itemDepth = -1;
  let itemBuilt = 0;
  /** All values of containers down to this depth are built. */
  let spine = 1;
  let stringStart = 0;
  let hasEscapes = false;
  /** For a long string with escapes: the decoded part, and where it ends. */
  let decoded = '';
  let decodedEnd = 0;
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

  function copyOf(start: number, end: number, escapes: boolean): string {
    // A slice keeps the whole text in memory while it lives, so short strings are copied. Long ones are not worth a copy.
    if (escapes || (end - start > 12 && end - start <= COPIED_LENGTH))
      return JSON.parse(text.slice(start - 1, end + 1)) as string;
    return text.slice(start, end);
  }

  /**
   * Decodes the string up to `at` if a long part is not decoded yet. Decoding all of it at its end would take too long. `at` must
   * be between two characters.
   */
  function decodeLong(): void {
    if (skippedDepth === -1 && at - decodedEnd > DECODED_LENGTH) decode(at);
  }

  function decode(end: number): void {
    const part = text.slice(decodedEnd, end);
    decoded += hasEscapes ? (JSON.parse(`"${part}"`) as string) : part;
    decodedEnd = end;
  }

  function stringValue(): string {
    const [start, contentEnd] = [stringStart + 1, at - 1];
    if (decodedEnd === start) return copyOf(start, contentEnd, hasEscapes);
    decode(contentEnd);
    return decoded;
  }

  const nameOf = (of: Frame): string => copyOf(of.nameStart, of.nameEnd, of.nameHasEscapes);

  /** Whether the value that begins in the object has one of these names. */
  function isNamed(of: Frame | null, some: ReadonlySet<string>): boolean {
    if (some.size === 0 || of?.isObject !== true || of.nameEnd - of.nameStart > COPIED_LENGTH) return false;
    return some.has(of.nameHasEscapes ? nameOf(of) : text.slice(of.nameStart, of.nameEnd));
  }

  function open(isObject: boolean): boolean {
    const depth = frames.length;
    if (depth >= maxDepth) return fail(`deeper than ${maxDepth} levels`);
    if (depth === 0 && !isObject) spine = 2;
    if (skippedDepth === -1) {
      if (isNamed(frame, selection.skipped)) skippedDepth = depth;
      else if (itemDepth === -1 && depth > spine && !(depth === spine + 1 && !isObject && isNamed(frame, selection.lists))) {
        itemDepth = depth;
        itemBuilt = 0;
      }
    }
    const isBuilt = skippedDepth === -1;
    const hasSpans = isBuilt && depth < spanDepth;
    frame = {
      isObject,
      start: at,
      object: isBuilt && isObject ? {} : null,
      array: isBuilt && !isObject ? [] : null,
      members: hasSpans && isObject ? new Map() : null,
      items: hasSpans && !isObject ? [] : null,
      names: isObject ? names.begin() : 0,
      index: 0,
      nameStart: 0,
      nameEnd: 0,
      nameHasEscapes: false,
    };
    frames.push(frame);
    at++;
    state = isObject ? 'firstName' : 'firstItem';
    return true;
  }

  function close(): boolean {
    const { isObject, start, object, array, members, items, names: base } = frames.pop() as Frame;
    if (isObject) names.end(base);
    const depth = frames.length;
    frame = frames[depth - 1] ?? null;
    if (skippedDepth === depth) skippedDepth = -1;
    if (itemDepth === depth) itemDepth = -1;
    return end(start, object ?? array ?? (isObject ? UNREAD_OBJECT : UNREAD_ARRAY), members, items);
  }

  /** Ends a value at `at` and adds it to the innermost open container. */
  function end(start: number, value: JsonValue, members: Map<string, JsonSpan> | null, items: JsonSpan[] | null): boolean {
    state = 'after';
    const depth = frames.length;
    const span = skippedDepth === -1 && depth <= spanDepth ? { start, end: at, members, items } : null;
    if (frame === null) {
      root = { value, span: span as JsonSpan };
      return true;
    }
    if (skippedDepth !== -1) return true;
    if (++built > selection.builtValues) return fail(`more than ${selection.builtValues} values that the gateway must inspect`);
    if (itemDepth !== -1 && ++itemBuilt > selection.itemValues) return leaveItem();
    if (itemDepth === -1 && frame.isObject && frame.index >= selection.members) {
      return fail(`more than ${selection.members} members of one object`);
    }
    if (frame.isObject) {
      const name = nameOf(frame);
      (frame.object as JsonObject)[name] = value;
      if (span !== null) frame.members?.set(name, span);
    } else {
      frame.array?.push(value);
      if (span !== null) frame.items?.push(span);
    }
    return true;
  }
  let root: { readonly value: JsonValue; readonly span: JsonSpan } | null = null;

  /** Gives up an item that has too many values: its built values are dropped. */
  function leaveItem(): boolean {
    skippedDepth = itemDepth;
    for (const given of frames.slice(itemDepth)) {
      given.object = null;
      given.array = null;
      given.members = null;
      given.items = null;
    }
    built -= itemBuilt;
    return true;
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
    return end(start, value, null, null);
  }

  function number(): boolean {
    const read = numberAt(text, at, exact);
    if ('refused' in read) return fail(read.refused);
    const start = at;
    at += read.literal.length;
    return end(start, skippedDepth === -1 ? Number(read.literal) : 0, null, null);
  }

  /** Reads a string. True: `at` is after its closing quote. False: there is more to read, or a verdict. */
  function string(until: number, isName: boolean): boolean {
    const limit = until < length ? until : length;
    while (at < limit) {
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
    if (!exact) return true;
    if (unit >= 0xdc00 && unit <= 0xdfff) return fail('a lone surrogate');
    if (unit < 0xd800 || unit > 0xdbff) return true;
    if (text.charCodeAt(at) !== 0x5c || text.charCodeAt(at + 1) !== 0x75) return fail('a lone surrogate');
    const low = hex();
    if (low === -1) return fail('a bad escape');
    return (low >= 0xdc00 && low <= 0xdfff) || fail('a lone surrogate');
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
    if (hash === BAD_HASH && nameOf(of) === BAD_NAME) return fail(`the member name ${BAD_NAME}`);
    if (!names.add(of.names, hash, start, nameEnd, hasEscapes)) {
      const { what, repeated } = repeatedName(frames.map((outer) => (outer.isObject ? nameOf(outer) : outer.index)));
      return fail(what, repeated);
    }
    state = 'colon';
    return true;
  }

  function finish(): boolean {
    if (at !== length) return fail('text after the end of the value');
    const { value, span } = root as { readonly value: JsonValue; readonly span: JsonSpan };
    reading = { ok: true, text, value, span, values };
    return false;
  }

  /** Takes one step. False: it stopped at `until` or at a verdict. */
  function step(until: number): boolean {
    switch (state) {
      case 'inString': {
        if (!string(until, false)) return false;
        return end(stringStart, skippedDepth === -1 ? stringValue() : '', null, null);
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
        if (c !== 0x5d) return begin();
        at++;
        return close();
      case 'firstName':
      case 'name':
        if (c === 0x7d && state === 'firstName') {
          at++;
          return close();
        }
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
        if (c === (frame.isObject ? 0x7d : 0x5d)) {
          at++;
          return close();
        }
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
