import { lookup } from 'node:dns/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import test from 'ava';
import { createAddressRule } from '../../../src/base/network/network-address.ts';
import { createAgent } from '../../../src/mcp/upstream/connect.ts';

test('a connection to a denied address is refused before it is tried', async (t) => {
  const agent = createAgent(200, createAddressRule([]), 'a target');
  for (const origin of [
    'http://169.254.169.254',
    'http://[::ffff:169.254.169.254]',
    'http://[64:ff9b:1::a9fe:a9fe]',
    'http://0xa9fea9fe',
    'http://100.100.100.200',
  ]) {
    const expected = { message: /link-local or metadata address.*UPSTREAM_ALLOWED_ADDRESSES/ };
    await t.throwsAsync(agent.request({ origin, path: '/', method: 'GET' }), expected, origin);
  }
  await agent.destroy();
});

test('a host name is checked by the address that it has when the gateway connects', async (t) => {
  const server = createServer((_, res) => void res.end('here')).listen(0, '127.0.0.1');
  t.teardown(() => server.close());
  await new Promise((resolve) => server.once('listening', resolve));
  const origin = `http://localhost:${(server.address() as AddressInfo).port}`;
  const resolved = (await lookup('localhost', { all: true })).map(({ address }) => address);
  const rule = (address: string) => (resolved.includes(address) ? `${address} is denied` : null);
  const denying = createAgent(5_000, rule, 'a target');
  await t.throwsAsync(denying.request({ origin, path: '/', method: 'GET' }), { message: /^localhost: .* is denied$/ });
  await denying.destroy();
  const allowing = createAgent(5_000, createAddressRule([]), 'a target');
  t.is(await (await allowing.request({ origin, path: '/', method: 'GET' })).body.text(), 'here');
  await allowing.destroy();
});
