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
  for (const altered of ['5', '{}', '"x"', '[1,null]']) t.deepEqual(read({ user_groups: altered }).user_groups, []);
  t.is(read({ method: null }).method, '');
});

test('the time of an altered row can be shown', (t) => {
  const id = '01930000-0000-7000-8000-000000000000';
  const timeOf = (created_at: unknown, of = id): number =>
    entryOf({ id: of, created_at, shown: null } as unknown as EntryRow).created_at;
  t.is(timeOf(1_700_000_000_000), 1_700_000_000_000);
  for (const altered of [1.5, 'x', null, Number.NaN, 2 ** 60]) t.is(timeOf(altered), 0x0193_0000_0000, String(altered));
  t.is(timeOf(Number.MAX_SAFE_INTEGER), 8.64e15);
  t.is(timeOf(null, '-'.repeat(36)), 0);
  for (const ms of [timeOf(Number.MAX_SAFE_INTEGER), timeOf(-Number.MAX_SAFE_INTEGER)])
    t.notThrows(() => new Date(ms).toISOString());
});
