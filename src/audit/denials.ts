/** Limits the denials of a principal per minute: each is a row, so a client that is always denied could fill the disk. */
import type { Log } from '../base/log.ts';

export interface DenialsParts {
  /** Denials per minute and principal. */
  readonly limit: number;
  readonly log: Pick<Log, 'warn'>;
  readonly now: () => number;
  /** Called for each request that must wait. */
  readonly onRefused: () => void;
}

interface Share {
  denied: number;
  refused: number;
}

const MINUTE_MS = 60_000;

export function createDenials({ limit, log, now, onRefused }: DenialsParts) {
  let began = now();
  let shares = new Map<string, Share>();

  /** Begins the next minute if the last is over, and logs the refusals of that minute once per principal. */
  function turn(): void {
    if (now() - began < MINUTE_MS && now() >= began) return;
    for (const [principal, { refused }] of shares) {
      if (refused > 0)
        log.warn({ principal, refused, limit }, 'requests of a principal were refused: too many denials within a minute');
    }
    began = now();
    shares = new Map();
  }

  return {
    /** Counts a recorded denial of this principal. */
    count(principal: string): void {
      turn();
      const share = shares.get(principal) ?? { denied: 0, refused: 0 };
      share.denied++;
      shares.set(principal, share);
    },
    /** Call it before a decision. Returns how many seconds the principal must wait because it reached the limit; null: none. */
    wait(principal: string): number | null {
      turn();
      const share = shares.get(principal);
      if (share === undefined || share.denied < limit) return null;
      if (share.refused++ === 0)
        log.warn({ principal, limit }, 'requests of a principal are refused: too many denials within this minute');
      onRefused();
      return Math.max(1, Math.ceil((began + MINUTE_MS - now()) / 1000));
    },
  };
}
