/** Bounds on what a request, a target's answer and a principal may take. */

import type { Rate } from '../../base/budgets.ts';
import type { OutboxLimits } from '../../http/limits/outbox.ts';
import type { UpstreamLimits } from '../upstream/upstream.ts';
import type { DeliveryLimits } from './deliveries.ts';
import type { ListLimits } from './lists.ts';

export interface McpLimits extends UpstreamLimits, OutboxLimits {
  readonly bodyBytes: number;
  /** Bytes of large bodies under way: of one principal, and of all principals. */
  readonly bodyBytesOfPrincipal: number;
  readonly bodyBytesOfAll: number;
  /**
   * JSON values that are read for one principal, from one target for one principal, and in total. 128 bytes count as one value;
   * small messages are free.
   */
  readonly readingOfPrincipal: Rate;
  readonly readingOfTarget: Rate;
  readonly readingOfAll: Rate;
  /** Standalone streams of one principal in this process. */
  readonly streamsPerPrincipal: number;
  /** Streams of targets that these streams need. One at the aggregate endpoint needs a stream of every target. */
  readonly targetStreamsPerPrincipal: number;
  /** In-flight calls of one principal in this process, and as many messages besides requests. */
  readonly callsPerPrincipal: number;
  /** Messages of one principal to all targets, which wait or are under way in this process. */
  readonly widePerPrincipal: number;
  /** Timeout for messages from the gateway itself that open, set up or end an upstream session. */
  readonly openMs: number;
  /** How long a request at the aggregate endpoint waits for the slowest target, if no other request already waits for it. */
  readonly joinMs: number;
  /** A target counts as late only after this time. */
  readonly lateMs: number;
  readonly keepAliveMs: number;
  readonly deliveries: DeliveryLimits;
  readonly lists: ListLimits;
  /** How often streams and calls in flight are re-validated. */
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
  targetStreamsPerPrincipal: 4_096,
  callsPerPrincipal: 512,
  widePerPrincipal: 128,
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
    lists: {
      pair: { perSecond: 5, burst: 300 },
      target: { perSecond: 500, burst: 30_000 },
      all: { perSecond: 1_000, burst: 60_000 },
    },
  },
  lists: {
    readingOfPrincipal: 512 * 1024,
    readingOfAll: 2 * 1024 * 1024,
    answer: 2 * 1024 * 1024,
    smallAnswer: 512 * 1024,
    answersOfPrincipal: 2 * 1024 * 1024,
    answersOfAll: 16 * 1024 * 1024,
    answerWaitMs: 15_000,
  },
  watchMs: 1_000,
  connectMs: 5_000,
  headersMs: 60_000,
  silenceMs: 600_000,
  idleMs: 600_000,
  answerBytes: 16 * 1024 * 1024,
};
