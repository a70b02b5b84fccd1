/** A proxy to a database server that adds a delay in each direction. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';

export interface Distance {
  /** The same URL, over this way. */
  readonly url: string;
  /** From now on. Never less, and as little more as timers allow. */
  away(ms: number): void;
  close(): Promise<void>;
}

export async function startDistance(url: string): Promise<Distance> {
  const { hostname, port } = new URL(url);
  let delay = 0;
  const sockets = new Set<Socket>();

  function carry(from: Socket, to: Socket): void {
    const under: { readonly chunk: Buffer; readonly due: number }[] = [];
    let waiting = false;
    const arrive = (): void => {
      waiting = false;
      for (let next = under[0]; next !== undefined; next = under[0]) {
        const left = next.due - performance.now();
        if (left > 0) {
          waiting = true;
          setTimeout(arrive, left);
          return;
        }
        under.shift();
        to.write(next.chunk);
      }
    };
    from.on('data', (chunk: Buffer) => {
      under.push({ chunk, due: performance.now() + delay });
      if (!waiting) arrive();
    });
    from.on('error', () => to.destroy());
    from.on('close', () => {
      sockets.delete(from);
      to.destroy();
    });
  }

  const server = createServer((client) => {
    const far = connect(Number(port), hostname);
    for (const socket of [client, far]) {
      socket.setNoDelay();
      sockets.add(socket);
    }
    carry(client, far);
    carry(far, client);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const through = new URL(url);
  through.port = String((server.address() as AddressInfo).port);
  return {
    url: through.href,
    away(ms) {
      delay = ms;
    },
    async close() {
      server.close();
      for (const socket of sockets) socket.destroy();
    },
  };
}
