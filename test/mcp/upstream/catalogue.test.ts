import test from 'ava';
import { createCatalogue, NAMES_OF_LIST } from '../../../src/mcp/upstream/catalogue.ts';
import type { Reach } from '../../../src/mcp/upstream/upstream.ts';

const reach = (id: string, binding: string, url = 'http://127.0.0.1/mcp'): Reach =>
  ({ target: { id, transport: 'streamable-http', url }, access: { binding } }) as unknown as Reach;
const names = (entries: readonly { readonly resource_name: string }[]) => entries.map(({ resource_name }) => resource_name);

test('names are kept apart by credentials, and a target that moves loses them for its callers', (t) => {
  let time = 1;
  const catalogue = createCatalogue(() => time);
  catalogue.note(reach('a', 'mine'), 'tool', ['echo', 'sum']);
  time = 2;
  catalogue.note(reach('a', 'yours'), 'tool', ['echo', 'secret']);
  catalogue.note(reach('b', 'mine'), 'prompt', ['hello']);
  t.deepEqual(names(catalogue.of(reach('a', 'mine'))), ['echo', 'sum']);
  t.deepEqual(names(catalogue.of(reach('a', 'yours'))), ['echo', 'secret']);
  t.deepEqual(catalogue.of(reach('a', 'mine', 'http://127.0.0.1/other')), []);
  t.deepEqual(catalogue.ofTarget('a'), [
    { resource_type: 'tool', resource_name: 'echo', seen_at: 2 },
    { resource_type: 'tool', resource_name: 'secret', seen_at: 2 },
    { resource_type: 'tool', resource_name: 'sum', seen_at: 1 },
  ]);
});

const room = (entries: readonly { readonly resource_name: string }[]) =>
  names(entries).reduce((sum, name) => sum + name.length + 64, 0);

test('a target that lists new names each time takes limited room', (t) => {
  const catalogue = createCatalogue(() => 1, 120_000);
  for (let turn = 0; turn < 20; turn++) {
    const listed = Array.from({ length: 2 * NAMES_OF_LIST }, (_, at) => `${turn}-${at}`);
    catalogue.note(reach('a', 'one'), 'tool', listed.slice(0, 200));
  }
  const few = catalogue.ofTarget('a');
  t.true(room(few) <= 10_000, 'one type has a twelfth of the room');
  t.true(names(few).every((name) => name.startsWith('19-')));
  const large = createCatalogue(() => 1);
  for (let turn = 0; turn < 20; turn++)
    large.note(
      reach('a', 'one'),
      'tool',
      Array.from({ length: 2 * NAMES_OF_LIST }, (_, at) => `${turn}-${at}`),
    );
  t.is(large.of(reach('a', 'one')).length, 1_000);
  t.true(names(large.of(reach('a', 'one'))).every((name) => /^1[89]-/.test(name)));
});

test('the lists that were seen longest ago make room', (t) => {
  const catalogue = createCatalogue(() => 1, 4 * 1_000);
  const ids = ['a', 'b', 'c', 'd', 'e', 'f'];
  for (const id of ids)
    for (const type of ['tool', 'prompt', 'resource'] as const) catalogue.note(reach(id, 'one'), type, ['x'.repeat(250)]);
  const counts = ids.map((id) => catalogue.ofTarget(id).length);
  t.is(counts.at(-1), 3);
  t.true((counts[0] ?? 0) < 3);
  t.true(room(ids.flatMap((id) => catalogue.ofTarget(id))) <= 4_000);
});

test('a target that lists long names to many accounts does not push out the names of others, and makes no search slow', (t) => {
  const catalogue = createCatalogue(() => 1);
  catalogue.note(reach('b', 'one'), 'tool', ['echo', 'x'.repeat(2_049)]);
  for (let account = 0; account < 500; account++) {
    const listed = Array.from(
      { length: NAMES_OF_LIST },
      (_, at) => `${account}-${at}-${'x'.repeat(account % 2 === 0 ? 0 : 1_000)}`,
    );
    catalogue.note(reach('a', `account ${account}`), 'resource', listed);
  }
  t.deepEqual(names(catalogue.ofTarget('b')), ['echo'], 'and a name that cannot be called is not noted');
  t.true(room(catalogue.ofTarget('a')) <= 2_000_000);
  t.true(catalogue.ofTarget('a').length > 0);
  t.deepEqual(names(catalogue.ofTarget('a', ({ resource_name }) => resource_name.startsWith('498-7-'))), ['498-7-']);
});
