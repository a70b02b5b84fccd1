/** What a bad neighbour sends, as data: so that the same can be sent again, to a server that discards it. */

export interface Step {
  readonly method: 'GET' | 'POST' | 'PUT' | 'DELETE';
  readonly path: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: string;
  /** A value of the answer, head or body, for `{name}` in what this loop sends later: the first group of the pattern. */
  readonly capture?: { readonly name: string; readonly pattern: string };
  /** The body is sent over this time. Left out: as fast as it is taken. */
  readonly sendMs?: number;
  /** The answer is not read, and the connection stays open until the neighbour ends. */
  readonly unread?: boolean;
}

export interface Workload {
  /** How many do it at the same time, each over a connection of its own, each step as soon as the one before is answered. */
  readonly loops: number;
  /** Requests of all loops together. Left out: as many as are answered. */
  readonly perSecond?: number;
  /** Once in each loop, and once more when what it gave is no longer known (404). `{n}` is a number that nobody else has. */
  readonly first: readonly Step[];
  /** Again and again. */
  readonly steps: readonly Step[];
}

/** What the neighbour got. */
export interface Tally {
  /** How many requests ended how: `401`, `200`, `200 error 403`, `open`, `ECONNRESET`. */
  readonly outcomes: Readonly<Record<string, number>>;
  readonly sentBytes: number;
  readonly receivedBytes: number;
}

/** Where the control sends it: to a server that discards it and answers with as many bytes, or to the target without a gateway between. */
export type Instead = { readonly discard: string } | { readonly target: string };

export interface LoadOrders {
  /** Does it for so long, ends all that is open, and remembers what it sent when. */
  begin: { takes: { readonly origin: string; readonly workload: Workload; readonly ms: number }; gives: Tally };
  /** Sends what it remembers once more: the same bytes at the same times. */
  again: { takes: { readonly instead: Instead; readonly ms: number }; gives: Tally };
}

/** The discarding server answers with so many bytes. */
export const ANSWER_BYTES = 'x-answer-bytes';
