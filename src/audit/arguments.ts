/** What the audit log keeps of the arguments of a call, where the target asks for it: secrets masked, and cut to a size. Pure. */
import type { JsonObject, JsonValue } from '../http/json.ts';
import { isUnread } from '../http/json-steps.ts';

/** A record has the JSON of this. */
export interface CapturedArguments {
  /** null where even shortened texts leave too much. */
  readonly value: JsonValue;
  /** Whether anything but the mask is missing. */
  readonly cut: boolean;
}

/** What carries arguments that the tool or prompt itself declares. Completions are what somebody is still typing. */
const CAPTURED: readonly string[] = ['tools/call', 'prompts/get'];

/** A member whose name ends so, or so with a number, is masked for every target. Not `tokens`: `max_tokens` is no secret. */
export const ALWAYS_MASKED = [
  ...['password', 'passwords', 'passwd', 'pwd', 'passphrase', 'passcode', 'secret', 'secrets', 'token', 'apikey', 'apikeys'],
  ...['accesskey', 'secretkey', 'privatekey', 'authorization', 'credential', 'credentials', 'cookie', 'cookies'],
] as const;

export const MASK = '***';
/** Of the masked arguments as JSON. */
export const MAX_ARGUMENT_BYTES = 8 * 1024;
/** Texts are cut to so many UTF-16 units where the whole is too large. */
const SHORT_TEXT = 256;

/** The JSON of CapturedArguments; null: the request has none. `mask`: further names, compared as a whole. */
export function captureArguments(mask: readonly string[], method: string, params: JsonObject | undefined): string | null {
  const value = CAPTURED.includes(method) ? params?.['arguments'] : undefined;
  if (value === undefined) return null;
  if (isUnread(value)) return recordOf('null', true);
  const names = new Set(mask.map(fold));
  const isMasked = (name: string): boolean => {
    const folded = fold(name);
    if (names.has(folded)) return true;
    const unnumbered = withoutNumber(folded);
    return ALWAYS_MASKED.some((word) => unnumbered.endsWith(word));
  };
  const copy = masked(value, isMasked);
  if (copy === undefined) return recordOf('null', true);
  const whole = JSON.stringify(copy);
  if (fits(whole)) return recordOf(whole, false);
  const short = JSON.stringify(copy, (_, member: JsonValue) => (typeof member === 'string' ? shortened(member) : member));
  return recordOf(fits(short) ? short : 'null', true);
}

const recordOf = (value: string, cut: boolean): string => `{"value":${value},"cut":${cut}}`;
const fits = (json: string): boolean => Buffer.byteLength(json) <= MAX_ARGUMENT_BYTES;
const shortened = (text: string): string => (text.length > SHORT_TEXT ? `${text.slice(0, SHORT_TEXT).toWellFormed()}…` : text);

/** undefined: shortening texts would not make it fit. Then it was not looked at any further, however large it is. */
function masked(value: JsonValue, isMasked: (name: string) => boolean): JsonValue | undefined {
  // Less than what each value and name takes in JSON.
  let left = MAX_ARGUMENT_BYTES;
  const copyOf = (from: JsonValue): JsonValue => {
    left--;
    if (typeof from !== 'object' || from === null) return from;
    if (Array.isArray(from)) {
      const items: JsonValue[] = [];
      for (const item of from) {
        if (left < 0) break;
        items.push(copyOf(item));
      }
      return items;
    }
    const members: [string, JsonValue][] = [];
    for (const name of Object.keys(from)) {
      left -= name.length;
      if (left < 0) break;
      members.push([name, copyOf(isMasked(name) ? MASK : (from[name] ?? null))]);
    }
    // Not by assignment, which would take `__proto__` for the prototype.
    return Object.fromEntries(members);
  };
  const copy = copyOf(value);
  return left < 0 ? undefined : copy;
}

/** `password2` is what is to be the same as `password`. No regex: those that look for an end take quadratic time. */
function withoutNumber(name: string): string {
  let end = name.length;
  while (end > 0 && '0123456789'.includes(name.charAt(end - 1))) end--;
  return name.slice(0, end);
}

/**
 * The same text for names that people, or readers that do not regard case or style, take for one: `apiKey`, `API-Key` and
 * `api_key`; compatibility forms (U+017F is an `s`, U+212A a `k`) and invisible characters make no other name, either.
 */
function fold(name: string): string {
  const folded = name.normalize('NFKC').toUpperCase().toLowerCase();
  // A name of signs alone stays what it is.
  return folded.replace(/[^\p{L}\p{M}\p{N}]|\p{Default_Ignorable_Code_Point}/gu, '') || folded;
}
