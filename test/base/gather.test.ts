import test from 'ava';
import { gather } from '../../src/base/gather.ts';
import { deferred } from '../../src/base/promises.ts';

/** Runs that wait until they are told to go on. */
function fixture() {
  const runs: { readonly key: string; readonly items: readonly number[]; end(error?: Error): void }[] = [];
  const ask = gather<number, string>(async (key, items) => {
    const end = deferred<Error | undefined>();
    runs.push({ key, items, end: end.resolve });
    const error = await end.promise;
    if (error !== undefined) throw error;
    return items.map((item) => `${key}${item}`);
  });
  return { runs, ask };
}

const many = (from: number, to: number): number[] => Array.from({ length: to - from }, (_, i) => from + i);

test('the first call goes at once, and those that come meanwhile go together, a hundred at most', async (t) => {
  const { runs, ask } = fixture();
  const results = many(0, 202).map((item) => ask('a', item));
  t.deepEqual(
    runs.map(({ items }) => items),
    [[0]],
  );
  for (const [from, to] of [
    [1, 101],
    [101, 201],
    [201, 202],
  ] as const) {
    runs.at(-1)?.end();
    await results[from - 1];
    await Promise.resolve();
    t.deepEqual(runs.at(-1)?.items, many(from, to));
  }
  runs.at(-1)?.end();
  t.deepEqual(
    await Promise.all(results),
    many(0, 202).map((item) => `a${item}`),
  );
});

test('keys do not wait for each other, and a run that has begun answers no later call', async (t) => {
  const { runs, ask } = fixture();
  const [first, other] = [ask('a', 1), ask('b', 1)];
  t.deepEqual(
    runs.map(({ key }) => key),
    ['a', 'b'],
  );
  const late = ask('a', 2);
  runs[1]?.end();
  t.is(await other, 'b1');
  t.is(runs.length, 2);
  runs[0]?.end();
  t.is(await first, 'a1');
  runs[2]?.end();
  t.is(await late, 'a2');
});

test('a run that fails fails its own calls only', async (t) => {
  const { runs, ask } = fixture();
  const [first, ...second] = [ask('a', 1), ask('a', 2), ask('a', 3)];
  runs[0]?.end();
  await first;
  const third = ask('a', 4);
  runs[1]?.end(new Error('lost'));
  for (const one of second) await t.throwsAsync(one, { message: 'lost' });
  runs[2]?.end();
  t.is(await third, 'a4');
  const fourth = ask('a', 5);
  runs[3]?.end();
  t.is(await fourth, 'a5');
});
