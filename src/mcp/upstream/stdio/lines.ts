/** Reads and writes messages as lines of text, as the stdio transport frames them (2025-11-25, transports, stdio). Pure. */

import { UnreadFault, unlessUnread } from '../../../base/json/built.ts';
import { isObject, type JsonReading, type JsonValue, namelessReason, readJsonText } from '../../../base/json/json.ts';
import { LARGE_TEXT, readLargeJson } from '../../../base/json/large.ts';
import { TARGET_RULES } from '../../../base/json/selection.ts';
import { partsOf } from '../../../base/turns/slices.ts';
import { isId, type RpcId, type RpcMessage, readMessage } from '../../../protocol/message.ts';
import type { Located } from '../../../protocol/rebuild.ts';
import { onOneLine } from '../../../protocol/sse.ts';

/** A line that was too large to keep, or for which there was no room. */
export interface Skipped {
  readonly bytes: number;
  /** Why there was no room. null: the line exceeds the limit. */
  readonly why: string | null;
  readonly head: Buffer;
  readonly tail: Buffer;
}

/** How many bytes of both ends of a skipped line are kept. */
const END_BYTES = 4 * 1024;
/** A line that exceeds the limit this many times is assumed never to end. */
const ENDLESS = 16;

const PARTS_AT_ONCE = 1024;

/** Lines end in LF or CRLF. Chunks may end anywhere, even inside a character. */
export function createLineReader(maxBytes: number, take: (line: Buffer) => void, skip: (skipped: Skipped) => void) {
  let parts: Buffer[] = [];
  /** How many of the first parts are already joined ones. */
  let joined = 0;
  let size = 0;
  /** Both ends of a line that exceeds the limit. null: the line is kept. */
  let skipping: (Pick<Skipped, 'why' | 'head'> & { tail: Buffer }) | null = null;

  function add(bytes: Buffer): void {
    size += bytes.length;
    if (skipping !== null) skipping.tail = endOf([skipping.tail, bytes]);
    else if (size <= maxBytes) keep(bytes);
    else skipFrom([...parts, bytes], null);
  }

  function skipFrom(all: readonly Buffer[], why: string | null): void {
    skipping = { why, ...endsOf(Buffer.concat(all)) };
    parts = [];
    joined = 0;
  }

  /** A Buffer costs about a hundred extra bytes, so a line in single bytes would fill the memory. */
  function keep(bytes: Buffer): void {
    if (parts.push(bytes) - joined < PARTS_AT_ONCE) return;
    parts.push(Buffer.concat(parts.splice(joined)));
    joined++;
  }

  function finish(): void {
    const [only] = parts;
    const line = parts.length === 1 && only !== undefined ? only : Buffer.concat(parts);
    const skipped = skipping && { ...skipping, bytes: size };
    parts = [];
    joined = 0;
    size = 0;
    skipping = null;
    if (skipped !== null) skip(skipped);
    else take(line.at(-1) === 0x0d ? line.subarray(0, -1) : line);
  }

  return {
    /** The bytes of a line that is kept and has not ended. */
    get kept(): number {
      return skipping === null ? size : 0;
    },
    /** Skips the line that has not ended. */
    drop: (why: string): void => skipFrom(parts, why),
    /** Hands over each line that these bytes complete, without its line end. False: a line exceeds the limit many times. It is handed over, too. */
    push(bytes: Buffer): boolean {
      let from = 0;
      for (let at = bytes.indexOf(0x0a); at !== -1; at = bytes.indexOf(0x0a, from)) {
        if (at > from) add(bytes.subarray(from, at));
        finish();
        from = at + 1;
      }
      if (from < bytes.length) add(bytes.subarray(from));
      if (size <= ENDLESS * maxBytes) return true;
      finish();
      return false;
    },
  };
}

/** Copies of both ends of a line. */
export const endsOf = (line: Buffer): Pick<Skipped, 'head' | 'tail'> => ({
  head: Buffer.from(line.subarray(0, END_BYTES)),
  tail: endOf([line]),
});

function endOf(parts: readonly Buffer[]): Buffer {
  return Buffer.from(Buffer.concat(parts).subarray(-END_BYTES));
}

/** Both patterns match members of the outermost object only: inside a string, a backslash precedes every quotation mark. */
const FIRST_MEMBERS = /^\s*\{((?:\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[0-9]+)\s*,)*)\s*"(?:result|error)"/;
const LAST_MEMBERS = /\}((?:\s*,\s*"(?:jsonrpc|id)"\s*:\s*(?:"[^"\\]*"|[0-9]+))+)\s*\}\s*$/;
const ID = /"id"\s*:\s*([0-9]{1,15})\s*(?:,|$)/;

/**
 * Returns the gateway's id of the request that a skipped message answers. null: it is not an answer, or its id cannot be
 * determined.
 */
export function oversizedId({ head, tail }: Pick<Skipped, 'head' | 'tail'>): number | null {
  const first = FIRST_MEMBERS.exec(head.toString('latin1'))?.[1];
  if (first === undefined || first.includes('"method"')) return null;
  const last = LAST_MEMBERS.exec(tail.toString('latin1'))?.[1] ?? '';
  const id = ID.exec(first) ?? ID.exec(last);
  return id === null ? null : Number(id[1]);
}

/** Makes a message a line of its own. */
export const toLine = (text: string): string => `${onOneLine(text)}\n`;

/** The same in parts, each made of at most LARGE_TEXT characters. */
export function* lineParts(text: string): Generator<string, undefined> {
  for (const part of partsOf([text], LARGE_TEXT)) yield onOneLine(part);
  yield '\n';
}

export type Line =
  | { readonly kind: 'message'; readonly message: RpcMessage; readonly located: Located }
  /** An answer that is ambiguous or invalid. Its id is known, so the waiting caller gets an error. */
  | { readonly kind: 'broken'; readonly id: RpcId; readonly reason: string }
  /** An answer that was too large to read. */
  | { readonly kind: 'oversized'; readonly id: RpcId; readonly reason: string }
  /** An answer for which there was no room. */
  | { readonly kind: 'crowded'; readonly id: RpcId; readonly reason: string }
  /** Output that is not a message, such as a banner. Processes print it although the specification forbids it. */
  | { readonly kind: 'garbage' };

const GARBAGE: Line = { kind: 'garbage' };
/** The same rules as for other answers of targets: their content is not used for decisions. Members of `params` have spans. */
const RULES = { exact: false, maxDepth: 256, maxValues: 2_000_000, spanDepth: 2 };

export function readLine(text: string): Line {
  return /^\s*\{/.test(text) ? lineOf(readJsonText(text, RULES), () => looselyRead(text)) : GARBAGE;
}

/** Like `readLine`, for a line of any size. Large messages share the thread in turns, by `owner`. */
export async function readLargeLine(text: string, owner: string): Promise<Line> {
  if (!/^\s*\{/.test(text.slice(0, HEAD_LENGTH))) return GARBAGE;
  const reading = await readLargeJson(text, { ...TARGET_RULES, ...RULES }, owner);
  return unlessUnread(() => lineOf(reading, () => headOf(text))) ?? broken(headOf(text), new UnreadFault().message);
}

function lineOf(reading: JsonReading, head: () => JsonValue): Line {
  if (!reading.ok) return broken(head(), reading.reason);
  const message = readMessage(reading.value);
  return message.kind === 'invalid' ? broken(reading.value, message.reason) : { kind: 'message', message, located: reading };
}

const HEAD_LENGTH = 4 * 1024;

/** Returns what the beginning of an unreadable text tells: the id of the request that it answers. */
function headOf(text: string): JsonValue {
  const id = /^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,15})\s*,/.exec(text.slice(0, HEAD_LENGTH))?.[1];
  return id === undefined ? null : { id: Number(id) };
}

function looselyRead(text: string): JsonValue {
  // Only the id is of use, and parsing in vain is slow.
  if (!text.includes('"id"')) return null;
  try {
    return JSON.parse(text) as JsonValue;
  } catch {
    return null;
  }
}

function broken(value: JsonValue, reason: string): Line {
  return isObject(value) && !('method' in value) && isId(value.id)
    ? { kind: 'broken', id: value.id, reason: namelessReason(reason) }
    : GARBAGE;
}

/** Makes process output safe for a terminal: escapes everything that moves the cursor or looks like a line break. */
export function printableLine(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => (c === '\t' ? ' ' : `\\u{${(c.codePointAt(0) ?? 0).toString(16)}}`));
}
