/** Bounds on what a request, a target's answer and a principal may take. */

import type { Rate } from './budgets.ts';
import type { DeliveryLimits } from './deliveries.ts';
import type { OutboxLimits } from './outbox.ts';
import type { UpstreamLimits } from './upstream/upstream.ts';

export interface McpLimits extends UpstreamLimits, OutboxLimits {
  readonly bodyBytes: number;
  /** Bytes of large bodies under way: of one principal, and of all. */
  readonly bodyBytesOfPrincipal: number;
  readonly bodyBytesOfAll: number;
  /** Values of JSON that are read for principals, and of a target for one principal; 128 bytes count as one. Small messages are free. */
  readonly readingOfPrincipal: Rate;
  readonly readingOfTarget: Rate;
  readonly readingOfAll: Rate;
  /** Standing streams of one principal in this process. */
  readonly streamsPerPrincipal: number;
  /** Calls of one principal under way in this process. */
  readonly callsPerPrincipal: number;
  /** For a session to be opened at a target on behalf of a client that does not wait for it by itself. */
  readonly openMs: number;
  /** How long a request to all targets waits for the slowest, if no other request waits for it. */
  readonly joinMs: number;
  /** A target is not late before this time. */
  readonly lateMs: number;
  readonly keepAliveMs: number;
  readonly deliveries: DeliveryLimits;
  /** How often the right to what is under way is looked at again. */
  readonly watchMs: number;
}

export const DEFAULT_LIMITS: McpLimits = {
  bodyBytes: 4 * 1024 * 1024,
  bodyBytesOfPrincipal: 16 * 1024 * 1024,
  bodyBytesOfAll: 64 * 1024 * 1024,
  readingOfPrincipal: { perSecond: 300_000, burst: 1_000_000 },
  readingOfTarget: { perSecond: 500_000, burst: 2_000_000 },
  readingOfAll: { perSecond: 1_500_000, burst: 6_000_000 },
  streamsPerPrincipal: 256,
  callsPerPrincipal: 512,
  openMs: 20_000,
  joinMs: 3_000,
  lateMs: 100,
  keepAliveMs: 15_000,
  waitingBytesOfPrincipal: 64 * 1024 * 1024,
  waitingBytesOfAll: 160 * 1024 * 1024,
  stallMs: 60_000,
  deliveries: {
    messages: {
      pair: { perSecond: 500, burst: 5_000 },
      target: { perSecond: 1_000, burst: 10_000 },
      all: { perSecond: 2_000, burst: 20_000 },
    },
    rush: {
      pair: { perSecond: 1_000, burst: 64 },
      target: { perSecond: 1_500, burst: 128 },
      all: { perSecond: 3_000, burst: 512 },
    },
    decided: {
      pair: { perSecond: 20, burst: 200 },
      target: { perSecond: 100, burst: 2_000 },
      all: { perSecond: 200, burst: 4_000 },
    },
  },
  watchMs: 1_000,
  connectMs: 5_000,
  headersMs: 60_000,
  silenceMs: 600_000,
  idleMs: 600_000,
  answerBytes: 16 * 1024 * 1024,
};
