import test from 'ava';
import { createPace } from '../../src/scim/session.ts';

test('changes of directories run one after the other, and rest for as long as each took', async (t) => {
  let time = 0;
  const rests: { ms: number; then: () => void }[] = [];
  const inTurn = createPace({ now: () => time, later: (ms, then) => rests.push({ ms, then }) });
  const begun: string[] = [];
  const change = (name: string, takes: number) =>
    inTurn(async () => {
      begun.push(name);
      time += takes;
      if (name === 'fails') throw new Error(name);
      return name;
    });
  const changes = [change('short', 7), change('fails', 30), change('long', 5_000), change('last', 1)];
  t.is(await changes[0], 'short');
  t.deepEqual(begun, ['short'], 'the next one waits for the rest');
  rests[0]?.then();
  await t.throwsAsync(async () => changes[1], { message: 'fails' });
  rests[1]?.then();
  t.is(await changes[2], 'long');
  t.deepEqual(begun, ['short', 'fails', 'long']);
  rests[2]?.then();
  t.is(await changes[3], 'last');
  t.deepEqual(
    rests.map(({ ms }) => ms),
    [7, 30, 100, 1],
  );
});
