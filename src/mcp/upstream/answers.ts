/** Builds answers as Streamable HTTP would give them, for targets that have no HTTP response of their own. */
import type { SseEvent } from '../protocol/sse.ts';
import type { UpstreamAnswer } from './upstream.ts';

interface Opened {
  readonly sessionId: string | null;
  readonly held: boolean;
}

const NONE: Opened = { sessionId: null, held: false };

/** An answer that consists of its status only. */
export function statusAnswer(status: number, retryAfter: string | null = null): UpstreamAnswer {
  return { status, ...NONE, retryAfter, discard: () => undefined, type: 'other', read: bodyOf('') };
}

export function jsonAnswer(status: number, text: string, opened: Opened = NONE): UpstreamAnswer {
  return { status, ...opened, retryAfter: null, discard: () => undefined, type: 'json', read: bodyOf(text) };
}

export function streamAnswer(
  events: AsyncIterable<readonly SseEvent[]>,
  discard: () => void,
  opened: Opened = NONE,
): UpstreamAnswer {
  return { status: 200, ...opened, retryAfter: null, discard, type: 'stream', events };
}

function bodyOf(text: string): () => Promise<Buffer> {
  return async () => Buffer.from(text, 'utf8');
}
