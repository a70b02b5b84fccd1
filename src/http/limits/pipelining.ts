/** Limits pipelining: requests that a client sends on one connection without waiting for answers. */
import type { IncomingMessage, RequestListener, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { holdInput } from './crowded.ts';

/** Clients that pipeline at all send only a few requests. */
const MAX_AHEAD = 8;
/** The heads of the requests of one connection that wait, in bytes. A client may have a thousand connections. */
const MAX_BYTES_AHEAD = 24 * 1_024;
/** What a short text takes beside its characters. A head can have 500 names and values. */
const TEXT_BYTES = 32;

interface Waiting {
  /** About what its head takes in memory. */
  readonly bytes: number;
  begin(): void;
}

interface Line {
  readonly waiting: Waiting[];
  /** Lets node read what follows those that wait. */
  release(): void;
}

const bytesOf = ({ url = '', rawHeaders }: IncomingMessage): number =>
  rawHeaders.reduce((sum, { length }) => sum + length + TEXT_BYTES, url.length);

/**
 * Starts each request of a connection when the client has received the answer to the previous one. One packet can hold more than
 * a thousand requests, and node delivers them all at once. A client that pipelines too many, or too large ones, is disconnected. Requests behind an
 * answer that ends the connection are not started: their answers could never be sent, and node would never report their end.
 * `start` decides when a request that may start does so.
 */
export function limitPipelining(
  handle: RequestListener,
  start: (req: IncomingMessage, res: ServerResponse, begin: () => void) => void = (_req, _res, begin) => begin(),
): RequestListener {
  const lines = new WeakMap<Socket, Line>();

  function next(socket: Socket): void {
    const line = lines.get(socket);
    const first = socket.writable ? line?.waiting.shift() : undefined;
    if (first === undefined) lines.delete(socket);
    else setImmediate(() => socket.writable && first.begin());
    if (line?.waiting.length === 0) line.release();
  }

  return (req, res) => {
    const { socket } = req;
    // Node hands over requests that arrived before the connection broke, but never reports the end of their answers.
    if (!socket.writable) return;
    const begin = (): void =>
      start(req, res, () => {
        if (!socket.writable) return;
        res.once('close', () => next(socket));
        handle(req, res);
      });
    const line = lines.get(socket);
    if (line === undefined) {
      lines.set(socket, { waiting: [], release: () => undefined });
      return begin();
    }
    const { waiting } = line;
    const bytes = bytesOf(req);
    const ahead = waiting.reduce((sum, each) => sum + each.bytes, bytes);
    if (waiting.length === 0) line.release = holdInput(socket);
    if (waiting.length < MAX_AHEAD && ahead <= MAX_BYTES_AHEAD) waiting.push({ bytes, begin });
    else socket.destroy();
  };
}
