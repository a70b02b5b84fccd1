import test from 'ava';
import { createAgent } from '../../src/mcp/upstream/connect.ts';
import { isLinkLocal } from '../../src/targets/address.ts';

test('link-local addresses are known in every notation', (t) => {
  for (const address of [
    '169.254.169.254',
    '169.254.0.1',
    'fe80::1',
    '[fe80::1]',
    'fe80::1%eth0',
    '::ffff:169.254.169.254',
    '::ffff:a9fe:a9fe',
    'fd00:ec2::254',
  ]) {
    t.true(isLinkLocal(address), address);
  }
  for (const address of ['127.0.0.1', '10.0.0.1', '::1', '169.253.0.1', 'example.com', 'fd00::1'])
    t.false(isLinkLocal(address), address);
});

test('a connection to one is refused before it is tried', async (t) => {
  const agent = createAgent(200);
  for (const origin of ['http://169.254.169.254', 'http://[::ffff:169.254.169.254]']) {
    await t.throwsAsync(agent.request({ origin, path: '/', method: 'GET' }), { message: /link-local/ }, origin);
  }
  await agent.destroy();
});
