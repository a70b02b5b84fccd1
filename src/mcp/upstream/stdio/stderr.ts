/** Keeps the end of a process's standard error, which shows why it ended, and logs it within limits. */
import { StringDecoder } from 'node:string_decoder';
import type { Log } from '../../../base/log.ts';
import { printableLine } from './lines.ts';

const TAIL_LENGTH = 64 * 1024;
const LINE_LENGTH = 4 * 1024;
const LINES_PER_SECOND = 50;
/** Shorter secrets are not hidden: they would also cut up ordinary text. */
const SECRET_LENGTH = 4;
/** Secrets with more bytes or lines take long to search for, because each has twenty encodings. Everything is hidden instead. */
const MOST_BYTES = 16 * 1024;
const MOST_LINES = 64;
const HIDDEN = '[redacted]';

/** Removes secrets from text: a process may print its environment. */
export interface Hiding {
  readonly hide: (text: string) => string;
  /** Returns a position up to `at` where cutting the text does not split a secret. Half a secret would not be recognized. */
  readonly cut: (text: string, at: number) => number;
  /** The length of the longest secret in any of its encodings, in characters. */
  readonly longest: number;
}

const HIDE_ALL: Hiding = { hide: () => HIDDEN, cut: (_, at) => at, longest: 0 };

export function hideSecrets(secrets: readonly string[]): Hiding {
  if (secrets.reduce((sum, secret) => sum + Buffer.byteLength(secret), 0) > MOST_BYTES) return HIDE_ALL;
  // Programs often leave out the newline at the end of a file.
  const wholes = secrets.flatMap((secret) => [secret, secret.trim()]);
  const lines = new Set(secrets.flatMap((secret) => secret.split(/[\r\n]+/)).filter(isLong));
  if (lines.size > MOST_LINES) return HIDE_ALL;
  const encoded = [...new Set([...wholes.filter(isLong), ...lines])].flatMap((text) => [
    ...[text, ...percentOf(text), JSON.stringify(text).slice(1, -1)],
    ...[...hexOf(text), ...base64Of(text)],
  ]);
  const parts: readonly Part[] = [...new Set(encoded)].sort((a, b) => b.length - a.length).map(partOf);
  const shortest = parts.at(-1)?.length ?? Number.POSITIVE_INFINITY;
  return {
    hide(text) {
      if (text.length < shortest) return text;
      // What is left is searched in pieces: a secret that is a part of HIDDEN would make the text grow.
      let pieces = [text];
      for (const part of parts)
        if (pieces.some((piece) => part.indexIn(piece, 0) !== -1)) pieces = pieces.flatMap((piece) => around(piece, part));
      return pieces.join(HIDDEN);
    },
    // One pass per secret bounds the time, and ensures that the text advances.
    cut: (text, at) =>
      parts.reduce((end, { length, indexIn }) => {
        const from = Math.max(0, end - length + 1);
        const found = indexIn(text.slice(from, end + length - 1), 0);
        return found === -1 ? end : from + found;
      }, at),
    longest: parts[0]?.length ?? 0,
  };
}

const isLong = ({ length }: string): boolean => length >= SECRET_LENGTH;

interface Part {
  readonly length: number;
  readonly indexIn: (text: string, from: number) => number;
}

/** Returns what is before, between and after the occurrences of the part. */
function around(text: string, { length, indexIn }: Part): string[] {
  const pieces: string[] = [];
  let from = 0;
  for (let at = indexIn(text, 0); at !== -1; at = indexIn(text, from)) {
    pieces.push(text.slice(from, at));
    from = at + length;
  }
  return [...pieces, text.slice(from)];
}

/** For longer parts, `indexOf` can take the product of both lengths. */
const SHORT_PART = 64;

/** A long part is found by the algorithm of Knuth, Morris and Pratt, in a time that grows with the text only. */
function partOf(part: string): Part {
  const { length } = part;
  if (length <= SHORT_PART) return { length, indexIn: (text, from) => text.indexOf(part, from) };
  const start = part.slice(0, SHORT_PART);
  let borders: Uint32Array | null = null;
  return {
    length,
    indexIn(text, from) {
      const first = text.length - from < length ? -1 : text.indexOf(start, from);
      if (first === -1) return -1;
      borders ??= bordersOf(part);
      for (let at = first, same = 0; at < text.length; at++) {
        while (same > 0 && part.charCodeAt(same) !== text.charCodeAt(at)) same = borders[same - 1] ?? 0;
        if (part.charCodeAt(same) === text.charCodeAt(at)) same++;
        if (same === length) return at - length + 1;
      }
      return -1;
    },
  };
}

/** For each beginning of the part: how much of its end is also its beginning. */
function bordersOf(part: string): Uint32Array {
  const borders = new Uint32Array(part.length);
  for (let at = 1, same = 0; at < part.length; at++) {
    while (same > 0 && part.charCodeAt(same) !== part.charCodeAt(at)) same = borders[same - 1] ?? 0;
    if (part.charCodeAt(same) === part.charCodeAt(at)) same++;
    borders[at] = same;
  }
  return borders;
}

/** As JavaScript and Python encode it, and as forms do. Python leaves slashes unless told otherwise, and tildes in forms. */
function percentOf(secret: string): string[] {
  const encoded = encodeURIComponent(secret);
  const all = encoded.replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);
  const form = new URLSearchParams({ '': secret }).toString().slice(1);
  const variants = [encoded, all, all.replaceAll('%2F', '/'), form, form.replaceAll('%7E', '~')];
  return [...new Set(variants)].flatMap((each) => [each, each.replace(/%../g, (byte) => byte.toLowerCase())]);
}

function hexOf(secret: string): string[] {
  const hex = Buffer.from(secret).toString('hex');
  return [hex, hex.toUpperCase()];
}

/** Returns the base64 characters that depend on the secret only, for each alignment of the secret in the encoded text. */
function base64Of(secret: string): string[] {
  const bytes = Buffer.from(secret);
  const standard = [0, 1, 2].map((shift) => {
    const text = Buffer.concat([Buffer.alloc(shift), bytes]).toString('base64');
    return text.slice(shift === 0 ? 0 : shift + 1, Math.floor(((shift + bytes.length) * 8) / 6));
  });
  return [...standard, ...standard.map((text) => text.replaceAll('+', '-').replaceAll('/', '_'))].filter(
    (text) => text.length >= SECRET_LENGTH,
  );
}

/** Logs what a process prints at level debug, up to a number of lines per second. */
export function createLineLog(about: { target: string; pid: number }, log: Log): (line: () => string, what: string) => void {
  let second = 0;
  let logged = 0;
  return (line, what) => {
    const current = Math.floor(performance.now() / 1000);
    if (current !== second) {
      second = current;
      logged = 0;
    }
    logged++;
    if (logged <= LINES_PER_SECOND) log.debug({ ...about, line: line() }, what);
    else if (logged === LINES_PER_SECOND + 1)
      log.debug(about, 'target prints too much: further lines of this second are not logged');
  };
}

export function createStderr(hiding: Hiding, logLine: (line: () => string, what: string) => void) {
  const decoder = new StringDecoder('utf8');
  let rest = '';
  let tail = '';

  function line(text: string): void {
    const shown = printableLine(hiding.hide(text)).slice(0, LINE_LENGTH);
    tail += `${shown}\n`;
    // Trimming after every line would copy the whole tail each time.
    if (tail.length > 2 * TAIL_LENGTH) tail = tail.slice(-TAIL_LENGTH);
    logLine(() => shown, 'target wrote to stderr');
  }

  return {
    push(bytes: Buffer): void {
      const lines = (rest + decoder.write(bytes)).split(/\r?\n/);
      rest = lines.pop() ?? '';
      for (const text of lines) line(text);
      // The last characters wait, because they may be the beginning of a secret.
      if (rest.length > LINE_LENGTH + hiding.longest) {
        const end = hiding.cut(rest, rest.length - hiding.longest);
        line(rest.slice(0, end));
        rest = rest.slice(end);
      }
    },
    end(): void {
      if (rest !== '') line(rest);
      rest = '';
    },
    tail: (): string => tail.slice(-TAIL_LENGTH),
  };
}
