/** The requests of a bad neighbour as data, so that the control can send the same to a server that discards them. */

export interface Step {
  readonly method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';
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
  /** Values for `{name}` in what each loop sends, for one loop after the other, again and again. Left out: none. */
  readonly given?: readonly Readonly<Record<string, string>>[];
  /** How many do it at the same time. Each has a connection of its own, and sends a step when the one before is answered. */
  readonly loops: number;
  /** A loop sends no sooner than this after it last sent. Left out: as fast as it is answered. */
  readonly everyMs?: number;
  /** Each loop begins with these, and begins again when it gets a 404 or lacks a captured value. `{n}` is a new number each time. */
  readonly first: readonly Step[];
  /** Then each loop repeats these. */
  readonly steps: readonly Step[];
}

/** How the neighbour's requests ended. */
export interface Tally {
  /** Number of requests by how they ended: `401`, `200 error 403`, `open`, `ECONNRESET`. */
  readonly outcomes: Readonly<Record<string, number>>;
  readonly sentBytes: number;
  readonly receivedBytes: number;
}

/** Where the control sends it: to a server that discards it and answers with as many bytes, or directly to the target. */
export type Instead = { readonly discard: string } | { readonly target: string };

export interface LoadOrders {
  /** Runs the workload for `ms`, ends what is open then, and remembers what it sent and when. */
  begin: { takes: { readonly origin: string; readonly workload: Workload; readonly ms: number }; gives: Tally };
  /** Sends the remembered requests again: the same bytes at the same times. */
  again: { takes: { readonly instead: Instead; readonly ms: number }; gives: Tally };
}

/** Header that tells the discarding server how many bytes to answer with. */
export const ANSWER_BYTES = 'x-answer-bytes';
