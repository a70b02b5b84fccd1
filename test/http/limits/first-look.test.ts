/** What the bytes of a request say of its sender before they are parsed. */
import { connect, type Socket } from 'node:net';
import test, { type ExecutionContext } from 'ava';
import type { TokenClaims } from '../../../src/auth/principal.ts';
import { createCallers } from '../../../src/http/callers.ts';
import { firstLook } from '../../../src/http/limits/first-look.ts';

const packet = (...lines: string[]): Buffer => Buffer.from(['GET /mcp HTTP/1.1', 'Host: x', ...lines, '', ''].join('\r\n'));

test('the first token and the last forwarded address are found, whatever their case', (t) => {
  const found = firstLook(
    packet('AUTHORIZATION:Bearer a ', 'x-Forwarded-For: 192.0.2.1', 'authorization: Bearer b', 'X-Forwarded-For: 192.0.2.2'),
  );
  t.deepEqual(found, { authorization: 'Bearer a', forwardedFor: '192.0.2.2', isHealth: false });
});

test('only the head is searched', (t) => {
  const sent = Buffer.concat([packet(), Buffer.from('\r\nauthorization: Bearer a\r\nx-forwarded-for: 192.0.2.1\r\n\r\n')]);
  t.deepEqual(firstLook(sent), { authorization: undefined, forwardedFor: undefined, isHealth: false });
  const other = firstLook(packet('x-authorization: Bearer a', 'x: authorization: Bearer a'));
  t.is(other.authorization, undefined);
});

test('only as much as a head may have is searched', (t) => {
  const { authorization } = firstLook(packet(`x: ${'x'.repeat(16 * 1024)}`, 'authorization: Bearer a'));
  t.is(authorization, undefined);
});

test('health checks are known by their path', (t) => {
  for (const path of ['/health/live', '/health', '/health?x'])
    t.true(firstLook(Buffer.from(`GET ${path} HTTP/1.1\r\n\r\n`)).isHealth, path);
  for (const path of ['/healthy', '/mcp/health/live'])
    t.false(firstLook(Buffer.from(`GET ${path} HTTP/1.1\r\n\r\n`)).isHealth, path);
});

const CLAIMS = { iss: 'local', sub: 'ann' } as TokenClaims;

function opened(t: ExecutionContext): Socket {
  const socket = connect({ port: 1, host: '127.0.0.1' }).on('error', () => undefined);
  t.teardown(() => void socket.destroy());
  Object.defineProperty(socket, 'remoteAddress', { value: '192.0.2.9' });
  return socket;
}

test('a packet is that of the principal whose token was admitted, and otherwise that of an address', async (t) => {
  const callers = createCallers(true);
  const socket = opened(t);
  const senderOf = (...lines: string[]) => callers.senderIn(packet(...lines), socket);
  const address = { sender: '192.0.2.1', isStranger: true, isBody: false, isHealth: false };
  const lines = ['authorization: Bearer a', 'x-forwarded-for: 192.0.2.7, 192.0.2.1'];
  t.deepEqual(senderOf(...lines), address);
  callers.heard('Bearer a', CLAIMS);
  await callers.noting(() => ({}) as never)(CLAIMS);
  const { sender, isStranger } = senderOf(...lines);
  t.false(isStranger);
  t.not(sender, address.sender);
  t.deepEqual(senderOf('authorization: Bearer b', 'x-forwarded-for: 192.0.2.1'), address, 'with another token');
  t.is(senderOf().sender, '192.0.2.9', 'that of the proxy itself');
  t.is(senderOf('x-forwarded-for: nonsense').sender, '192.0.2.9');
  t.is(createCallers(false).senderIn(packet('x-forwarded-for: 192.0.2.1'), socket).sender, '192.0.2.9', 'without a proxy');
});
