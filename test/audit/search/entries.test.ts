import test from 'ava';
import { type EntryRow, entryOf } from '../../../src/audit/search/entries.ts';

test('a row that somebody has altered does not keep the log from being read', (t) => {
  const row = { id: 'a', user_groups: '["g"]', arguments: '{"value":1}', shown: 2, hidden: 1, names: '["x","y"]' };
  const read = (over: object) => entryOf({ ...row, ...over } as unknown as EntryRow);
  t.like(read({}), { user_groups: ['g'], arguments: { value: 1 }, shown: { count: 2, hidden: 1, names: ['x', 'y'] } });
  for (const altered of ['', '\0', '{', '["a"']) {
    t.deepEqual(read({ user_groups: altered }).user_groups, []);
    t.is(read({ arguments: altered }).arguments, null);
    t.deepEqual(read({ names: altered }).shown, { count: 2, hidden: 1, names: [] });
  }
  t.is(read({ shown: null }).shown, null);
});
