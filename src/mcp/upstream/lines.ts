/** Messages as lines of text, as the stdio transport frames them (2025-11-25, transports, stdio). Pure. */
import { isObject, type JsonValue, readJsonText } from '../../http/json.ts';
import { readLargeJson } from '../../http/json-large.ts';
import { UnreadFault } from '../../http/json-steps.ts';
import { isId, type RpcId, type RpcMessage, readMessage } from '../message.ts';
import type { Located } from '../rebuild.ts';
import { TARGET_RULES } from '../selection.ts';

export interface LineReader {
  /** Hands over each line that these bytes complete, without its end. False: a line goes on far beyond the limit. */
  push(bytes: Buffer): boolean;
}

/** A line that was too large to keep. */
export interface Skipped {
  readonly bytes: number;
  readonly head: Buffer;
  readonly tail: Buffer;
}

/** What is kept of both ends of a line that is skipped. */
const END_BYTES = 4 * 1024;
/** How many times the limit a line may have before it is taken for one that never ends. */
const ENDLESS = 16;

/** Lines end in LF or CRLF, and chunks end anywhere, also within a character. */
export function createLineReader(maxBytes: number, take: (line: Buffer) => void, skip: (skipped: Skipped) => void): LineReader {
  let parts: Buffer[] = [];
  let size = 0;
  /** Of a line beyond the limit; null: the line is kept. */
  let skipping: { readonly head: Buffer; tail: Buffer } | null = null;

  function add(bytes: Buffer): void {
    size += bytes.length;
    if (skipping !== null) skipping.tail = endOf([skipping.tail, bytes]);
    else if (size <= maxBytes) parts.push(bytes);
    else {
      const line = Buffer.concat([...parts, bytes]);
      skipping = { head: Buffer.from(line.subarray(0, END_BYTES)), tail: endOf([line]) };
      parts = [];
    }
  }

  function finish(): void {
    const [only] = parts;
    const line = parts.length === 1 && only !== undefined ? only : Buffer.concat(parts);
    const skipped = skipping && { ...skipping, bytes: size };
    parts = [];
    size = 0;
    skipping = null;
    if (skipped !== null) skip(skipped);
    else take(line.at(-1) === 0x0d ? line.subarray(0, -1) : line);
  }

  return {
    push(bytes) {
      let from = 0;
      for (let at = bytes.indexOf(0x0a); at !== -1; at = bytes.indexOf(0x0a, from)) {
        if (at > from) add(bytes.subarray(from, at));
        finish();
        from = at + 1;
      }
      if (from < bytes.length) add(bytes.subarray(from));
      return size <= ENDLESS * maxBytes;
    },
  };
}

function endOf(parts: readonly Buffer[]): Buffer {
  return Buffer.from(Buffer.concat(parts).subarray(-END_BYTES));
}

/** Both for members of the outermost object alone: within a string, no quotation mark stands without a backslash before it. */
const FIRST_MEMBERS = /^\s*\{((?:\s*"[^"\\]*"\s*:\s*(?:"[^"\\]*"|[0-9]+)\s*,)*)\s*"(?:result|error)"/;
const LAST_MEMBERS = /\}((?:\s*,\s*"(?:jsonrpc|id)"\s*:\s*(?:"[^"\\]*"|[0-9]+))+)\s*\}\s*$/;
const ID = /"id"\s*:\s*([0-9]{1,15})\s*(?:,|$)/;

/** The gateway's own id of the request that a message which was skipped answers; null: it answers none, or that cannot be told. */
export function oversizedId({ head, tail }: Skipped): number | null {
  const first = FIRST_MEMBERS.exec(head.toString('latin1'))?.[1];
  if (first === undefined || first.includes('"method"')) return null;
  const last = LAST_MEMBERS.exec(tail.toString('latin1'))?.[1] ?? '';
  const id = ID.exec(first) ?? ID.exec(last);
  return id === null ? null : Number(id[1]);
}

/**
 * JSON text has line breaks only between its tokens (RFC 8259 section 7), so a space in their place keeps its meaning. The
 * other characters at which some readers end a line (Node's `readline`, Python's `splitlines`) stand only in strings.
 */
export function toLine(text: string): string {
  const oneLine = text.replace(/[\r\n]+/g, ' ');
  return `${oneLine.replace(/[\u0085\u2028\u2029]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`)}\n`;
}

export type Line =
  | { readonly kind: 'message'; readonly message: RpcMessage; readonly located: Located }
  /** An answer that cannot be read in one way: whoever waits for it can be told. */
  | { readonly kind: 'broken'; readonly id: RpcId; readonly reason: string }
  /** An answer that was too large to read. */
  | { readonly kind: 'oversized'; readonly id: RpcId; readonly reason: string }
  /** Banners and the like: processes print them although they must not. */
  | { readonly kind: 'garbage' };

const GARBAGE: Line = { kind: 'garbage' };
/** As for other answers of targets: what is in them is not decided on. */
const RULES = { exact: false, maxDepth: 256, maxValues: 2_000_000, spanDepth: 1 };

export function readLine(text: string): Line {
  if (!/^\s*\{/.test(text)) return GARBAGE;
  const reading = readJsonText(text, RULES);
  if (!reading.ok) return broken(looselyRead(text), reading.reason);
  const message = readMessage(reading.value);
  return message.kind === 'invalid' ? broken(reading.value, message.reason) : { kind: 'message', message, located: reading };
}

/** The same for a line of any size, read in turns with other large messages. `owner`: whose turn it is. */
export async function readLargeLine(text: string, owner: string): Promise<Line> {
  if (!/^\s*\{/.test(text.slice(0, HEAD_LENGTH))) return GARBAGE;
  const reading = await readLargeJson(text, { ...TARGET_RULES, ...RULES }, owner);
  try {
    if (!reading.ok) return broken(headOf(text), reading.reason);
    const message = readMessage(reading.value);
    return message.kind === 'invalid' ? broken(reading.value, message.reason) : { kind: 'message', message, located: reading };
  } catch (cause) {
    if (cause instanceof UnreadFault) return broken(headOf(text), cause.message);
    throw cause;
  }
}

const HEAD_LENGTH = 4 * 1024;

/** As much as the beginning says of a text that cannot be read as a whole: which request it answers. */
function headOf(text: string): JsonValue {
  const id = /^\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*([0-9]{1,15})\s*,/.exec(text.slice(0, HEAD_LENGTH))?.[1];
  return id === undefined ? null : { id: Number(id) };
}

function looselyRead(text: string): JsonValue {
  try {
    return JSON.parse(text) as JsonValue;
  } catch {
    return null;
  }
}

function broken(value: JsonValue, reason: string): Line {
  return isObject(value) && !('method' in value) && isId(value.id) ? { kind: 'broken', id: value.id, reason } : GARBAGE;
}

/** What a process prints, on its way to a terminal: nothing in it moves a cursor, or looks like another line. */
export function printable(text: string): string {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => (c === '\t' ? ' ' : `\\u{${(c.codePointAt(0) ?? 0).toString(16)}}`));
}
