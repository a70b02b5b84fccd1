/** Limits pipelining: requests that a client sends on one connection without waiting for answers. */
import type { RequestListener } from 'node:http';
import type { Socket } from 'node:net';

/** Clients that pipeline at all send only a few requests. */
const MAX_AHEAD = 32;

/**
 * Begins each request of a connection when the one before it is answered and taken: a packet holds more than a thousand requests, which
 * node hands over at once. A client that sends too many ahead is closed. What comes behind an answer that ends the connection is not
 * begun: its own answer would never be sent, and node would never tell that it is over.
 */
export function inTurn(handle: RequestListener): RequestListener {
  const lines = new WeakMap<Socket, (() => void)[]>();

  function next(socket: Socket): void {
    const begin = socket.writable ? lines.get(socket)?.shift() : undefined;
    if (begin === undefined) lines.delete(socket);
    else setImmediate(() => socket.writable && begin());
  }

  return (req, res) => {
    const { socket } = req;
    const begin = (): void => {
      res.once('close', () => next(socket));
      handle(req, res);
    };
    const line = lines.get(socket);
    if (line === undefined) {
      lines.set(socket, []);
      begin();
    } else if (line.length < MAX_AHEAD) line.push(begin);
    else socket.destroy();
  };
}
