import { setImmediate } from 'node:timers/promises';
import test from 'ava';
import type { TokenClaims } from '../../../src/auth/principal.ts';
import { deferred } from '../../../src/base/promises.ts';
import { createRevalidation } from '../../../src/mcp/context/revalidation.ts';
import type { Admission } from '../../../src/state/admission.ts';

const STREAMS = 20;
const BUSY_MS = 3;

test('after a change, streams are judged again in slices, between which others are served', async (t) => {
  const admission = { snapshot: {}, principal: {} } as Admission;
  const watch = createRevalidation(async () => admission, 1, Date.now);
  t.teardown(watch.stop);
  const all = deferred();
  /** The turns of the event loop in which a stream was judged. */
  const turns: number[] = [];
  let turn = 0;
  const mayGoOn = (): boolean => {
    const until = performance.now() + BUSY_MS;
    while (performance.now() < until);
    if (turns.push(turn) === STREAMS) all.resolve();
    return true;
  };
  for (let i = 0; i < STREAMS; i++) watch.add({ claims: {} as TokenClaims, mayGoOn, end: () => t.fail() });
  const counting = (async () => {
    for (; turns.length < STREAMS; turn++) await setImmediate();
  })();
  await Promise.all([all.promise, counting]);
  t.true(new Set(turns).size > STREAMS / 4, `${turns}`);
});
