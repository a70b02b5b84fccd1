/** Large answers of targets take limited memory until they are read. */
import test from 'ava';
import { startRecording } from '../../support/upstreams/recording.ts';
import { routed, startGateway } from '../gateway.ts';
import { modern, send } from '../raw.ts';

const MIB = 1024 * 1024;
const DISCOVERED = { supportedVersions: ['2026-07-28'], capabilities: { tools: {} } };

/** A target whose tools answer with texts of known length, in JSON or as a stream. */
async function lengths(isStream: boolean) {
  let before = Promise.resolve();
  return startRecording(async ({ message }, res) => {
    const length = { large: 12 * MIB, medium: MIB }[String(message?.params?.name)] ?? 1;
    const result = message?.method === 'server/discover' ? DISCOVERED : { content: [{ type: 'text', text: 'x'.repeat(length) }] };
    const text = JSON.stringify({ jsonrpc: '2.0', id: message?.id, result });
    // One after the other, so that streams do not come at the same time.
    const turn = before;
    before = new Promise((resolve) => res.once('close', resolve));
    if (isStream) await turn;
    const type = isStream && length > 1 ? 'text/event-stream' : 'application/json';
    res.writeHead(200, { 'content-type': type, ...(isStream ? {} : { 'content-length': Buffer.byteLength(text) }) });
    res.end(isStream && length > 1 ? `data: ${text}\n\n` : text);
  });
}

test('large answers in streams that wait to be read are refused if they take too much memory', async (t) => {
  const upstream = await lengths(true);
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

test('large bodies that come at the same time are read in turn, and each arrives', async (t) => {
  const upstream = await lengths(false);
  const gateway = await startGateway({ targets: [routed('t', upstream.url)], rights: { alice: () => true } });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const answers = await Promise.all(Array.from({ length: 5 }, () => send(gateway, modern('tools/call', { name: 'large' }))));
  t.deepEqual(
    answers.map(({ text }) => text.length > 12 * MIB),
    [true, true, true, true, true],
  );
});
