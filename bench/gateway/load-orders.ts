/** What the process of the callers, `load.ts`, takes and gives. */
export interface Place {
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
}

export interface Orders {
  /** Opens sessions that later orders name, one after the other, or so many at once. */
  open: { takes: Place & { key: string; sessions: number; tool: string; atOnce?: number }; gives: Record<string, never> };
  /** Fails where the target is reached without a token, or with another tool in the first session. */
  probe: { takes: Place & { key: string }; gives: Record<string, never> };
  /** Calls in a closed loop on the first `concurrency` sessions, for a time or a number of calls. Times are in milliseconds. */
  run: { takes: { key: string; concurrency: number; ms: number; calls?: number; work?: Work }; gives: RunFigures };
  /** Opens this number of sessions, each with a standalone stream, and keeps them. `open`: the number of all streams so far. */
  idle: { takes: Place & { streams: number }; gives: { open: number } };
}

/** A call whose result has this many more characters, or a list of this many tools. Default: a call with a short result. */
export type Work = { readonly pad: number } | { readonly list: number };

export interface RunFigures {
  readonly calls: number;
  readonly perSecond: number;
  readonly p50: number;
  readonly p99: number;
}
