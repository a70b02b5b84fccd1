/** Ends an answer to a request whose body the gateway does not want, without letting such requests keep the thread busy. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { bodyLength, LARGE_BODY } from './body.ts';

/** After an early answer the rest of the body is discarded for this long, so that the client receives the answer. */
const LINGER_MS = 2_000;
/**
 * In this time one chunk, of at most 64 KiB, of one of these bodies is discarded. A chunk is garbage at once, and collecting garbage
 * costs all requests, so this is the pace of the process and not of one client.
 */
const CHUNK_EVERY_MS = 4;
/** If there are more, the one that was read longest ago is given up. */
const MAX_LINGERING = 64;

/** The requests, and what ends each before its time. The one that was read longest ago comes first. */
const lingering = new Map<IncomingMessage, () => void>();
let turns: NodeJS.Timeout | undefined;

function readNext(): void {
  const [next] = lingering;
  if (next === undefined) {
    clearInterval(turns);
    turns = undefined;
    return;
  }
  const [req, close] = next;
  lingering.delete(req);
  lingering.set(req, close);
  req.resume();
}

/** Closing a connection while bytes arrive resets it, and the client may lose the answer: a long body is discarded first. */
export function endAnswer(res: ServerResponse, text: string): void {
  const { req } = res;
  const length = bodyLength(req);
  if (req.complete || req.destroyed || (length !== null && length <= LARGE_BODY)) {
    res.end(text);
    return;
  }
  res.setHeader('Connection', 'close');
  res.setHeader('Content-Length', Buffer.byteLength(text));
  res.write(text);
  const pause = (): void => void req.pause();
  const close = (): void => {
    clearTimeout(timer);
    lingering.delete(req);
    req.off('data', pause).off('end', close).off('close', close);
    res.end();
  };
  const timer = setTimeout(close, LINGER_MS);
  req.pause();
  req
    .on('error', () => undefined)
    .on('data', pause)
    .on('end', close)
    .on('close', close);
  lingering.set(req, close);
  const [giveUp] = lingering.values();
  if (lingering.size > MAX_LINGERING) giveUp?.();
  turns ??= setInterval(readNext, CHUNK_EVERY_MS);
}
