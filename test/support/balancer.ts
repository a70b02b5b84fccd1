/**
 * A load balancer as operators run them: it checks the readiness of each replica, sends requests in turn to those that are ready over
 * connections that it keeps, and never tries a request a second time.
 */
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import type { ExecutionContext } from 'ava';

export interface Balancer {
  readonly url: string;
  /** The error codes of requests that no replica answered, also because none was ready. */
  readonly failures: string[];
  isReady(replica: string): boolean;
}

const CHECK_EVERY_MS = 100;

export async function balance(t: ExecutionContext, replicas: readonly string[]): Promise<Balancer> {
  const ready = new Set<string>();
  const failures: string[] = [];
  const agent = new http.Agent({ keepAlive: true });
  let over = false;
  const check = async (replica: string): Promise<void> => {
    while (!over) {
      const answer = await fetch(`${replica}/health/ready`).catch(() => null);
      if (answer?.status === 200) ready.add(replica);
      else ready.delete(replica);
      await answer?.arrayBuffer().catch(() => undefined);
      await sleep(CHECK_EVERY_MS);
    }
  };
  let turn = 0;
  const server = http.createServer((req, res) => {
    const inTurn = [...ready].sort();
    const replica = inTurn[turn++ % inTurn.length];
    const fail = (why: string): void => {
      failures.push(why);
      if (res.headersSent) res.destroy();
      else res.writeHead(502).end();
    };
    if (replica === undefined) return fail('no replica is ready');
    const { connection: _, ...headers } = req.headers;
    const onwards = http.request(replica + req.url, { method: req.method, headers, agent }, (answer) => {
      const { connection: _own, 'keep-alive': _hint, ...passed } = answer.headers;
      res.writeHead(answer.statusCode ?? 502, passed);
      res.flushHeaders();
      answer.pipe(res);
      answer.on('error', () => res.destroy());
    });
    onwards.on('error', (error: NodeJS.ErrnoException) => fail(error.code ?? error.message));
    res.on('close', () => onwards.destroy());
    req.pipe(onwards);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const checks = replicas.map(check);
  t.teardown(async () => {
    over = true;
    server.closeAllConnections();
    server.close();
    agent.destroy();
    await Promise.all(checks);
  });
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return { url, failures, isReady: (replica) => ready.has(replica) };
}
