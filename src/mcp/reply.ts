/** Writes answers: JSON-RPC messages, event streams, and problems where there is no JSON-RPC message to answer. */
import { once } from 'node:events';
import type { ServerResponse } from 'node:http';
import { type ProblemContext, problemOf, sendProblem } from '../http/problem.ts';
import type { Answer, OutEvent } from './answer.ts';
import { formatEvent, KEEP_ALIVE } from './sse.ts';

export interface ReplyContext extends ProblemContext {
  readonly keepAliveMs: number;
}

/** Resolves when the answer is written or the client is gone. */
export async function writeAnswer(res: ServerResponse, answer: Answer, context: ReplyContext): Promise<void> {
  switch (answer.kind) {
    case 'message':
      if (answer.headers !== undefined) setHeaders(res, answer.headers);
      res.writeHead(answer.status, {
        'content-type': 'application/json',
        'content-length': Buffer.byteLength(answer.text),
        'cache-control': 'no-store',
      });
      res.end(answer.text);
      return;
    case 'empty':
      res.writeHead(answer.status).end();
      return;
    case 'problem':
      writeProblem(res, answer.error, context, answer.headers);
      return;
    case 'stream':
      await writeStream(res, answer.events, answer.drain, context.keepAliveMs);
  }
}

export function writeProblem(
  res: ServerResponse,
  error: unknown,
  context: ProblemContext,
  headers: Readonly<Record<string, string>> = {},
): void {
  const problem = problemOf(error, context);
  if (res.headersSent) {
    sendProblem(res, problem);
    return;
  }
  // Header names are compared without case: those of the answer replace the general ones.
  setHeaders(res, { ...problem.headers, ...headers });
  sendProblem(res, { ...problem, headers: {} });
}

function setHeaders(res: ServerResponse, headers: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(headers)) res.setHeader(name, value);
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
