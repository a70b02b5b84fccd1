import test from 'ava';
import { createSessionMemory } from '../../src/mcp/context/session-memory.ts';

function memory(perUser: number, all: number) {
  const forgotten: string[] = [];
  const made = createSessionMemory<string>({ perUser, all }, (id) => void forgotten.push(id));
  return { ...made, forgotten, held: () => [...made.values()] };
}

test('a user at the limit loses only own sessions, the least recently used first', (t) => {
  const m = memory(30, 100);
  m.set('ben', 'b', 'git', 'b at git', 10);
  for (const id of ['1', '2', '3']) m.set('ann', id, 'git', id, 10);
  t.is(m.get('1', 'git'), '1');
  m.set('ann', '4', 'git', '4', 10);
  t.deepEqual(m.forgotten, ['2']);
  t.deepEqual(m.held().sort(), ['1', '3', '4', 'b at git']);
});

test('all users together have a limit, too', (t) => {
  const m = memory(100, 30);
  for (const user of ['ann', 'ben', 'cy', 'dee']) m.set(user, `of ${user}`, 'git', user, 10);
  t.deepEqual(m.forgotten, ['of ann']);
});

test('what an entry takes is counted when it is known, and given back when it is replaced, removed or forgotten', (t) => {
  const m = memory(30, 30);
  m.set('ann', 'old', 'git', 'old', 10);
  for (let round = 0; round < 10; round++) {
    m.set('ann', 'new', 'git', `new ${round}`, 5);
    m.grow('new', 'git', `new ${round}`, 5);
    m.grow('new', 'git', 'a replaced one', 100);
    m.remove('new', 'git', 'a replaced one');
    m.set('ben', 'other', 'git', 'other', 5);
    m.remove('other', 'git', 'other');
    m.set('cy', 'third', 'git', 'third', 5);
    m.forget('third');
  }
  t.deepEqual(m.forgotten, []);
  t.deepEqual(m.held(), ['old', 'new 9']);
  m.grow('new', 'git', 'new 9', 15);
  t.deepEqual(m.forgotten, ['old']);
});

test('sessions that were not used for an hour are evicted, and those that were found meanwhile stay', (t) => {
  let now = 0;
  const evicted: string[] = [];
  const m = createSessionMemory<string>(
    { perUser: 100, all: 100 },
    (id) => void evicted.push(id),
    () => now,
  );
  for (const id of ['used', 'ended', 'left']) m.set('ann', id, 'git', id, 10);
  now = 30 * 60_000;
  m.get('used', 'git');
  m.set('ann', 'new', 'git', 'new', 10);
  now = 60 * 60_000 - 1;
  m.evictUnused(60 * 60_000);
  t.deepEqual(evicted, []);
  now++;
  m.evictUnused(60 * 60_000);
  t.deepEqual(evicted, ['ended', 'left']);
  t.deepEqual([...m.values()], ['used', 'new']);
});

test('a session that alone takes more than the limit stays while it is in use', (t) => {
  const m = memory(10, 10);
  for (const target of ['a', 'b', 'c']) m.set('ann', 'wide', target, target, 8);
  t.deepEqual(m.held(), ['a', 'b', 'c']);
  m.set('ann', 'next', 'a', 'a of next', 8);
  t.deepEqual(m.forgotten, ['wide']);
});
