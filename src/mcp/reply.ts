/** Writes answers: JSON-RPC messages, event streams, and problems (for requests without a JSON-RPC message). */
import type { ServerResponse } from 'node:http';
import { type Cancellable, onAbort } from '../base/cancellation.ts';
import { type Now, turnEnd } from '../base/promises.ts';
import { laneOnce } from '../base/turns/lane.ts';
import { partsOf } from '../base/turns/slices.ts';
import type { Recipient } from '../http/limits/outbox.ts';
import { type ProblemContext, problemOf, sendProblem } from '../http/problem.ts';
import type { Answer, OutEvent } from '../protocol/answer.ts';
import { LONG_TEXT, lengthOfText, type MessageText, partsOfText } from '../protocol/message.ts';
import { eventParts, formatEvent, KEEP_ALIVE } from '../protocol/sse.ts';

export interface ReplyContext extends ProblemContext {
  readonly keepAliveMs: number;
  readonly recipient: Recipient;
  readonly revoked: Cancellable;
}

/** The parts of an event are shorter than those of other texts, because line ends are looked for in them. */
const EVENT_PART = LONG_TEXT / 4;
/** A text up to this length is written together with its headers. */
const JOINED_TEXT = 4 * 1024;

/** The answer is written, or the client is gone, when the function returns or its promise resolves. */
export function writeAnswer(res: ServerResponse, answer: Answer, context: ReplyContext): Now<void> {
  switch (answer.kind) {
    case 'message':
      if (answer.headers !== undefined) {
        for (const [name, value] of Object.entries(answer.headers)) res.setHeader(name, value);
      }
      res.statusCode = answer.status;
      // Each header by itself: node would copy them out of an object one by one, too, and every call comes here.
      res.setHeader('content-type', 'application/json');
      res.setHeader('cache-control', 'no-store');
      return typeof answer.text === 'string' && answer.text.length <= LONG_TEXT
        ? writeShort(res, answer.text, context.recipient)
        : writeLong(res, answer.text, context);
    case 'empty':
      res.writeHead(answer.status).end();
      return;
    case 'problem':
      writeProblem(res, answer.error, context, answer.headers);
      return;
    case 'stream':
      return writeStream(res, answer.events, answer.drain, context);
  }
}

/** The answers of one turn are written one after the other, so that the kernel wakes a client that waits for several of them once. */
async function writeShort(res: ServerResponse, text: string, recipient: Recipient): Promise<void> {
  await turnEnd();
  // Node joins a short text with the headers. For a longer one, it would take the memory of three bytes a character.
  const body = text.length > JOINED_TEXT ? Buffer.from(text) : text;
  res.setHeader('content-length', Buffer.byteLength(body));
  res.end(body);
  if (res.writableLength > 0) await recipient.taken(0);
}

/** Sends no Content-Length, because counting the bytes takes as long as writing them. */
async function writeLong(res: ServerResponse, text: MessageText, context: ReplyContext): Promise<void> {
  await writeParts(res, partsOf(partsOfText(text), LONG_TEXT), lengthOfText(text), context);
  res.end();
  if (res.writableLength > 0) await context.recipient.taken(0);
}

/**
 * Writes a long text in parts, so that its encoding does not block other requests, and so that a slow client that reads some of
 * it does not count as stalled. That client could take an hour, so a revocation breaks the answer off. `length`: about how many characters there are.
 */
async function writeParts(
  res: ServerResponse,
  parts: Generator<string, undefined>,
  length: number,
  { recipient, revoked }: ReplyContext,
): Promise<void> {
  const breakOff = (): void => void res.destroy();
  onAbort(revoked, breakOff);
  let rest = length;
  for (let isOver = false, isTaken = true; !isOver && !res.destroyed; ) {
    // Cutting and encoding a long text takes long, so each part has its turn in the lane.
    await laneOnce(recipient.principal, () => {
      const { value: part } = parts.next();
      isOver = part === undefined;
      if (part === undefined) return;
      rest -= part.length;
      isTaken = res.write(Buffer.from(part));
    });
    if (!isTaken) await recipient.taken(Math.max(0, rest));
  }
  revoked.removeEventListener('abort', breakOff);
}

export function writeProblem(
  res: ServerResponse,
  error: unknown,
  context: ProblemContext,
  headers?: Readonly<Record<string, string>>,
): void {
  sendProblem(res, problemOf(error, context), headers);
}

async function writeStream(
  res: ServerResponse,
  events: AsyncGenerator<OutEvent>,
  drain: boolean,
  context: ReplyContext,
): Promise<void> {
  const { keepAliveMs, recipient } = context;
  res.writeHead(200, {
    'content-type': 'text/event-stream',
    'cache-control': 'no-cache, no-transform',
    'x-accel-buffering': 'no',
  });
  res.flushHeaders();
  // Between the parts of an event, it would end a line in the middle.
  let isInEvent = false;
  const keepAlive = setInterval(() => {
    if (!isInEvent && !res.writableNeedDrain && !res.destroyed) res.write(KEEP_ALIVE);
  }, keepAliveMs);
  try {
    for await (const event of events) {
      if (res.destroyed && !drain) break;
      if (!res.destroyed) {
        const length = lengthOfText(event.data);
        isInEvent = length > LONG_TEXT;
        if (isInEvent) await writeParts(res, eventParts(event, EVENT_PART), length, context);
        else if (!res.write(formatEvent(event))) await recipient.taken(0);
      }
      isInEvent = false;
      event.data = '';
    }
  } finally {
    clearInterval(keepAlive);
    res.end();
  }
  if (res.writableLength > 0) await recipient.taken(0);
}
