/** Ends an answer to a request whose body the gateway does not want, without letting such requests keep the thread busy. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { setImmediate } from 'node:timers/promises';
import { joinInSlices, partsOf } from '../base/turns/slices.ts';
import { bodyLength, LARGE_BODY } from './body-length.ts';
import { hasSentCrowded } from './limits/crowded.ts';

/** After an early answer the rest of the body is discarded for this long, so that the client receives the answer. */
const LINGER_MS = 2_000;
/**
 * The process discards one chunk of at most 64 KiB, of one of these bodies, in this time. The pace is that of the process and
 * not of each client, because every chunk becomes garbage, and all requests pay for its collection.
 */
const CHUNK_EVERY_MS = 4;
/** The maximum number of bodies that are discarded at once. Beyond it, the one that was read longest ago is given up. */
const MAX_LINGERING = 64;

/** The requests whose bodies are discarded, each with a function that ends it early. The one read longest ago comes first. */
const lingering = new Map<IncomingMessage, () => void>();
let turns: NodeJS.Timeout | undefined;

/** To encode a longer text at once would keep others waiting. */
const LONG_TEXT = 64 * 1024;

/** Node keeps about 200 bytes for a chunk of one byte, so a few such bodies would hold hundreds of megabytes while they wait. */
const isInSmallChunks = (req: IncomingMessage): boolean => bodyLength(req) === null && hasSentCrowded(req.socket);

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
  if (isInSmallChunks(req)) close();
  else req.resume();
}

async function endLong(res: ServerResponse, text: string): Promise<void> {
  res.flushHeaders();
  // The caller has just made the text.
  await setImmediate();
  const bytes = await joinInSlices(partsOf([text], LONG_TEXT / 4));
  res.end(bytes);
}

/**
 * Ends an answer. If a long body is still arriving, the gateway discards some of it before it closes the connection: closing
 * while bytes arrive would reset the connection, and the client could lose the answer.
 */
export function endAnswer(res: ServerResponse, text: string): void {
  const { req } = res;
  const length = bodyLength(req);
  if (req.complete || req.destroyed || (length !== null && length <= LARGE_BODY)) {
    if (text.length > LONG_TEXT) void endLong(res, text);
    else res.end(text);
    return;
  }
  res.setHeader('Connection', 'close');
  if (isInSmallChunks(req)) {
    res.end(text);
    return;
  }
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
