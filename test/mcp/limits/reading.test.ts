/** Large answers of targets, until they are read: in bounded memory. */
import test from 'ava';
import { startRecording } from '../../support/upstreams/recording.ts';
import { routed, startGateway } from '../gateway.ts';
import { modern, send } from '../raw.ts';

const MIB = 1024 * 1024;
const DISCOVERED = { supportedVersions: ['2026-07-28'], capabilities: { tools: {} } };

for (const type of ['json', 'stream'] as const) {
  test(`large answers of a target that wait to be read are refused if they take too much memory (${type})`, async (t) => {
    let before = Promise.resolve();
    const upstream = await startRecording(async ({ message }, res) => {
      const length = { large: 12 * MIB, medium: MIB }[String(message?.params?.name)] ?? 1;
      const result =
        message?.method === 'server/discover' ? DISCOVERED : { content: [{ type: 'text', text: 'x'.repeat(length) }] };
      const text = JSON.stringify({ jsonrpc: '2.0', id: message?.id, result });
      // One after the other, so that they do not come at the same time.
      const turn = before;
      before = new Promise((resolve) => res.once('close', resolve));
      await turn;
      const isStream = type === 'stream' && length > 1;
      res.writeHead(200, { 'content-type': isStream ? 'text/event-stream' : 'application/json' });
      res.end(isStream ? `data: ${text}\n\n` : text);
    });
    // Once it has sent much, a target is read later.
    const gateway = await startGateway({
      targets: [routed('t', upstream.url)],
      rights: { alice: () => true },
      limits: { readingOfTarget: { perSecond: 1, burst: 1 } },
    });
    t.teardown(async () => {
      await gateway.stop();
      await upstream.stop();
    });
    const call = (name: string) => send(gateway, modern('tools/call', { name }));
    t.is((await call('medium')).code, undefined);
    const first = await Promise.race(Array.from({ length: 5 }, () => call('large')));
    t.true(/reached a limit on what it keeps open for targets/.test(first.text), first.text.slice(0, 200));
    t.is((await call('small')).code, undefined, 'small answers need no room');
  });
}

test('messages that a target sends to one caller do not delay its other callers', async (t) => {
  const upstream = await startRecording(({ message }, res) => {
    const result =
      message?.method === 'server/discover' ? DISCOVERED : { content: [{ type: 'text', text: 'x'.repeat(100_000) }] };
    const text = JSON.stringify({ jsonrpc: '2.0', id: message?.id, result });
    res.writeHead(200, { 'content-type': 'application/json' }).end(text);
  });
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: { alice: () => true, bob: () => true },
    limits: { readingOfTarget: { perSecond: 1, burst: 1 } },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const call = (user: string) => send(gateway, { ...modern('tools/call', { name: 'x' }), user }).then(() => user);
  await call('alice');
  t.is(await Promise.race([call('alice'), call('bob')]), 'bob');
});
