/** How the benchmark's own servers say where they are, see `startNode`. */
import { once } from 'node:events';
import type { Server } from 'node:http';
import type { AddressInfo } from 'node:net';

/** Between rounds a connection is idle for as long as all the others take. */
const KEEP_ALIVE_MS = 600_000;

export async function announce(server: Server): Promise<void> {
  server.keepAliveTimeout = KEEP_ALIVE_MS;
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  console.log(`listening on ${(server.address() as AddressInfo).port}`);
}
