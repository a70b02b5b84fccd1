import type { IncomingMessage } from 'node:http';

/** The whole body, read only as far as the limit. How slowly it may come is for the server's request timeout. */
export function readBody(req: IncomingMessage, maxBytes: number): Promise<Buffer | 'too_large' | 'aborted'> {
  if (Number(req.headers['content-length'] ?? 0) > maxBytes) return Promise.resolve('too_large');
  return new Promise((resolve) => {
    const chunks: Buffer[] = [];
    let size = 0;
    const take = (chunk: Buffer): void => {
      size += chunk.length;
      chunks.push(chunk);
      if (size <= maxBytes) return;
      req.off('data', take);
      req.pause();
      resolve('too_large');
    };
    req.on('data', take);
    req.once('end', () => resolve(Buffer.concat(chunks, size)));
    req.once('error', () => resolve('aborted'));
    req.once('close', () => resolve('aborted'));
  });
}
