/** A TCP proxy that can be cut and restored, so that a client sees a database disappear and come back. */
import { connect, createServer, type Socket } from 'node:net';
import type { ExecutionContext } from 'ava';

export interface Cuttable {
  /** The same URL, through this way. */
  readonly url: string;
  /** Ends every connection and refuses new ones. */
  cut(): void;
  /** Stops all traffic, but keeps the connections open. */
  freeze(): void;
  mend(): void;
}

export async function cuttable(t: ExecutionContext, url: string): Promise<Cuttable> {
  const { hostname, port } = new URL(url);
  let state: 'open' | 'cut' | 'frozen' = 'open';
  const pairs = new Set<readonly [Socket, Socket]>();
  const server = createServer((client) => {
    if (state === 'cut') {
      client.destroy();
      return;
    }
    const upstream = connect(Number(port), hostname);
    const pair = [client, upstream] as const;
    pairs.add(pair);
    for (const [from, to] of [pair, [upstream, client] as const]) {
      from.on('error', () => to.destroy());
      from.on('close', () => {
        to.destroy();
        pairs.delete(pair);
      });
      from.pipe(to);
      if (state === 'frozen') from.pause();
    }
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('no address');
  const through = new URL(url);
  through.port = String(address.port);
  const end = (): void => {
    for (const [client, upstream] of pairs) {
      client.destroy();
      upstream.destroy();
    }
  };
  t.teardown(() => {
    end();
    server.close();
  });
  return {
    url: through.href,
    cut() {
      state = 'cut';
      end();
    },
    freeze() {
      state = 'frozen';
      for (const sockets of pairs) for (const socket of sockets) socket.pause();
    },
    mend() {
      if (state === 'frozen') for (const sockets of pairs) for (const socket of sockets) socket.resume();
      state = 'open';
    },
  };
}
