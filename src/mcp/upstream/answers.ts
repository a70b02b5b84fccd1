/** Builds answers as Streamable HTTP would give them, for targets that have no HTTP response of their own. */
import type { SseEvent } from '../../protocol/sse.ts';
import type { UpstreamAnswer } from './upstream.ts';

const HEAD = { retryAfter: null, discard: () => undefined };

/** The session that the answer opens, if there is one, lives in this process. */
const opened = (sessionId: string | null) => ({ sessionId, held: sessionId !== null });

/** An answer that consists of its status only. */
export function statusAnswer(status: number, retryAfter: string | null = null): UpstreamAnswer {
  return { ...HEAD, ...opened(null), status, retryAfter, type: 'other', read: async () => '' };
}

export function jsonAnswer(status: number, text: string, sessionId: string | null = null): UpstreamAnswer {
  return { ...HEAD, ...opened(sessionId), status, type: 'json', read: async () => text };
}

export function streamAnswer(
  events: AsyncIterable<readonly SseEvent[]>,
  discard: () => void,
  sessionId: string | null = null,
): UpstreamAnswer {
  return { ...HEAD, ...opened(sessionId), status: 200, discard, type: 'stream', events };
}
