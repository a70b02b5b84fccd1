/** Captures the arguments of a call for the audit log if the target is configured so. Masks secrets and limits the size. Pure. */

import { isUnread } from '../../base/json/built.ts';
import type { JsonObject, JsonValue } from '../../base/json/json.ts';

/** The audit record stores this as JSON. */
export interface CapturedArguments {
  /** null if the arguments are too large even after their texts are shortened. */
  readonly value: JsonValue;
  /** Whether anything is missing besides the masked values. */
  readonly cut: boolean;
}

/** Methods whose arguments the tool or prompt itself declares. A completion is left out: the user is still typing its text. */
const CAPTURED: readonly string[] = ['tools/call', 'prompts/get'];

/**
 * A member is masked for every target if its name ends with one of these words, or with one of them and a number. `tokens` is
 * left out because `max_tokens` is not a secret.
 */
export const ALWAYS_MASKED = [
  ...['password', 'passwords', 'passwd', 'pwd', 'passphrase', 'passcode', 'secret', 'secrets', 'token', 'apikey', 'apikeys'],
  ...['accesskey', 'secretkey', 'privatekey', 'authorization', 'credential', 'credentials', 'cookie', 'cookies'],
] as const;

export const MASK = '***';
/** Limit for the masked arguments as JSON. */
export const MAX_ARGUMENT_BYTES = 8 * 1024;
/** If the whole is too large, each text is cut to this many UTF-16 units. */
const SHORT_TEXT = 256;

/** Returns the JSON of CapturedArguments; null: the request has no arguments. `mask` has further names, compared as a whole. */
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

/** Returns a masked copy. undefined: it would not fit even with shortened texts. It stops as soon as it knows, so a huge value costs little. */
function masked(value: JsonValue, isMasked: (name: string) => boolean): JsonValue | undefined {
  // A lower bound: each value and name takes more than this in JSON.
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
    // An assignment to `__proto__` would set the prototype, so the object is made from entries.
    return Object.fromEntries(members);
  };
  const copy = copyOf(value);
  return left < 0 ? undefined : copy;
}

/** Forms often repeat a password as `password2`. A regex that is anchored only at the end would take quadratic time. */
function withoutNumber(name: string): string {
  let end = name.length;
  while (end > 0 && '0123456789'.includes(name.charAt(end - 1))) end--;
  return name.slice(0, end);
}

/**
 * Returns the same text for names that a person, or a case-insensitive parser, would treat as one: `apiKey`, `API-Key` and
 * `api_key`. Compatibility forms (U+017F is an `s`, U+212A a `k`) and invisible characters make no difference either.
 */
function fold(name: string): string {
  const folded = name.normalize('NFKC').toUpperCase().toLowerCase();
  // A name without letters or digits stays as it is.
  return folded.replace(/[^\p{L}\p{M}\p{N}]|\p{Default_Ignorable_Code_Point}/gu, '') || folded;
}
