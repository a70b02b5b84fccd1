/** Decisions that take long by the estimate of the engine are cut into steps and take turns. Ordinary decisions do not. */
import { setTimeout as sleep } from 'node:timers/promises';
import test, { type ExecutionContext } from 'ava';
import { lane } from '../../src/base/turns/lane.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { routed, startGateway } from './gateway.ts';
import { inSession, modern, open, send } from './raw.ts';

const LINKS = 30;
const DECISION_MS = 3;
const link = (name: string) => ({ type: 'resource_link', uri: `file:///${name}`, name: 'a' });
const isLong = (name: string): boolean => name.startsWith('file:///long');

async function start(t: ExecutionContext) {
  const upstream = await startRecording(
    byMethod({
      'resources/read': ({ uri }) => ({ contents: [{ uri, text: 'x' }] }),
      'tools/call': ({ name }) => ({
        content: [
          { type: 'x', content: Array.from({ length: LINKS }, (_, n) => link(`${name === 'costly' ? 'long' : 'short'}/${n}`)) },
        ],
      }),
    }),
  );
  /** How many long decisions each turn of the event loop has made. */
  const turns: number[] = [];
  let isOpen = false;
  const gateway = await startGateway({
    targets: [routed('t', upstream.url)],
    rights: {
      alice: ({ resource_name }) => {
        if (!isLong(resource_name)) return true;
        if (!isOpen) {
          turns.push(0);
          isOpen = true;
          setImmediate(() => {
            isOpen = false;
          });
        }
        turns.push((turns.pop() ?? 0) + 1);
        const until = performance.now() + DECISION_MS;
        while (performance.now() < until);
        return !resource_name.endsWith('7');
      },
    },
  });
  gateway.estimated = ({ resource_name }) => (isLong(resource_name) ? DECISION_MS : 0.001);
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const session = await open(gateway);
  const ask = async (method: string, params: object) => {
    const began = performance.now();
    const reply = await send(gateway, inSession(session, { jsonrpc: '2.0', id: 1, method, params }));
    return { text: reply.text, ms: performance.now() - began };
  };
  return { gateway, turns, ask };
}

test.serial('one part of an answer with many links that are costly to decide never decides two of them in one go', async (t) => {
  const { turns, ask, gateway } = await start(t);
  const { text } = await ask('tools/call', { name: 'costly', arguments: {} });
  const { result } = JSON.parse(text) as { result: { content: { content: { uri: string }[] }[] } };
  const shown = result.content[0]?.content.map(({ uri }) => uri) ?? [];
  t.is(shown.length, LINKS - 3);
  t.deepEqual(gateway.shown.at(-1)?.names, shown, 'the log has what the client gets');
  t.deepEqual(new Set(turns), new Set([1]));
  t.is(turns.length, LINKS);
});

test.serial('a costly decision waits for its turn in the lane, and an ordinary one does not', async (t) => {
  const { ask, gateway } = await start(t);
  // The lane rests for twice the time.
  lane.rest(200);
  const costly = ask('resources/read', { uri: 'file:///long/1' });
  await sleep(20);
  const ordinary = await ask('resources/read', { uri: 'file:///short/1' });
  t.regex(ordinary.text, /"text":"x"/);
  t.deepEqual(gateway.audited().slice(1), ['resources/read resource file:///short/1 allow']);
  const { text, ms } = await costly;
  t.regex(text, /"text":"x"/);
  t.true(ms > 300, `${ms}`);
  lane.rest(200);
  const denied = await ask('resources/read', { uri: 'file:///long/7' });
  t.regex(denied.text, /"code":403/);
  t.true(denied.ms > 300, `${denied.ms}`);
});

test.serial('a right that ends while a costly decision waits for its turn counts', async (t) => {
  const { ask, gateway } = await start(t);
  lane.rest(200);
  const costly = ask('resources/read', { uri: 'file:///long/1' });
  await sleep(100);
  gateway.rights.set('alice', () => false);
  t.regex((await costly).text, /"code":403/);
  gateway.rights.set('alice', () => true);
  lane.rest(200);
  const revoked = ask('resources/read', { uri: 'file:///long/2' });
  await sleep(100);
  gateway.revoked.add('alice');
  t.notRegex((await revoked).text, /"text":"x"/);
});

test.serial('a costly decision is made once', async (t) => {
  const { ask, turns } = await start(t);
  t.regex((await ask('resources/read', { uri: 'file:///long/1' })).text, /"text":"x"/);
  t.deepEqual(turns, [1]);
});

test.serial('what changes while a costly decision is made counts', async (t) => {
  const { gateway, ask } = await start(t);
  const target = gateway.targets.get('t');
  if (target === undefined) return t.fail();
  gateway.rights.set('alice', () => {
    gateway.targets.set('t', { ...target, may_ask: ['sampling'] });
    gateway.rights.set('alice', () => false);
    return true;
  });
  t.regex((await ask('resources/read', { uri: 'file:///long/1' })).text, /"code":403/);
  t.deepEqual(gateway.audited().slice(1), ['resources/read resource file:///long/1 deny']);
});

test.serial('long names take the same work at a target that does not exist', async (t) => {
  const { gateway, turns } = await start(t);
  lane.rest(100);
  const began = performance.now();
  const { headers = [], body = {} } = modern('resources/read', { uri: 'file:///long/1' });
  const { text } = await send(gateway, { path: '/mcp/nowhere', headers, body });
  t.regex(text, /nowhere/);
  t.true(performance.now() - began > 150);
  t.deepEqual(turns, [1]);
});
