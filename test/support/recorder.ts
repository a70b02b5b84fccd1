/** A proxy in front of a real upstream that records the requests. */
import http from 'node:http';
import type { ExecutionContext } from 'ava';

export interface Received {
  readonly method: string;
  readonly headers: http.IncomingHttpHeaders;
  /** The JSON-RPC message of a POST, null otherwise. */
  readonly message: { readonly method?: string; readonly params?: Record<string, unknown>; readonly id?: unknown } | null;
}

export interface Recorder {
  readonly url: string;
  /** The requests in the order of arrival. */
  readonly received: Received[];
  /** `method name` of every request that names a tool, prompt or resource. */
  objects(): string[];
}

export async function record(t: ExecutionContext, upstream: string): Promise<Recorder> {
  const received: Received[] = [];
  const { hostname, port, pathname } = new URL(upstream);
  const server = http.createServer(async (req, res) => {
    const chunks: Buffer[] = [];
    for await (const chunk of req) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    received.push({
      method: req.method ?? '',
      headers: req.headers,
      message: req.method === 'POST' ? JSON.parse(body.toString()) : null,
    });
    // A connection that is kept may be closed by the upstream, for being idle, at the moment of the next request.
    const headers = { ...req.headers, host: `${hostname}:${port}`, connection: 'close' };
    const onwards = http.request({ hostname, port, path: pathname, method: req.method, headers, agent: false }, (answer) => {
      const { connection: _, ...back } = answer.headers;
      res.writeHead(answer.statusCode ?? 502, back);
      res.flushHeaders();
      answer.pipe(res);
    });
    onwards.on('error', () => res.destroy());
    res.on('close', () => onwards.destroy());
    onwards.end(body);
  });
  // Nor is one of the gateway's closed for that.
  server.keepAliveTimeout = 0;
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no address');
  return {
    url: `http://127.0.0.1:${address.port}${pathname}`,
    received,
    objects: () =>
      received.flatMap(({ message }) => {
        const name = message?.params?.['name'] ?? message?.params?.['uri'];
        return typeof name === 'string' ? [`${message?.method} ${name}`] : [];
      }),
  };
}
