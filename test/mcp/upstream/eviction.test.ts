import test from 'ava';
import fc from 'fast-check';
import { DEFAULT_LIMITS } from '../../../src/mcp/limits/limits.ts';
import { toEvict } from '../../../src/mcp/upstream/eviction.ts';
import { createSseSessions } from '../../../src/mcp/upstream/sse/sse-sessions.ts';
import { createUnread } from '../../../src/mcp/upstream/unread.ts';
import type { UpstreamRequest } from '../../../src/mcp/upstream/upstream.ts';

interface Session {
  readonly user: string;
  readonly used: boolean;
}
const isUnused = ({ used }: Session): boolean => !used;

test('the user with the most sessions loses an unused one, or else the oldest', (t) => {
  const [a, b, c] = [
    { user: 'ann', used: true },
    { user: 'ann', used: false },
    { user: 'ben', used: false },
  ];
  t.is(toEvict([c, a, b], 'cy', 0, isUnused), b);
  t.is(toEvict([c, a, { ...a }], 'cy', 0, isUnused), a);
});

test('a user who has as many as anybody else ends nothing that is in use', (t) => {
  const sessions = ['ann', 'ben', 'cy'].map((user) => ({ user, used: true }));
  t.is(toEvict(sessions, 'ann', 0, isUnused), null);
  t.is(toEvict([...sessions, { user: 'ben', used: false }], 'ann', 0, isUnused)?.user, 'ben');
});

test('a user who has fewer loses no session to one who has more, not even an unused one', (t) => {
  const used = (user: string, count: number) => Array.from({ length: count }, () => ({ user, used: true }));
  const sessions = [{ user: 'victim', used: false }, ...used('ann', 3), ...used('ben', 4)];
  t.is(toEvict(sessions, 'ann', 0, isUnused), null);
  t.is(toEvict([...sessions, { user: 'ann', used: false }], 'ann', 0, isUnused)?.user, 'ann');
  t.is(toEvict(sessions, 'cy', 3, isUnused), null, 'what is being opened counts');
  t.is(toEvict(sessions, 'cy', 0, isUnused)?.user, 'ben');
});

test('a user who is opening sessions loses an own unused one for the next', (t) => {
  const own = { user: 'ann', used: false };
  t.is(toEvict([{ user: 'ann', used: true }, own], 'ann', 3, isUnused), own);
});

test('a user with at most an equal share loses no session in use, in any order of openings', (t) => {
  const users = fc.constantFrom('a', 'b', 'c', 'd');
  fc.assert(
    fc.property(fc.array(users, { maxLength: 60 }), fc.integer({ min: 5, max: 12 }), (openers, places) => {
      let held: Session[] = [];
      for (const user of openers) {
        const before = held;
        if (held.length === places) {
          const has = (one: string): number => before.filter((session) => session.user === one).length;
          const leaving = toEvict(held, user, 0, isUnused);
          if (leaving === null) continue;
          if (has(leaving.user) <= places / 5) return false;
          held = held.filter((session) => session !== leaving);
        }
        held = [...held, { user, used: true }];
      }
      return true;
    }),
  );
  t.pass();
});

test('users who fill a target of HTTP with SSE with open streams do not keep others out', (t) => {
  let ids = 0;
  const sessions = createSseSessions(DEFAULT_LIMITS, () => `s${++ids}`, createUnread());
  t.teardown(() => sessions.endAll(new Error('the test is over')));
  const request = (user: string) => ({ target: { id: 't' }, access: { user, binding: 'b' } }) as unknown as UpstreamRequest;
  const open = (user: string): string | null => {
    const opening = request(user);
    const release = sessions.reserve(opening);
    if (release === null) return null;
    const connection = new AbortController();
    const session = sessions.keep(opening, new URL('http://t.test'), connection);
    const stream = session.mailbox.stand();
    connection.signal.addEventListener('abort', () => stream?.close());
    release();
    return session.id;
  };
  const victim = open('victim');
  for (const user of ['1', '2', '3', '4', '5']) for (let n = 0; n < 70; n++) open(user);
  t.truthy(sessions.find(victim ?? ''), 'who has one keeps it');
  const requests = Array.from({ length: 62 }, () => request('one at once'));
  t.true(
    requests.map((each) => sessions.reserve(each)).filter((release) => release !== null).length <= 42,
    'openings count, too',
  );
  t.truthy(sessions.find(victim ?? ''));
  const late = open('late');
  t.truthy(late);
  for (const user of ['1', '2', '3', '4', '5']) open(user);
  t.truthy(sessions.find(late ?? ''));
});
