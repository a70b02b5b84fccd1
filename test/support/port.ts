/** Ports for servers of tests. */
import { randomInt } from 'node:crypto';
import { createServer } from 'node:net';

// These ports are below the range from which systems take the ports of outgoing connections. Nothing reserves a port until a server listens
// on it. So each process takes ports from the block of its process id, one after the other.
const PORTS = { from: 10_000, blocks: 110, each: 200 };
let given = randomInt(PORTS.each);

/** Returns a port of loopback that was free a moment ago. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = PORTS.from + (process.pid % PORTS.blocks) * PORTS.each + (given++ % PORTS.each);
    const server = createServer();
    const free = await new Promise<boolean>((resolve) => {
      server.once('error', () => resolve(false));
      server.listen(port, '127.0.0.1', () => resolve(true));
    });
    if (!free) continue;
    await new Promise((resolve) => server.close(resolve));
    return port;
  }
}
