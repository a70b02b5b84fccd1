/** What a client sends on one connection without waiting for answers (pipelining). */
import type { RequestListener } from 'node:http';
import type { Socket } from 'node:net';

/** Clients that send ahead at all send a few requests. */
const MAX_AHEAD = 32;

/**
 * Begins each request of a connection when the one before it is answered and taken: a packet holds more than a thousand requests, which
 * node hands over at once. A client that sends too many ahead is closed.
 */
export function inTurn(handle: RequestListener): RequestListener {
  const lines = new WeakMap<Socket, (() => void)[]>();

  function next(socket: Socket): void {
    const begin = socket.destroyed ? undefined : lines.get(socket)?.shift();
    if (begin === undefined) lines.delete(socket);
    else setImmediate(begin);
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
