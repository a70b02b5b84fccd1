/** The turns of changes that are checked again. */
import { setTimeout as delay } from 'node:timers/promises';
import test from 'ava';
import type { Caller } from '../../src/auth/caller.ts';
import { AppError } from '../../src/base/errors.ts';
import { starts } from '../../src/base/turns/caller-turns.ts';
import { restAfter } from '../../src/db/turns.ts';
import { createSettle, Moved, sizeOf } from '../../src/policies/settle.ts';
import { ADMIN } from '../support/authority.ts';
import { policy } from './policies.ts';

const caller = (sub: string, managesAll = false): Caller => ({ ...ADMIN, principal: { ...ADMIN.principal, sub }, managesAll });

/** Work that finds a moved state the first time, and that the test ends. */
function movedOnce(ran: string[], name: string) {
  let end = (): void => {};
  const ended = new Promise<void>((resolve) => {
    end = resolve;
  });
  let tried = 0;
  const work = async (calm: () => Promise<void>): Promise<string> => {
    if (++tried === 1) throw new Moved();
    ran.push(name);
    await ended;
    await calm();
    return name;
  };
  return { work, end };
}

const compiled = async () => {};

// Timers of rests do not keep the process alive.
const alive = setInterval(() => {}, 60_000);
test.after.always(() => clearInterval(alive));

const turnOver = () => new Promise((resolve) => setImmediate(resolve));

test('other work waits before its transaction until the turn of repeated work is over', async (t) => {
  const settle = createSettle(compiled);
  const ran: string[] = [];
  const slow = movedOnce(ran, 'slow');
  const repeated = settle(caller('a'), slow.work);
  await turnOver();
  const fast = settle(caller('b'), async (calm) => {
    ran.push('checked');
    await calm();
    ran.push('stored');
  });
  await turnOver();
  t.deepEqual(ran, ['slow', 'checked']);
  slow.end();
  t.is(await repeated, 'slow');
  await fast;
  t.deepEqual(ran, ['slow', 'checked', 'stored']);
});

test('a user who is no administrator takes turns with managers, whatever the user may change', async (t) => {
  const settle = createSettle(compiled);
  const wide: Caller = {
    ...caller('wide', true),
    principal: { ...ADMIN.principal, sub: 'wide', granted: { role: 'user', groups: [] } },
  };
  const ran: string[] = [];
  const slow = movedOnce(ran, 'manager');
  const managed = settle(caller('a'), slow.work);
  await turnOver();
  const changed = settle(wide, async (calm) => {
    await calm();
    ran.push('wide');
  });
  await turnOver();
  t.deepEqual(ran, ['manager']);
  slow.end();
  await Promise.all([managed, changed]);
  t.deepEqual(ran, ['manager', 'wide']);
});

test('a user who is no administrator rests after a change, whatever the user may change', async (t) => {
  let open = (): void => {};
  const gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  const settle = createSettle(() => gate);
  const wide: Caller = { ...caller('wide', true), principal: { ...ADMIN.principal, granted: { role: 'user', groups: [] } } };
  const ran: string[] = [];
  await settle(wide, async () => void ran.push('first'));
  const second = settle(wide, async () => void ran.push('second'));
  await turnOver();
  t.deepEqual(ran, ['first']);
  open();
  await second;
});

test('an administrator does not wait for the turns of managers, who wait for those of administrators', async (t) => {
  const settle = createSettle(compiled);
  const ran: string[] = [];
  const [slow, own] = [movedOnce(ran, 'manager'), movedOnce(ran, 'administrator')];
  const managed = settle(caller('a'), slow.work);
  await turnOver();
  const stored = settle(caller('b', true), async (calm) => calm());
  await stored;
  const administered = settle(caller('b', true), own.work);
  const other = settle(caller('c'), async (calm) => {
    await calm();
    ran.push('other manager');
  });
  slow.end();
  await turnOver();
  t.deepEqual(ran, ['manager', 'administrator']);
  own.end();
  t.deepEqual(await Promise.all([managed, administered]), ['manager', 'administrator']);
  await other;
  t.deepEqual(ran, ['manager', 'administrator', 'other manager']);
});

test('users take turns, one at a time', async (t) => {
  const settle = createSettle(compiled);
  const ran: string[] = [];
  const works = ['a1', 'a2', 'a3', 'b1'].map((name) => ({ by: name[0] ?? '', ...movedOnce(ran, name) }));
  const results = works.map(({ by, work }) => settle(caller(by, true), work));
  await turnOver();
  t.deepEqual(ran, ['a1']);
  for (const { end } of works) end();
  t.deepEqual(await Promise.all(results), ['a1', 'a2', 'a3', 'b1']);
  t.deepEqual(ran, ['a1', 'a2', 'b1', 'a3']);
});

test('work that hangs or fails in its turn does not block the others', async (t) => {
  const settle = createSettle(compiled, 1);
  const ran: string[] = [];
  const hanging = movedOnce(ran, 'hanging');
  const hung = settle(caller('a'), hanging.work);
  await turnOver();
  await settle(caller('b'), (calm) => calm());
  const next = movedOnce(ran, 'next');
  next.end();
  t.is(await settle(caller('a'), next.work), 'next');
  let tried = 0;
  const failing = settle(caller('b'), async () => {
    throw ++tried === 1 ? new Moved() : new Error('gone');
  });
  await t.throwsAsync(failing, { message: 'gone' });
  hanging.end();
  t.is(await hung, 'hanging');
  const never = settle(caller('b'), async () => {
    throw new Moved();
  });
  t.is((await t.throwsAsync<AppError>(never))?.code, 'retry');
});

test.serial('after a change of a manager the next one of that manager rests, and nobody else waits', async (t) => {
  let open = (): void => {};
  const gate = new Promise<void>((resolve) => {
    open = resolve;
  });
  const settle = createSettle(() => gate);
  const ended: string[] = [];
  const change = (sub: string, name: string, managesAll = false) =>
    settle(caller(sub, managesAll), async () => void ended.push(name));
  const began = performance.now();
  const second = change('manager', 'first').then(() => change('manager', 'second'));
  await Promise.all([change('other manager', 'other'), change('administrator', 'any', true)]);
  await delay(20);
  t.deepEqual(ended.toSorted(), ['any', 'first', 'other'], 'a change is answered before the set is compiled');
  // Nobody rests alone.
  starts.note('manager');
  starts.note('somebody');
  const took = performance.now() - began;
  open();
  await second;
  t.true(performance.now() - began > 3 * took, 'the rest is three times as long as the change and compiling took');
});

test('a change of a manager that fails keeps none of the next ones waiting', async (t) => {
  const settle = createSettle(() => Promise.reject(new Error('the database is gone')));
  await t.throwsAsync(
    settle(caller('manager'), () => Promise.reject(new Error('refused'))),
    { message: 'refused' },
  );
  t.is(await settle(caller('manager'), async () => 'done'), 'done');
});

test('large changes of a manager are limited, and small ones and those of administrators are not', async (t) => {
  const settle = createSettle(compiled, 10_000, { small: 500, rate: { perSecond: 0.01, burst: 10_000 } });
  const stored: number[] = [];
  const store = (size: number, sub = 'manager', managesAll = false) =>
    settle(caller(sub, managesAll), async (calm) => {
      await calm(size);
      stored.push(size);
    });
  await t.throwsAsync(
    settle(caller('manager'), async (calm) => {
      await calm(9_000);
      throw new Error('not stored');
    }),
    { message: 'not stored' },
  );
  await store(10_000);
  await store(9_999);
  const refused = await t.throwsAsync<AppError>(store(501), { instanceOf: AppError });
  t.is(refused?.code, 'too_many_requests');
  t.is(refused?.retryAfter, 999_900);
  t.regex(refused?.message ?? '', /not stored.* more than 500 policies .*in 999900 s.*administrator/);
  await store(500);
  await store(9_000, 'administrator', true);
  // What one has stored does not keep another from a change, nor from undoing it.
  await store(9_000, 'other manager');
  await store(9_000, 'other manager');
  t.deepEqual(stored, [10_000, 9_999, 500, 9_000, 9_000, 9_000]);
});

test('a change is as large as its policies, and a part of their subjects', (t) => {
  const subjects = Array.from({ length: 40 }, (_, at) => ({
    id: `${at}`,
    subject_type: 'group' as const,
    subject_value: `${at}`,
  }));
  const [bare, many] = [policy('a'), policy('a', { subjects })];
  t.is(sizeOf([]), 0);
  t.is(
    sizeOf([
      { before: bare, after: null },
      { before: null, after: bare },
    ]),
    2,
  );
  t.is(
    sizeOf([
      { before: bare, after: many },
      { before: many, after: bare },
      { before: many, after: null },
    ]),
    3 + 7,
  );
  const long = subjects.map((subject) => ({ ...subject, subject_value: '😀'.repeat(256) }));
  t.is(sizeOf([{ before: null, after: policy('a', { subjects: long }) }]), 1 + 40, 'long texts count by their bytes');
  t.is(sizeOf([{ before: null, after: policy('a', { description: 'x'.repeat(4_096) }) }]), 1 + 4);
});

test.serial('a long change beside a single other caller is followed by a rest', async (t) => {
  starts.note('somebody');
  starts.note('manager');
  const rest = restAfter(1, 300);
  // During the change, only the other caller sends requests.
  starts.note('somebody');
  await delay(1_200);
  t.true(starts.isAlone);
  const began = performance.now();
  await rest();
  t.true(performance.now() - began >= 290);
});
