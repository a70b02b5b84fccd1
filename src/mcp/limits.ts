/** Bounds on what a request, a target's answer and a principal may take. */
import type { UpstreamLimits } from './upstream/upstream.ts';

export interface McpLimits extends UpstreamLimits {
  readonly bodyBytes: number;
  /** Standing streams of one principal in this process. */
  readonly streamsPerPrincipal: number;
  /** Calls of one principal under way in this process. */
  readonly callsPerPrincipal: number;
  /** For a session to be opened at a target on behalf of a client that does not wait for it by itself. */
  readonly openMs: number;
  readonly keepAliveMs: number;
  /** How often the right to what is under way is looked at again. */
  readonly watchMs: number;
}

export const DEFAULT_LIMITS: McpLimits = {
  bodyBytes: 4 * 1024 * 1024,
  streamsPerPrincipal: 256,
  callsPerPrincipal: 512,
  openMs: 20_000,
  keepAliveMs: 15_000,
  watchMs: 1_000,
  connectMs: 5_000,
  headersMs: 60_000,
  idleMs: 600_000,
  answerBytes: 16 * 1024 * 1024,
};
