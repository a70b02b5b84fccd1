/** Builds the values of a large JSON text that are looked at. The others exist only in the text. */
import type { JsonObject, JsonSpan, JsonValue } from './json.ts';

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
  /** Inside objects and arrays under these names, nothing is skipped. */
  readonly kept?: ReadonlySet<string>;
  /** An object outside of items with more members than this is refused. */
  readonly members: number;
  /** An item with more values than this is not built. */
  readonly itemValues: number;
  /** A text is refused if more values than this would be built. */
  readonly builtValues: number;
}

const NONE: ReadonlySet<string> = new Set();

/** Strings up to this length are copied. No name, address or token that is kept for longer than its message may be longer. */
const COPIED_LENGTH = 4_096;

/** Returns the string between these offsets, which are those of its content. */
export function copyOf(text: string, start: number, end: number, hasEscapes: boolean): string {
  // A slice keeps the whole text in memory while it lives, so short strings are copied. Long ones are not worth a copy.
  if (hasEscapes || (end - start > 12 && end - start <= COPIED_LENGTH))
    return JSON.parse(text.slice(start - 1, end + 1)) as string;
  return text.slice(start, end);
}

/** An open object or array. */
export interface Frame {
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

export const nameOf = (text: string, { nameStart, nameEnd, nameHasEscapes }: Frame): string =>
  copyOf(text, nameStart, nameEnd, nameHasEscapes);

/** Methods that can refuse the text return the reason. */
export function createBuilder(text: string, spanDepth: number, selection: Selection) {
  const frames: Frame[] = [];
  let frame: Frame | null = null;
  let root: { readonly value: JsonValue; readonly span: JsonSpan } | null = null;
  let built = 0;
  /** The depth of the object or array that is not built. Nothing in it is built. */
  let skippedDepth = -1;
  /** The depth of the object or array in which nothing is skipped. */
  let keptDepth = -1;
  let itemDepth = -1;
  let itemBuilt = 0;
  /** All values of containers down to this depth are built. */
  let spine = 1;

  /** Whether the value that begins in the innermost container has one of these names. */
  function isNamed(some: ReadonlySet<string> = NONE): boolean {
    if (some.size === 0 || frame?.isObject !== true || frame.nameEnd - frame.nameStart > COPIED_LENGTH) return false;
    return some.has(frame.nameHasEscapes ? nameOf(text, frame) : text.slice(frame.nameStart, frame.nameEnd));
  }

  /** Adds a value that ends before `end` to the innermost open container. */
  function add(
    start: number,
    end: number,
    value: JsonValue,
    members: Map<string, JsonSpan> | null = null,
    items: JsonSpan[] | null = null,
  ): string | null {
    const span = skippedDepth === -1 && frames.length <= spanDepth ? { start, end, members, items } : null;
    if (frame === null) {
      root = { value, span: span as JsonSpan };
      return null;
    }
    if (skippedDepth !== -1) return null;
    if (++built > selection.builtValues) return `more than ${selection.builtValues} values that the gateway must inspect`;
    if (itemDepth !== -1 && ++itemBuilt > selection.itemValues) {
      leaveItem();
      return null;
    }
    if (itemDepth === -1 && frame.isObject && frame.index >= selection.members)
      return `more than ${selection.members} members of one object`;
    if (frame.isObject) {
      const name = nameOf(text, frame);
      (frame.object as JsonObject)[name] = value;
      if (span !== null) frame.members?.set(name, span);
    } else {
      frame.array?.push(value);
      if (span !== null) frame.items?.push(span);
    }
    return null;
  }

  /** Gives up an item that has too many values: its built values are dropped. */
  function leaveItem(): void {
    skippedDepth = itemDepth;
    for (const given of frames.slice(itemDepth)) {
      given.object = null;
      given.array = null;
      given.members = null;
      given.items = null;
    }
    built -= itemBuilt;
  }

  return {
    /** The open containers, outermost first. */
    frames: frames as readonly Frame[],
    add,
    /** Whether the value that is read now will be built. */
    isBuilding: (): boolean => skippedDepth === -1,
    root: () => root,
    /** With the root. */
    count: () => built + 1,

    /** Opens a container and returns its frame. */
    open(isObject: boolean, start: number, names: number): Frame {
      const depth = frames.length;
      if (depth === 0 && !isObject) spine = 2;
      if (skippedDepth === -1) {
        if (keptDepth === -1 && isNamed(selection.kept)) keptDepth = depth;
        if (keptDepth === -1 && isNamed(selection.skipped)) skippedDepth = depth;
        else if (itemDepth === -1 && depth > spine && !(depth === spine + 1 && !isObject && isNamed(selection.lists))) {
          itemDepth = depth;
          itemBuilt = 0;
        }
      }
      const isBuilt = skippedDepth === -1;
      const hasSpans = isBuilt && depth < spanDepth;
      frame = {
        isObject,
        start,
        object: isBuilt && isObject ? {} : null,
        array: isBuilt && !isObject ? [] : null,
        members: hasSpans && isObject ? new Map() : null,
        items: hasSpans && !isObject ? [] : null,
        names,
        index: 0,
        nameStart: 0,
        nameEnd: 0,
        nameHasEscapes: false,
      };
      frames.push(frame);
      return frame;
    },

    /** Closes the innermost container, which ends before `end`, and adds it to the one around it. */
    close(end: number): string | null {
      const { isObject, start, object, array, members, items } = frames.pop() as Frame;
      const depth = frames.length;
      frame = frames[depth - 1] ?? null;
      if (skippedDepth === depth) skippedDepth = -1;
      if (keptDepth === depth) keptDepth = -1;
      if (itemDepth === depth) itemDepth = -1;
      return add(start, end, object ?? array ?? (isObject ? UNREAD_OBJECT : UNREAD_ARRAY), members, items);
    },
  };
}
