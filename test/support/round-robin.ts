/** A load balancer without affinity: each request goes to the next replica, or to the one after it if that is down. */
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { ExecutionContext } from 'ava';

export interface RoundRobin {
  readonly url: string;
  /** How many requests each replica has had. */
  readonly counts: number[];
}

export async function roundRobin(t: ExecutionContext, replicas: readonly string[]): Promise<RoundRobin> {
  const counts = replicas.map(() => 0);
  let turn = 0;
  const server = http.createServer(async (req, res) => {
    const chunks: Buffer[] = [];
    for await (const chunk of req) chunks.push(chunk);
    const body = Buffer.concat(chunks);
    const first = turn++;
    const attempt = (tried: number): void => {
      const at = (first + tried) % replicas.length;
      const onwards = http.request(
        `${replicas[at]}${req.url}`,
        { method: req.method, headers: req.headers, agent: false },
        (answer) => {
          counts[at] = (counts[at] ?? 0) + 1;
          res.writeHead(answer.statusCode ?? 502, answer.headers);
          res.flushHeaders();
          answer.pipe(res);
          answer.on('error', () => res.destroy());
        },
      );
      onwards.on('error', (error: NodeJS.ErrnoException) => {
        if (error.code === 'ECONNREFUSED' && tried + 1 < replicas.length) attempt(tried + 1);
        else res.destroy();
      });
      res.on('close', () => onwards.destroy());
      onwards.end(body);
    };
    attempt(0);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.teardown(() => {
    server.closeAllConnections();
    server.close();
  });
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, counts };
}
