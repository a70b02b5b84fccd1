import { spawnSync } from 'node:child_process';
import { getPriority, platform } from 'node:os';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { AppError } from '../../../src/base/errors.ts';
import { bunchesOf } from '../../../src/base/work/thread.ts';
import { createWork, type Host, type WorkLimits } from '../../../src/base/work/work.ts';

function start(t: ExecutionContext, limits: Partial<WorkLimits> = {}) {
  const work = createWork({ thread: new URL('./jobs.ts', import.meta.url), limits });
  t.teardown(work.close);
  const run = <T = unknown>(by: string, name: string, input: object = {}, more: { host?: Host; signal?: AbortSignal } = {}) =>
    work.run<T>({ name, input, by, host: {}, ...more });
  return { work, run };
}

/** A question that is answered when the test says so. */
function gate() {
  let open = (): void => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { open, opened };
}

/** Until the gate is open. Rejects if the job that opens it ends before, which would otherwise be awaited for ever. */
const reached = async ({ opened }: ReturnType<typeof gate>, job: Promise<string>): Promise<void> =>
  Promise.race([opened, job.then((code) => Promise.reject(new Error(`The job ended too early: ${code}`)))]);

const codeOf = async (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'done',
    (error: unknown) => (error instanceof AppError ? error.code : String(error)),
  );

test('a job that takes too much memory ends only its thread, and the next job runs', async (t) => {
  const { run } = start(t, { memory: 32 });
  const error = await t.throwsAsync<AppError>(run('a', 'fill'), { instanceOf: AppError });
  t.is(error?.code, 'too_large');
  t.regex(error?.message ?? '', /memory limit .* \(32 MiB\).* --max-old-space-size/);
  t.deepEqual(await run('a', 'bytes'), { json: new TextEncoder().encode('{}') });
});

test('a job that takes too long is ended', async (t) => {
  const { run } = start(t, { ms: 50 });
  t.is(await codeOf(run('a', 'spin')), 'too_large');
});

test('an abort ends a running job and a waiting job', async (t) => {
  const { run } = start(t, { atOnce: 1 });
  const [running, waiting] = [new AbortController(), new AbortController()];
  const started = gate();
  const host = { hold: () => new Promise<void>(() => started.open()) };
  const first = codeOf(run('a', 'ask', { name: 'hold' }, { host, signal: running.signal }));
  await reached(started, first);
  const second = codeOf(run('b', 'bytes', {}, { signal: waiting.signal }));
  const third = codeOf(run('c', 'bytes'));
  waiting.abort(new AppError('unavailable', 'gone'));
  t.is(await second, 'unavailable');
  running.abort(new AppError('unavailable', 'gone'));
  t.is(await first, 'unavailable');
  t.is(await third, 'done');
});

test('callers take turns with one running job each, and jobs are refused when too many wait', async (t) => {
  const { run } = start(t, { atOnce: 2, waitingOfCaller: 3, waiting: 5 });
  const order: string[] = [];
  const held = gate();
  const started = gate();
  const host = (name: string) => ({
    say: async () => {
      order.push(name);
      if (name !== 'a1') return;
      started.open();
      await held.opened;
    },
  });
  const say = (by: string, name: string) => codeOf(run(by, 'ask', { name: 'say' }, { host: host(name) }));
  const a1 = say('a', 'a1');
  await reached(started, a1);
  // The second place is not for the same caller.
  const all = [a1, say('a', 'a2'), say('a', 'a3'), say('a', 'a4')];
  t.is(await say('a', 'a5'), 'too_many_requests');
  t.is(await say('b', 'b1'), 'done');
  t.deepEqual(order, ['a1', 'b1']);
  const [full, b2] = [gate(), gate()];
  const holding = {
    hold: () => {
      b2.open();
      return full.opened;
    },
  };
  const hold = codeOf(run('b', 'ask', { name: 'hold' }, { host: holding }));
  await reached(b2, hold);
  all.push(say('c', 'c1'), say('d', 'd1'));
  // It takes the place of the last job of the caller with most of them.
  all.push(say('e', 'e1'));
  t.is(await all[3], 'unavailable');
  t.is(await say('c', 'c2'), 'unavailable');
  // One place stays taken, so that the other shows the order of the turns.
  held.open();
  t.deepEqual(await Promise.all(all), ['done', 'done', 'done', 'unavailable', 'done', 'done', 'done']);
  // a has used more time than the others.
  t.deepEqual(order, ['a1', 'b1', 'c1', 'd1', 'e1', 'a2', 'a3']);
  full.open();
  t.is(await hold, 'done');
});

/** A job that asks a question, which is answered when the test says so. */
function holding(run: ReturnType<typeof start>['run'], by: string) {
  const [started, held] = [gate(), gate()];
  const hold = (): Promise<void> => {
    started.open();
    return held.opened;
  };
  const done = codeOf(run(by, 'ask', { name: 'hold' }, { host: { hold } }));
  return { started: reached(started, done), release: held.open, done };
}

test('a thread is not ended while a job waits, so the next job need not start one', async (t) => {
  const { run } = start(t, { atOnce: 2 });
  const first = holding(run, 'a');
  await first.started;
  const second = holding(run, 'a');
  const thread = await run('b', 'thread');
  first.release();
  await second.started;
  t.is(await run('b', 'thread'), thread);
  second.release();
  t.deepEqual(await Promise.all([first.done, second.done]), ['done', 'done']);
});

test('many items pass in both directions, and errors keep their messages', async (t) => {
  const { work, run } = start(t);
  const items: unknown[] = [];
  const host: Host = {
    items: async (give) => {
      await give(Array(1_234).fill('x'));
      return null;
    },
  };
  const input = { count: 1_001 };
  const count = await work.run({ name: 'give', input, by: 'a', host, onItems: (some) => void items.push(...some) });
  t.is(count, 1_234);
  t.deepEqual(items, [...Array(1_001).keys()]);
  const error = await t.throwsAsync<AppError>(run('a', 'fail', { known: true }), { instanceOf: AppError });
  t.like(error, { code: 'not_found', message: 'Nothing.', errors: [{ path: 'a', message: 'b' }] });
  t.is((await t.throwsAsync(run('a', 'fail', { known: false })))?.message, 'a fault');
  const refused = { no: () => Promise.reject(new AppError('not_found', 'no draft')) };
  t.is(await codeOf(run('a', 'ask', { name: 'no' }, { host: refused })), 'not_found');
});

test('a thread that cannot start, or that ends by itself, does not cost its caller a turn', async (t) => {
  const work = createWork({ thread: new URL('http://localhost/no-module') });
  for (const _ of [1, 2]) t.is(await codeOf(work.run({ name: 'bytes', input: {}, by: 'a', host: {} })), 'unavailable');
  const { run } = start(t);
  t.regex((await t.throwsAsync<AppError>(run('a', 'exit'), { instanceOf: AppError }))?.message ?? '', /ended unexpectedly/);
  t.is(await codeOf(run('a', 'bytes')), 'done');
});

test('a job for which a transaction is open does not wait for a turn, and takes none from others', async (t) => {
  const { work, run } = start(t, { atOnce: 1 });
  const [started, held] = [gate(), gate()];
  const host = {
    hold: () => {
      started.open();
      return held.opened;
    },
  };
  const first = codeOf(run('a', 'ask', { name: 'hold' }, { host }));
  await reached(started, first);
  const order: string[] = [];
  const second = codeOf(run('b', 'bytes')).then(() => order.push('second'));
  await work.run({ name: 'bytes', input: {}, by: null, host: {} });
  t.is(await codeOf(work.run({ name: 'fail', input: { known: true }, by: null, host: {} })), 'not_found');
  t.deepEqual(order, []);
  held.open();
  t.is(await first, 'done');
  await second;
});

test('close ends running and waiting jobs', async (t) => {
  const { work, run } = start(t, { atOnce: 1 });
  const started = gate();
  const host = { hold: () => new Promise<void>(() => started.open()) };
  const [running, waiting] = [codeOf(run('a', 'ask', { name: 'hold' }, { host })), codeOf(run('b', 'bytes'))];
  await reached(started, running);
  await work.close();
  t.deepEqual(await Promise.all([running, waiting]), ['unavailable', 'unavailable']);
  t.is(await codeOf(run('a', 'bytes')), 'unavailable');
});

(platform() === 'linux' ? test : test.skip)('a thread comes second, and never asks for more than its process has', (t) => {
  const root = join(import.meta.dirname, '../../..');
  const priorityIn = (niceness: number): number => {
    const script = `const { comeSecond } = await import('./src/base/work/thread.ts');
      comeSecond();
      console.log((await import('node:os')).getPriority());`;
    const node = [process.execPath, '--import', './scripts/loader/register.js', '--input-type=module', '-e', script];
    const { stdout, stderr } = spawnSync('nice', ['-n', String(niceness), ...node], { cwd: root, encoding: 'utf8' });
    t.is(stderr, '');
    return Number(stdout);
  };
  const own = getPriority();
  t.is(priorityIn(0), Math.max(own, 10));
  t.is(priorityIn(15), Math.min(own + 15, 19));
});

test('a message has few items if they are large', (t) => {
  const sizes = (items: readonly unknown[]): number[] => [...bunchesOf(items)].map(({ length }) => length);
  t.deepEqual(sizes([]), []);
  t.deepEqual(sizes(Array.from({ length: 250 }, (_, id) => ({ id }))), [100, 100, 50]);
  const subjects = Array.from({ length: 1_000 }, (_, id) => ({ id }));
  t.deepEqual(sizes(Array.from({ length: 5 }, () => ({ before: { subjects }, after: null }))), [2, 2, 1]);
  t.deepEqual(sizes(Array.from({ length: 3 }, () => ({ text: 'x'.repeat(4_000_000) }))), [1, 1, 1]);
});
