/** Writes answers: JSON-RPC messages, event streams, and problems where there is no JSON-RPC message to answer. */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { type AppError, ERRORS } from '../errors.ts';
import type { Answer, OutEvent } from './answer.ts';
import { formatEvent, KEEP_ALIVE } from './sse.ts';

export interface ReplyOptions {
  readonly requestId: string;
  readonly keepAliveMs: number;
}

/** Resolves when the answer is written or the client is gone. */
export async function writeAnswer(res: ServerResponse, answer: Answer, options: ReplyOptions): Promise<void> {
  switch (answer.kind) {
    case 'message':
      res.writeHead(answer.status, { ...answer.headers, 'content-type': 'application/json', 'cache-control': 'no-store' });
      res.end(answer.text);
      return;
    case 'empty':
      res.writeHead(answer.status).end();
      return;
    case 'problem':
      writeProblem(res, answer.error, options.requestId, answer.headers);
      return;
    case 'stream':
      await writeStream(res, answer.events, answer.drain, options.keepAliveMs);
  }
}

/** RFC 9457. */
export function writeProblem(
  res: ServerResponse,
  error: AppError,
  requestId: string,
  headers: Readonly<Record<string, string>> = {},
): void {
  const { title, status } = ERRORS[error.code];
  const retry = error.retryAfter === undefined ? {} : { 'retry-after': String(error.retryAfter) };
  res.writeHead(status, { ...headers, ...retry, 'content-type': 'application/problem+json', 'cache-control': 'no-store' });
  res.end(JSON.stringify({ type: 'about:blank', title, status, detail: error.message, code: error.code, request_id: requestId }));
}

async function writeStream(
  res: ServerResponse,
  events: AsyncGenerator<OutEvent>,
  drain: boolean,
  keepAliveMs: number,
): Promise<void> {
  res.writeHead(200, {
    'content-type': 'text/event-stream',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no',
  });
  res.flushHeaders();
  const keepAlive = setInterval(() => {
    if (!res.writableNeedDrain && !res.destroyed) res.write(KEEP_ALIVE);
  }, keepAliveMs);
  try {
    for await (const event of events) {
      if (res.destroyed) {
        if (drain) continue;
        break;
      }
      if (!res.write(formatEvent(event))) await writable(res);
    }
  } finally {
    clearInterval(keepAlive);
    res.end();
  }
}

/** A slow client slows its target down; it does not fill the gateway's memory. */
async function writable(res: ServerResponse): Promise<void> {
  const settled = new AbortController();
  const { signal } = settled;
  await Promise.race([once(res, 'drain', { signal }), once(res, 'close', { signal })]).catch(() => undefined);
  settled.abort();
}
