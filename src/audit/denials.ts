/** How many denials one principal may have recorded a minute: each is a row, and who is always refused could fill the disk. */
import type { Log } from '../log.ts';

export interface Denials {
  /** A denial of this principal was recorded. */
  count(principal: string): void;
  /** Before anything of this principal is decided: null, or the seconds that it must wait, because its share is used up. */
  wait(principal: string): number | null;
}

export interface DenialsParts {
  /** A minute and principal. */
  readonly limit: number;
  readonly log: Pick<Log, 'warn'>;
  readonly now: () => number;
  /** Told of each request that must wait. */
  readonly onRefused: () => void;
}

interface Share {
  denied: number;
  refused: number;
}

const MINUTE_MS = 60_000;

export function createDenials({ limit, log, now, onRefused }: DenialsParts): Denials {
  let began = now();
  let shares = new Map<string, Share>();

  /** What was refused in the minute that is over is said once, for each principal. */
  function turn(): void {
    if (now() - began < MINUTE_MS && now() >= began) return;
    for (const [principal, { refused }] of shares) {
      if (refused > 0) log.warn({ principal, refused, limit }, 'requests were refused for a minute: too many denials');
    }
    began = now();
    shares = new Map();
  }

  return {
    count(principal) {
      turn();
      const share = shares.get(principal) ?? { denied: 0, refused: 0 };
      share.denied++;
      shares.set(principal, share);
    },
    wait(principal) {
      turn();
      const share = shares.get(principal);
      if (share === undefined || share.denied < limit) return null;
      if (share.refused++ === 0) log.warn({ principal, limit }, 'a principal has too many denials; its requests are refused');
      onRefused();
      return Math.max(1, Math.ceil((began + MINUTE_MS - now()) / 1000));
    },
  };
}
