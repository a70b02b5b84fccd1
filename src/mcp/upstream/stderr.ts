/** What a process prints to its standard error: kept for whoever looks for the reason of its end, and logged within bounds. */
import { StringDecoder } from 'node:string_decoder';
import type { Log } from '../../log.ts';
import { printable } from './lines.ts';

const TAIL_LENGTH = 64 * 1024;
const LINE_LENGTH = 4 * 1024;
const LINES_PER_SECOND = 50;
/** Shorter ones would cut up what is no secret. */
const SECRET_LENGTH = 4;

export interface Stderr {
  push(bytes: Buffer): void;
  end(): void;
  /** The last of it. */
  tail(): string;
}

/** Cuts secrets out wherever they stand: a process may print its environment. */
export interface Hiding {
  hide(text: string): string;
  /** A place up to `at` where the text can be cut without cutting a secret, of which neither half would be known. */
  cut(text: string, at: number): number;
  /** No secret has more characters than this in any form. */
  readonly longest: number;
}

export function hideSecrets(secrets: readonly string[]): Hiding {
  const parts = secrets
    .flatMap((secret) => [secret, ...secret.split(/[\r\n]+/)])
    .filter((part) => part.length >= SECRET_LENGTH)
    .flatMap((part) => [part, ...percentOf(part), JSON.stringify(part).slice(1, -1), ...hexOf(part), ...base64Of(part)]);
  const longestFirst = [...new Set(parts)].sort((a, b) => b.length - a.length);
  return {
    hide: (text) => longestFirst.reduce((hidden, part) => hidden.replaceAll(part, '[redacted]'), text),
    cut(text, at) {
      // Once for each, so that no text can make it long, or keep all of itself waiting.
      return longestFirst.reduce((place, part) => {
        const from = Math.max(0, place - part.length + 1);
        const found = text.slice(from, place + part.length - 1).indexOf(part);
        return found === -1 ? place : from + found;
      }, at);
    },
    longest: longestFirst[0]?.length ?? 0,
  };
}

function percentOf(secret: string): string[] {
  const encoded = encodeURIComponent(secret);
  return [encoded, encoded.replace(/%../g, (byte) => byte.toLowerCase())];
}

function hexOf(secret: string): string[] {
  const hex = Buffer.from(secret).toString('hex');
  return [hex, hex.toUpperCase()];
}

/** The characters that are the secret's alone, wherever it stands in what was encoded. */
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

/** Logs what a process prints, at level debug, as far as its rate allows. */
export function createLineLog(about: { target: string; pid: number }, log: Log): (line: string, what: string) => void {
  let second = 0;
  let logged = 0;
  return (line, what) => {
    const current = Math.floor(performance.now() / 1000);
    if (current !== second) {
      second = current;
      logged = 0;
    }
    logged++;
    if (logged <= LINES_PER_SECOND) log.debug({ ...about, line }, what);
    else if (logged === LINES_PER_SECOND + 1) log.debug(about, 'a target prints too much to log all of it');
  };
}

export function createStderr(hiding: Hiding, logLine: (line: string, what: string) => void): Stderr {
  const decoder = new StringDecoder('utf8');
  let rest = '';
  let tail = '';

  function line(text: string): void {
    const shown = printable(hiding.hide(text)).slice(0, LINE_LENGTH);
    tail += `${shown}\n`;
    // Not after every line: that would copy all of it for each.
    if (tail.length > 2 * TAIL_LENGTH) tail = tail.slice(-TAIL_LENGTH);
    logLine(shown, 'stderr of a target');
  }

  return {
    push(bytes) {
      const lines = (rest + decoder.write(bytes)).split(/\r?\n/);
      rest = lines.pop() ?? '';
      for (const text of lines) line(text);
      // The beginning of a secret waits for its end.
      if (rest.length > LINE_LENGTH + hiding.longest) {
        const place = hiding.cut(rest, rest.length - hiding.longest);
        line(rest.slice(0, place));
        rest = rest.slice(place);
      }
    },
    end() {
      if (rest !== '') line(rest);
      rest = '';
    },
    tail: () => tail.slice(-TAIL_LENGTH),
  };
}
