/** How long sessions wait for a target that others wait for, too. */
import test from 'ava';
import type { Asked } from '../../../src/mcp/upstream/health.ts';
import { type Attempt, createPace } from '../../../src/mcp/upstream/pace.ts';
import { manualClock } from '../clock.ts';
import { routed } from '../gateway.ts';

const target = routed('t', 'http://127.0.0.1:9/mcp');
const access = target.accessOf({ sub: 'x', role: 'user', groups: [] });
const by = (principal: string, binding = 'default'): Asked => ({ target, access: { ...access, binding }, principal });
const OPEN = 'initialize';
const LATE_MS = 100;
const JOIN_MS = 3_000;
const never = new Promise<'answer'>(() => undefined);

function setUp() {
  const clock = manualClock();
  const pace = createPace({ lateMs: LATE_MS, joinMs: JOIN_MS }, clock);
  const recovered: string[] = [];
  pace.onRecovered((id) => recovered.push(id));
  /** The results that the session has so far. */
  const waiter = (work: Promise<'answer'> = never, asked = by('a'), method = OPEN) => {
    const got: { value: 'answer' | null | 'waiting' } = { value: 'waiting' };
    void pace.wait(asked, method, work).then((value) => {
      got.value = value;
    });
    return async () => {
      for (let turn = 0; turn < 10; turn++) await Promise.resolve();
      return got.value;
    };
  };
  /** Asks the target once and has it answer after so long. */
  const answerAfter = (ms: number, asked = by('a')): void => {
    const attempt = pace.begin(asked, OPEN);
    clock.pass(ms);
    attempt.ended(true);
  };
  return { ...clock, pace, recovered, waiter, answerAfter };
}

test('a session that is the only one waiting for a target waits for the whole time allowed', async (t) => {
  const { pace, pass, waiter } = setUp();
  pace.begin(by('a'), OPEN);
  const got = waiter();
  pass(JOIN_MS - 1);
  t.is(await got(), 'waiting');
  pass(1);
  t.is(await got(), null);
});

test('sessions that wait together stop when the target is late, and later sessions do not wait', async (t) => {
  const { pace, pass, waiter } = setUp();
  pace.begin(by('a'), OPEN);
  const [first, second] = [waiter(), waiter(never, by('b'))];
  pass(LATE_MS - 1);
  t.deepEqual([await first(), await second()], ['waiting', 'waiting']);
  pass(1);
  t.deepEqual([await first(), await second()], [null, null]);
  t.is(await waiter(never, by('c'))(), null);
  t.is(await waiter(Promise.resolve('answer'))(), 'answer', 'what is there is not waited for');
});

test('a session that is the only one waiting keeps waiting when other sessions arrive later', async (t) => {
  const { pace, pass, waiter } = setUp();
  pace.begin(by('a'), OPEN);
  let answer: (value: 'answer') => void = () => undefined;
  const first = waiter(
    new Promise((resolve) => {
      answer = resolve;
    }),
  );
  pass(LATE_MS);
  t.is(await waiter()(), null);
  t.is(await first(), 'waiting');
  answer('answer');
  t.is(await first(), 'answer');
});

test('a target has three times as long as its last answer took, and never more than the time allowed', async (t) => {
  const { pace, pass, waiter, answerAfter } = setUp();
  answerAfter(500);
  pace.begin(by('a'), OPEN);
  const [first, second] = [waiter(), waiter()];
  pass(1_499);
  t.deepEqual([await first(), await second()], ['waiting', 'waiting']);
  pass(1);
  t.deepEqual([await first(), await second()], [null, null]);
  // No session waits that long, so this time does not change the limit.
  answerAfter(JOIN_MS + 1);
  pace.begin(by('a'), OPEN);
  const [third, fourth] = [waiter(), waiter()];
  pass(1_500);
  t.deepEqual([await third(), await fourth()], [null, null]);
});

test('an answer to any caller ends the lateness of a target', async (t) => {
  const { pace, pass, waiter, recovered } = setUp();
  const lost = pace.begin(by('a'), OPEN);
  pass(LATE_MS);
  t.is(await waiter()(), null);
  const probe = pace.begin(by('b'), OPEN);
  probe.ended(true);
  t.deepEqual(recovered, [target.id]);
  const [first, second] = [waiter(), waiter()];
  pass(JOIN_MS - 1);
  t.deepEqual([await first(), await second()], ['waiting', 'waiting'], 'what is older than the answer makes nobody late');
  t.true(lost.isLost());
  t.false(lost.overdue(), 'nor does it count as a fault');
  t.false(probe.isLost());
});

test('a fault does not end the lateness, and recovery is reported only for a target that a session missed', async (t) => {
  const { pace, pass, waiter, recovered, answerAfter } = setUp();
  const failing = pace.begin(by('a'), OPEN);
  pass(LATE_MS);
  failing.ended(false);
  pace.begin(by('a'), OPEN).ended(true);
  t.deepEqual(recovered, [], 'no session went on without it');
  const again = pace.begin(by('a'), OPEN);
  pass(LATE_MS);
  again.ended(false);
  t.is(await waiter()(), null);
  answerAfter(1);
  t.deepEqual(recovered, [target.id]);
  answerAfter(1);
  t.deepEqual(recovered, [target.id], 'once');
});

test('a target that fails immediately is not late', async (t) => {
  const { pace, pass, waiter } = setUp();
  pace.begin(by('a'), OPEN).ended(false);
  pass(LATE_MS);
  pace.begin(by('a'), OPEN);
  t.is(await waiter()(), 'waiting');
});

test('lateness is kept apart by method and credentials', async (t) => {
  const { pace, pass, waiter } = setUp();
  pace.begin(by('a'), 'tools/list');
  pass(LATE_MS);
  t.is(await waiter(never, by('b'), 'tools/list')(), null);
  t.is(await waiter(never, by('b'), 'prompts/list')(), 'waiting');
  t.is(await waiter(never, by('a', 'of another'), 'tools/list')(), 'waiting');
});

test('each principal has one request at a late target at a time, and together they count as one fault', (t) => {
  const { pace, pass } = setUp();
  const begun: Attempt[] = [1, 2, 3].map(() => pace.begin(by('a'), OPEN));
  t.false(pace.isAsking(by('a'), OPEN), 'it is not late yet');
  pass(LATE_MS);
  t.true(pace.isAsking(by('a'), OPEN));
  t.false(pace.isAsking(by('b'), OPEN));
  pass(JOIN_MS - LATE_MS);
  t.deepEqual(
    begun.map((attempt) => attempt.overdue()),
    [true, false, false],
  );
  t.false(pace.isAsking(by('a'), OPEN), 'the next one may try');
  const next = pace.begin(by('a'), OPEN);
  t.true(pace.isAsking(by('a'), OPEN));
  t.true(next.overdue());
});

test('lateness is forgotten when the target has not been asked for a long time', async (t) => {
  const { pace, pass, waiter } = setUp();
  const hung = pace.begin(by('a'), OPEN);
  pass(20_000);
  t.is(await waiter()(), null);
  hung.ended(false);
  pass(600_000);
  t.is(await waiter()(), null);
  pass(1);
  t.is(await waiter()(), 'waiting');
});
