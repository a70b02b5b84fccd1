/** What waits for a stream of a session, of one target and of all. */
import test from 'ava';
import { createDemultiplexer } from '../../../src/mcp/upstream/demultiplexer.ts';
import { createUnread } from '../../../src/mcp/upstream/unread.ts';

const MIB = 1024 * 1024;
const SESSIONS = 40;
const MESSAGES = 10;
const LENGTH = 100_000;

const note = (length: number): string =>
  JSON.stringify({ jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: 'x'.repeat(length) } });

const request = JSON.stringify({ jsonrpc: '2.0', id: 7, method: 'roots/list', params: { _meta: { text: 'x'.repeat(LENGTH) } } });

const open = (targetId: string) => createDemultiplexer(targetId, 60_000, createUnread().open(targetId, 'user'));

/** Opens the standalone stream, and returns how many characters have waited for it. */
async function waited(session: ReturnType<typeof open>): Promise<number> {
  const stream = session.stand();
  session.push(note(0));
  let length = 0;
  for await (const events of stream?.events ?? []) {
    length += events.reduce((sum, { data }) => sum + data.length, 0);
    if (events.at(-1)?.data === note(0)) break;
  }
  return length - note(0).length;
}

test('messages that wait for a stream take a limited room of their target, and give it back', async (t) => {
  for (const ending of ['read', 'ended'] as const) {
    const sessions = Array.from({ length: SESSIONS }, () => open('chatty'));
    for (const session of sessions) for (let i = 0; i < MESSAGES; i++) session.push(note(LENGTH));
    const last = sessions.at(-1);
    t.deepEqual(last?.push(request), { id: 7, method: 'roots/list' }, 'no client will see it');
    t.is(last?.push(note(1_000)), null);
    const other = open('other');
    other.push(note(LENGTH));
    t.is(await waited(other), note(LENGTH).length, 'another target has room');
    if (ending === 'ended') for (const session of sessions) session.fail(new Error('ended'));
    else {
      const lengths = await Promise.all(sessions.map(waited));
      const sum = lengths.reduce((all, length) => all + length, 0);
      t.true(sum > 7 * MIB && sum < 9 * MIB, String(sum));
      t.is(lengths.at(-1), note(1_000).length, 'every session keeps a little');
    }
  }
  const later = open('chatty');
  for (let i = 0; i < MESSAGES; i++) later.push(note(LENGTH));
  t.is(await waited(later), MESSAGES * note(LENGTH).length);
});

test('what comes after the end of a session takes no room', (t) => {
  const ended = Array.from({ length: SESSIONS }, () => open('ended'));
  for (const session of ended) {
    session.fail(new Error('ended'));
    for (let i = 0; i < MESSAGES; i++) session.push(note(LENGTH));
    t.deepEqual(session.push(request), { id: 7, method: 'roots/list' });
  }
  t.is(open('ended').push(request), null, 'a new session has room');
});

test('a request that waited keeps the stream that got it, and is not read again', async (t) => {
  const session = open('asking');
  const members = { progressToken: undefined, isError: false, hasResult: false, requestId: undefined };
  // Reading it once more, of any size and at once, would hold everybody.
  session.push('what the reader of the channel has read', { ...members, id: 7, method: 'roots/list' });
  const stream = session.request({ id: 1, progressToken: undefined, takesOthers: true });
  session.push('its cancellation', { ...members, id: undefined, method: 'notifications/cancelled', requestId: 7 });
  session.push('the answer', { ...members, id: 1, method: undefined, hasResult: true });
  const got: string[] = [];
  for await (const events of stream?.events ?? []) got.push(...events.map(({ data }) => data));
  t.deepEqual(got, ['what the reader of the channel has read', 'its cancellation', 'the answer']);
});
