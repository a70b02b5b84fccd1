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

/** `secrets` are cut out wherever they stand: a process may print its environment. */
export function hideSecrets(secrets: readonly string[]): (text: string) => string {
  const parts = secrets.flatMap((secret) => [secret, ...secret.split(/[\r\n]+/)]).filter((part) => part.length >= SECRET_LENGTH);
  const longestFirst = [...new Set(parts)].sort((a, b) => b.length - a.length);
  return (text) => longestFirst.reduce((hidden, part) => hidden.replaceAll(part, '[redacted]'), text);
}

export function createStderr(about: { target: string; pid: number }, hide: (text: string) => string, log: Log): Stderr {
  const decoder = new StringDecoder('utf8');
  let rest = '';
  let tail = '';
  let second = 0;
  let logged = 0;

  function line(text: string): void {
    const shown = printable(hide(text)).slice(0, LINE_LENGTH);
    tail = `${tail}${shown}\n`.slice(-TAIL_LENGTH);
    const current = Math.floor(performance.now() / 1000);
    if (current !== second) {
      second = current;
      logged = 0;
    }
    logged++;
    if (logged <= LINES_PER_SECOND) log.debug({ ...about, line: shown }, 'stderr of a target');
    else if (logged === LINES_PER_SECOND + 1) log.debug(about, 'a target prints too much to stderr to log all of it');
  }

  return {
    push(bytes) {
      const lines = (rest + decoder.write(bytes)).split(/\r?\n/);
      rest = lines.pop() ?? '';
      for (const text of lines) line(text);
      if (rest.length > LINE_LENGTH) {
        line(rest);
        rest = '';
      }
    },
    end() {
      if (rest !== '') line(rest);
      rest = '';
    },
    tail: () => tail,
  };
}
