/** The pace of long work on the thread. */
import test from 'ava';
import { starts } from '../../../src/base/turns/caller-turns.ts';
import { createPace } from '../../../src/base/turns/pace.ts';

test('those for whom long work is done take turns, slice by slice, while others send requests', async (t) => {
  const done: string[] = [];
  const work = async (by: string): Promise<void> => {
    const pace = createPace(by);
    for (let step = 0; step < 40; step++) {
      // Two callers.
      for (const caller of ['ann', 'ben']) starts.run(caller, () => undefined);
      await pace();
      const began = performance.now();
      while (performance.now() - began < 0.5);
      if (done.at(-1) !== by) done.push(by);
    }
  };
  await Promise.all([work('one'), work('two')]);
  t.true(done.length > 8, done.join());
});
