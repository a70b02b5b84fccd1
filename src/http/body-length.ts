/** The length of a request's body, as its head announces it. */
import type { IncomingMessage } from 'node:http';

/** A body with more bytes is large: its sender must be admitted before the body is read. */
export const LARGE_BODY = 64 * 1024;

/** Returns the announced length of the body in bytes; null if the request does not announce it. */
export function bodyLength(req: IncomingMessage): number | null {
  return req.headers['transfer-encoding'] === undefined ? Number(req.headers['content-length'] ?? 0) : null;
}
