/**
 * Reads the body of a request. The sender of a large body is admitted before it is read: a state from before the last byte may
 * refuse a request, but never allows one, because the caller is admitted again after the last byte. A stock limits the bytes
 * under way, and a flow limits the bytes and values that are read, both per principal.
 */
import type { IncomingMessage } from 'node:http';
import { createFlow, createStock, type Flow, isOverdrawn, type Overdrawn, type Stock, type Taken } from '../../base/budgets.ts';
import { AppError } from '../../base/errors.ts';
import { isUnread } from '../../base/json/built.ts';
import { isObject, type JsonReading, type JsonValue, NOT_UTF8 } from '../../base/json/json.ts';
import { decodeLarge, readLargeJson } from '../../base/json/large.ts';
import { CLIENT_RULES } from '../../base/json/selection.ts';
import { type Now, whenThere } from '../../base/promises.ts';
import { bodyAtHand, readBytes } from '../../http/body.ts';
import { bodyLength, LARGE_BODY } from '../../http/body-length.ts';
import { type Answer, problem } from '../../protocol/answer.ts';
import { OPAQUE } from '../../protocol/rebuild.ts';
import type { Admission } from '../../state/admission.ts';
import type { McpLimits } from './limits.ts';

export interface Intake {
  /** Bytes of large bodies under way and of what was read from them, by principal. */
  readonly bodies: Stock;
  /** Values that were read, by principal. */
  readonly reading: Flow;
}

export interface Received {
  readonly body: Buffer;
  /** Takes room for this number of values that were built. Returns the refusal; null: they may be kept. */
  readonly keep: (values: number) => Answer | null;
  /** Call when the request is answered. */
  readonly giveBack: () => void;
}

/** Messages up to this length are not charged and never wait for a debt. */
export const FREE_LENGTH = 4 * 1024;
/** This many bytes cost as much as one value. */
const BYTES_PER_VALUE = 128;
/** What a value that was built takes, until its request is answered. A member can take twice as much. */
const BYTES_OF_VALUE = 100;

/** Bytes of large bodies under way, on every route, by `principalKey`. */
export function createBodies({ bodyBytesOfPrincipal: perKey, bodyBytesOfAll: all }: McpLimits): Stock {
  return createStock('bodies of requests', { perKey, all });
}

export function createIntake(limits: McpLimits, bodies: Stock, now: () => number): Intake {
  return {
    bodies,
    reading: createFlow({ perKey: limits.readingOfPrincipal, all: limits.readingOfAll }, now),
  };
}

/** The cost of reading a text, in values. */
export function costOf(bytes: number, reading: JsonReading): number {
  // If a text was refused, the number of values that were read is not known.
  return Math.ceil(bytes / BYTES_PER_VALUE) + (reading.ok ? reading.values : Math.ceil(bytes / 16));
}

const SHOWN_LENGTH = 64;

/** Receives the body, or returns the refusal. `admit` admits the sender of a large body, or returns the refusal. */
export function receive(
  intake: Intake,
  limits: McpLimits,
  req: IncomingMessage,
  principal: string,
  admit: () => Now<Admission | Answer>,
): Now<Received | Answer> {
  const length = bodyLength(req);
  if (length === null || length > FREE_LENGTH) return receiveLarge(intake, limits, req, principal, admit, length);
  const body = bodyAtHand(req, limits.bodyBytes);
  return body === null ? read(req, limits.bodyBytes, null) : receivedAs(body, null);
}

async function receiveLarge(
  { bodies, reading }: Intake,
  limits: McpLimits,
  req: IncomingMessage,
  principal: string,
  admit: () => Now<Admission | Answer>,
  length: number | null,
): Promise<Received | Answer> {
  const wait = reading.wait(principal);
  if (wait > 0)
    return tooMuch(
      `You have sent more values and bytes than the gateway reads for one caller (${limits.readingOfPrincipal.perSecond} values a second)`,
      wait,
    );
  const admitted = length === null || length > LARGE_BODY ? await admit() : null;
  if (admitted !== null && 'kind' in admitted) return admitted;
  const taken = bodies.take(principal, 0);
  return isOverdrawn(taken) ? overdrawn(taken) : await read(req, limits.bodyBytes, taken);
}

async function read(req: IncomingMessage, limit: number, taken: Taken | null): Promise<Received | Answer> {
  let refused: Overdrawn | null = null;
  const count = (bytes: number): AppError | null => {
    refused = taken?.grow(bytes) ?? null;
    return refused === null ? null : new AppError('too_many_requests', overdrawnText(refused), { retryAfter: 1 });
  };
  try {
    const body = await readBytes(req, limit, count);
    return receivedAs(body, taken);
  } catch (error) {
    taken?.giveBack();
    if (error instanceof AppError) return problem(error);
    throw error;
  }
}

function receivedAs(body: Buffer, taken: Taken | null): Received {
  return {
    body,
    keep(values) {
      const refused = taken?.grow(values * BYTES_OF_VALUE) ?? null;
      return refused === null ? null : overdrawn(refused);
    },
    giveBack: () => taken?.giveBack(),
  };
}

function overdrawnText({ overdrawn, limit }: Overdrawn): string {
  const whose = overdrawn === 'key' ? 'your requests' : 'the requests of all callers';
  return `Too many bytes of ${whose} are in flight: the limit is ${limit}, and each value that the gateway looks at counts as ${BYTES_OF_VALUE} bytes. Try again when other requests have ended.`;
}

function overdrawn(refusal: Overdrawn): Answer {
  return problem(new AppError('too_many_requests', overdrawnText(refusal), { retryAfter: 1 }));
}

function tooMuch(what: string, wait: number): Answer {
  const retryAfter = Math.ceil(wait);
  return problem(new AppError('too_many_requests', `${what}. Try again in ${retryAfter} s.`, { retryAfter }));
}

/** Reads the body as JSON and charges the principal. */
export function readBody(intake: Intake, principal: string, body: Buffer): Now<JsonReading> {
  const decoded = decodeLarge(body, principal);
  if (decoded instanceof Promise) return decoded.then((text) => readText(intake, principal, body.length, text));
  return readText(intake, principal, body.length, decoded);
}

/** `text` null: the body is not UTF-8. */
function readText(intake: Intake, principal: string, bytes: number, text: string | null): Now<JsonReading> {
  if (text === null) return NOT_UTF8;
  return whenThere(readLargeJson(text, CLIENT_RULES, principal), (reading) => {
    if (bytes > FREE_LENGTH) intake.reading.charge(principal, costOf(bytes, reading));
    return checked(reading);
  });
}

/** Refuses a message with a parameter that the gateway must read, but that has too many values. */
function checked(read: JsonReading): JsonReading {
  const unread = read.ok ? unreadParam(read.value) : null;
  if (unread === null) return read;
  const reason = `more than ${CLIENT_RULES.selection.itemValues} values in params.${unread.slice(0, SHOWN_LENGTH)}`;
  return { ok: false, reason, repeated: null };
}

/** The name of a parameter with too many values that the gateway must read; null: none. Opaque members are forwarded as text. */
function unreadParam(value: JsonValue): string | null {
  for (const message of Array.isArray(value) ? value : [value]) {
    const params = isObject(message) && !isUnread(message) ? message.params : undefined;
    if (!isObject(params) || isUnread(params)) continue;
    const found = Object.keys(params).find((name) => isUnread(params[name]) && !OPAQUE.includes(name));
    if (found !== undefined) return found;
  }
  return null;
}
