/** A raw connection to a server of its own. */
import { once } from 'node:events';
import type { Server } from 'node:http';
import { type AddressInfo, connect, type Socket } from 'node:net';
import type { ExecutionContext } from 'ava';

/** Starts the server, and connects to it. Both end with the test. */
export async function connected(t: ExecutionContext, server: Server): Promise<Socket> {
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const socket = connect((server.address() as AddressInfo).port, '127.0.0.1');
  socket.on('error', () => undefined);
  t.teardown(() => {
    socket.destroy();
    server.closeAllConnections();
    server.close();
  });
  return socket;
}
