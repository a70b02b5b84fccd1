/** Which targets are suspended, for whom and for how long. */
import test from 'ava';
import { type Asked, createHealth, type Health } from '../../../src/mcp/upstream/health.ts';
import type { UpstreamAnswer, UpstreamFault, UpstreamRequest } from '../../../src/mcp/upstream/upstream.ts';
import { ProcessFault } from '../../../src/mcp/upstream/upstream.ts';
import { routed } from '../gateway.ts';

const target = routed('t', 'http://127.0.0.1:9/mcp');
const access = target.accessOf({ sub: 'x', role: 'user', groups: [] });
const by = (principal: string, binding = 'default'): Asked => ({ target, access: { ...access, binding }, principal });

function setUp() {
  let time = 1_000_000;
  const health = createHealth(() => time);
  return {
    health,
    pass(ms: number) {
      time += ms;
    },
    now: () => time,
  };
}

const isRefused = (health: Health, asked: Asked): boolean => health.refusal(asked) !== null;

test('a hanging target is suspended at once, then probed by one request at a time at growing intervals', (t) => {
  const { health, pass, now } = setUp();
  t.false(isRefused(health, by('a')));
  health.failed(by('a'), 'timeout');
  t.deepEqual(health.refusal(by('a')), { fault: 'suspended', until: now() + 5_000 });
  pass(5_000);
  t.false(isRefused(health, by('a')), 'one may try');
  t.true(isRefused(health, by('a')), 'and no other meanwhile');
  health.failed(by('a'), 'timeout');
  pass(9_999);
  t.true(isRefused(health, by('a')));
  pass(1);
  t.false(isRefused(health, by('a')));
  for (let i = 0; i < 20; i++) health.failed(by('a'), 'timeout');
  t.like(health.refusal(by('a')), { until: now() + 60_000 });
  pass(60_000);
  t.false(isRefused(health, by('a')));
  health.answered(by('a'));
  for (let i = 0; i < 3; i++) t.false(isRefused(health, by('a')), 'it answers again');
});

test('a clock that is set back does not suspend a target for as long', (t) => {
  let [time, elapsed] = [100_000_000, 1_000];
  const health = createHealth(
    () => time,
    () => elapsed,
  );
  health.failed(by('a'), 'timeout');
  time -= 3_600_000;
  t.deepEqual(health.refusal(by('a')), { fault: 'suspended', until: time + 5_000 });
  t.like(health.report(target), { status: 'suspended', retry_at: time + 5_000 });
  elapsed += 5_000;
  t.false(isRefused(health, by('a')));
  t.like(health.report(target), { status: 'unknown', retry_at: null });
});

test('the next request may probe a target when a probe is given up', (t) => {
  const { health, pass } = setUp();
  health.failed(by('a'), 'timeout');
  pass(5_000);
  t.false(isRefused(health, by('a')));
  health.failed(by('a'), 'aborted');
  t.false(isRefused(health, by('a')));
  t.true(isRefused(health, by('a')));
  pass(6_000);
  t.false(isRefused(health, by('a')), 'one of which nothing was heard, too');
});

test('a fault of one principal concerns only that principal, and faults of two concern all with the same credentials', (t) => {
  const { health } = setUp();
  for (let i = 0; i < 10; i++) health.failed(by('a'), 'timeout');
  t.true(isRefused(health, by('a')));
  t.false(isRefused(health, by('b')), 'whatever one user does');
  health.failed(by('b'), 'timeout');
  t.true(isRefused(health, by('c')));
  t.false(isRefused(health, by('c', 'other credentials')));
  health.answered(by('c'));
  for (const principal of ['a', 'b', 'c']) t.false(isRefused(health, by(principal)), 'a success of anybody ends it');
});

test('principals that make a target fail do not suspend it for others, however many they are', (t) => {
  const { health } = setUp();
  for (let i = 0; i < 10; i++) {
    for (const principal of ['a', 'b', 'c']) {
      health.failed(by(principal), 'broken_off');
      health.failed(by(principal), 'crashed');
    }
  }
  t.true(isRefused(health, by('a')));
  t.false(isRefused(health, by('d')));
});

test('a principal waits only once for timeouts that others met', (t) => {
  const { health, pass } = setUp();
  const fail = (...principals: string[]) => {
    for (const principal of principals) health.failed(by(principal), 'timeout');
  };
  fail('a', 'b');
  t.true(isRefused(health, by('c')));
  pass(4_000);
  fail('a', 'b', 'd');
  t.true(isRefused(health, by('c')));
  pass(1_000);
  t.false(isRefused(health, by('c')), 'the time that it was told of is over');
  t.true(isRefused(health, by('c')), 'one request tries');
  health.answered(by('c'));
  fail('a', 'b', 'd');
  t.false(isRefused(health, by('c')), 'the target has answered just before');
  t.false(isRefused(health, by('e')));
  pass(60_000);
  fail('a', 'b');
  t.true(isRefused(health, by('e')));
});

test('a hanging list is suspended on its own, and a session that opens does not end that', (t) => {
  const { health } = setUp();
  const recovered: string[] = [];
  health.onRecovered((id) => recovered.push(id));
  const list = { ...by('a'), list: 'tools/list' };
  health.failed(list, 'timeout');
  t.false(isRefused(health, by('a')));
  t.false(isRefused(health, { ...list, list: 'prompts/list' }));
  health.answered(by('b'));
  t.true(isRefused(health, list));
  t.deepEqual(recovered, []);
  health.answered(list);
  t.false(isRefused(health, list));
  t.deepEqual(recovered, [target.id]);
});

test('only principals for whom a target was suspended hear that it answers again', (t) => {
  const { health } = setUp();
  const heard: (readonly string[] | null)[] = [];
  health.onRecovered((_id, missed) => heard.push(missed && [...missed]));
  for (const principal of ['a', 'b']) health.failed(by(principal), 'timeout');
  health.answered(by('c'));
  t.deepEqual(heard, [['a', 'b']]);
  health.failed(by('a'), 'malformed');
  health.answered(by('a'));
  t.is(heard.length, 1, 'one fault that came at once suspends nothing');
  for (let i = 0; i < 150; i++) health.failed(by(`p${i}`), 'timeout');
  health.answered(by('c'));
  t.deepEqual(heard[1], null, 'all hear of it if not all are known');
});

test('an unreachable target is reported once when it can be reached again', async (t) => {
  const { health } = setUp();
  const recovered: string[] = [];
  health.onRecovered((id) => recovered.push(id));
  const answers: (UpstreamFault | UpstreamAnswer)[] = [{ fault: 'unreachable' }, { status: 200 } as UpstreamAnswer];
  const upstream = health.watched({
    send: async () => answers.shift() ?? ({ status: 200 } as UpstreamAnswer),
    close: async () => undefined,
  });
  for (let round = 0; round < 3; round++) await upstream.send({ method: 'POST', target, access } as UpstreamRequest);
  t.deepEqual(recovered, [target.id]);
});

test('a probe whose call takes long does not block others from a target that can be reached', async (t) => {
  const { health, pass } = setUp();
  let send: (request: UpstreamRequest) => Promise<UpstreamFault | UpstreamAnswer> = async () => ({ fault: 'unreachable' });
  const upstream = health.watched({ send: (request) => send(request), close: async () => undefined });
  const request = { method: 'POST', target, access } as UpstreamRequest;
  await upstream.send(request);
  await upstream.send(request);
  pass(1_000);
  const recovered: string[] = [];
  health.onRecovered((id) => recovered.push(id));
  let asked = 0;
  send = () => {
    asked++;
    return new Promise(() => undefined);
  };
  void upstream.send(request);
  pass(5_999);
  t.like(await upstream.send(request), { fault: 'suspended' });
  t.is(asked, 1);
  t.is(health.report(target).retry_at, null);
  pass(1);
  for (let i = 0; i < 3; i++) void upstream.send(request);
  t.is(asked, 4);
  t.deepEqual(recovered, [target.id]);
});

test('faults of a credential, a full gateway or a disconnected client do not count', (t) => {
  const { health } = setUp();
  for (const kind of ['credential', 'busy', 'aborted', 'transport', 'suspended'] as const) {
    for (let i = 0; i < 10; i++) health.failed(by('a'), kind);
  }
  t.false(isRefused(health, by('a')));
});

test('an unreachable target is suspended for all after the second fault', async (t) => {
  const { health, pass, now } = setUp();
  let answer: UpstreamFault | UpstreamAnswer = { fault: 'unreachable', cause: new Error('connect ECONNREFUSED 10.0.0.7:80') };
  let sent = 0;
  const upstream = health.watched({
    async send() {
      sent++;
      return answer;
    },
    close: async () => undefined,
  });
  const request = { method: 'POST', target, access } as UpstreamRequest;
  const recovered: string[] = [];
  health.onRecovered((id) => recovered.push(id));
  await upstream.send(request);
  await upstream.send(request);
  t.like(await upstream.send({ ...request, access: { ...access, binding: 'other' } }), { fault: 'suspended' });
  t.is(sent, 2);
  t.like(health.report(target), { status: 'suspended', last_fault: { kind: 'unreachable' } });
  t.regex(health.report(target).last_fault?.message ?? '', /ECONNREFUSED 10\.0\.0\.7/);
  const elsewhere = routed('t', 'http://127.0.0.1:10/mcp');
  t.is(health.report({ ...elsewhere, id: target.id }).status, 'unknown', 'a target that has moved is another place');
  await upstream.send({ ...request, method: 'DELETE' });
  t.is(sent, 3, 'an end is an end');
  pass(60_000);
  answer = {
    status: 200,
    sessionId: null,
    held: false,
    retryAfter: null,
    discard: () => undefined,
    type: 'other',
    read: async () => Buffer.alloc(0),
  };
  await Promise.all([upstream.send(request), upstream.send(request)]);
  t.is(sent, 4, 'one tries');
  t.deepEqual(recovered, [target.id]);
  await upstream.send(request);
  t.is(sent, 5);
  t.like(health.report(target), { status: 'ok', last_success_at: now(), retry_at: null });
});

test('the last fault shows administrators its cause and the last output of the process', (t) => {
  const { health, now } = setUp();
  const cause = new ProcessFault('crashed', 'the process ended with exit code 3', { stderr: 'no such file' });
  health.note(target, 'crashed', 'ended before it answered', cause);
  t.deepEqual(health.report(target), {
    status: 'failing',
    last_success_at: null,
    last_fault: {
      at: now(),
      kind: 'crashed',
      message: 'ended before it answered: the process ended with exit code 3',
      stderr: 'no such file',
    },
    retry_at: null,
  });
});
