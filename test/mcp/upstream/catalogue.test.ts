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

test('a target that lists new names each time takes limited room', (t) => {
  const catalogue = createCatalogue(() => 1, 5_000);
  for (let turn = 0; turn < 20; turn++) {
    const listed = Array.from({ length: 2 * NAMES_OF_LIST }, (_, at) => `${turn}-${at}`);
    catalogue.note(reach('a', 'one'), 'tool', listed.slice(0, 200));
  }
  t.true(names(catalogue.ofTarget('a')).join('').length <= 5_000);
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
  const catalogue = createCatalogue(() => 1, 30);
  for (const id of ['a', 'b', 'c']) catalogue.note(reach(id, 'one'), 'tool', ['x'.repeat(12)]);
  t.deepEqual(
    ['a', 'b', 'c'].map((id) => catalogue.ofTarget(id).length),
    [0, 1, 1],
  );
});
