import test from 'ava';
import { createWaits } from '../../src/connections/waits.ts';
import type { RenewalState } from '../../src/targets/connection-store.ts';

const LOCKED_UNTIL = 1_000_000;
const UNTIL = 20_000;

/** Waits whose time passes only with `rounds`: one round is 50 ms. */
function world() {
  const rows = new Map<string, RenewalState>();
  const queries: (readonly string[])[] = [];
  let time = 0;
  let next = (): void => undefined;
  let failure: Error | null = null;
  const waits = createWaits({
    states: async (ids) => {
      queries.push(ids);
      if (failure !== null) throw failure;
      return new Map([...rows].filter(([id]) => ids.includes(id)));
    },
    now: () => time,
    pause: (ms) =>
      new Promise((resolve) => {
        next = () => {
          time += ms;
          resolve(undefined);
        };
      }),
  });
  const settled: string[] = [];
  const lock = (id: string): RenewalState => {
    const row: RenewalState = { id, version: 1, problem: null, renewing_until: LOCKED_UNTIL, ended_at: null };
    rows.set(id, row);
    return row;
  };
  return {
    rows,
    queries,
    settled,
    lock,
    wait(id: string): void {
      waits.over(lock(id), time + UNTIL).then(
        () => settled.push(id),
        (err: unknown) => settled.push(`${id}: ${err}`),
      );
    },
    fail(error: Error): void {
      failure = error;
    },
    async rounds(count: number): Promise<void> {
      for (let done = 0; done < count; done++) {
        next();
        await new Promise((resolve) => setImmediate(resolve));
      }
    },
    pass(ms: number): void {
      time += ms;
    },
  };
}

test('one query at a time looks at a bounded number of the waiting connections, and at each of them in turn', async (t) => {
  const w = world();
  for (let n = 0; n < 1_000; n++) w.wait(`c${n}`);
  await w.rounds(20);
  t.is(w.queries.length, 20, 'one query a round, however many wait');
  t.deepEqual(new Set(w.queries.map((ids) => ids.length)), new Set([100]));
  t.is(new Set(w.queries.slice(0, 10).flat()).size, 1_000);
  t.deepEqual(w.settled, []);
});

test('the pause between two looks grows to a fifth of the wait, at most to a second', async (t) => {
  const w = world();
  w.wait('c');
  const looks: number[] = [];
  for (let ms = 50; ms <= 15_000; ms += 50) {
    const before = w.queries.length;
    await w.rounds(1);
    if (w.queries.length > before) looks.push(ms);
  }
  const pauses = looks.map((ms, n) => ms - (looks[n - 1] ?? 0));
  t.deepEqual(looks.slice(0, 10), [50, 100, 150, 200, 250, 300, 350, 400, 450, 500]);
  t.true(looks.every((ms, n) => (pauses[n] ?? 0) <= Math.max(50, ms / 5)));
  t.deepEqual(pauses.slice(-5), [1_000, 1_000, 1_000, 1_000, 1_000]);
  t.true(looks.length < 45, `${looks.length} looks`);
});

test('a wait is over when the connection has changed in any way, its lock has run out, or the time is up', async (t) => {
  const w = world();
  const changes: Readonly<Record<string, Partial<RenewalState>>> = {
    renewed: { version: 2, renewing_until: null },
    unlocked: { renewing_until: null },
    locked: { renewing_until: LOCKED_UNTIL + 1 },
    refused: { problem: 'refused' },
    ended: { ended_at: 5 },
  };
  for (const name of [...Object.keys(changes), 'deleted', 'same']) w.wait(name);
  await w.rounds(3);
  t.deepEqual(w.settled, []);
  for (const [name, change] of Object.entries(changes)) w.rows.set(name, { ...w.lock(name), ...change });
  w.rows.delete('deleted');
  await w.rounds(1);
  t.deepEqual(w.settled, [...Object.keys(changes), 'deleted']);
  w.pass(UNTIL);
  await w.rounds(1);
  t.is(w.settled.at(-1), 'same');
  w.wait('lock');
  w.pass(LOCKED_UNTIL);
  await w.rounds(1);
  t.is(w.settled.at(-1), 'lock');
  const { length } = w.queries;
  await w.rounds(3);
  t.is(w.queries.length, length, 'nothing waits, so nothing is read');
});

test('waits fail if the database cannot be read, and the next ones are looked at again', async (t) => {
  const w = world();
  w.wait('a');
  w.wait('b');
  w.fail(new Error('away'));
  await w.rounds(1);
  t.deepEqual(w.settled, ['a: Error: away', 'b: Error: away']);
  const { length } = w.queries;
  w.wait('c');
  await w.rounds(1);
  t.is(w.queries.length, length + 1);
});
