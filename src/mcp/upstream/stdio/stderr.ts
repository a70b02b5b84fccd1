/** Keeps the end of a process's standard error, which shows why it ended, and logs it within limits. */
import { StringDecoder } from 'node:string_decoder';
import type { Log } from '../../../base/log.ts';
import { printableLine } from './lines.ts';

const TAIL_LENGTH = 64 * 1024;
const LINE_LENGTH = 4 * 1024;
const LINES_PER_SECOND = 50;
/** Shorter secrets are not hidden: they would also cut up ordinary text. */
const SECRET_LENGTH = 4;

/** Removes secrets from text: a process may print its environment. */
export type Hiding = ReturnType<typeof hideSecrets>;

export function hideSecrets(secrets: readonly string[]) {
  const parts = secrets
    .flatMap((secret) => [secret, ...secret.split(/[\r\n]+/)])
    .filter((part) => part.length >= SECRET_LENGTH)
    .flatMap((part) => [part, ...percentOf(part), JSON.stringify(part).slice(1, -1), ...hexOf(part), ...base64Of(part)]);
  const longestFirst = [...new Set(parts)].sort((a, b) => b.length - a.length);
  return {
    hide: (text: string): string => longestFirst.reduce((hidden, part) => hidden.replaceAll(part, '[redacted]'), text),
    /** Returns a position up to `at` where cutting the text does not split a secret. Half a secret would not be recognized. */
    cut(text: string, at: number): number {
      // One pass per secret bounds the time, and ensures that the text advances.
      return longestFirst.reduce((end, part) => {
        const from = Math.max(0, end - part.length + 1);
        const found = text.slice(from, end + part.length - 1).indexOf(part);
        return found === -1 ? end : from + found;
      }, at);
    },
    /** The length of the longest secret in any of its encodings, in characters. */
    longest: longestFirst[0]?.length ?? 0,
  };
}

/** As JavaScript and Python encode it, and as forms do. Python leaves slashes unless told otherwise, and tildes in forms. */
function percentOf(secret: string): string[] {
  const encoded = encodeURIComponent(secret);
  const all = encoded.replace(/[!'()*]/g, (sign) => `%${sign.charCodeAt(0).toString(16).toUpperCase()}`);
  const form = new URLSearchParams({ '': secret }).toString().slice(1);
  const variants = [encoded, all, all.replaceAll('%2F', '/'), form, form.replaceAll('%7E', '~')];
  return variants.flatMap((each) => [each, each.replace(/%../g, (byte) => byte.toLowerCase())]);
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
