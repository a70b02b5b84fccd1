import { existsSync, readFileSync } from 'node:fs';
import test from 'ava';
import {
  type Client,
  initialize,
  isAlive,
  type LogLine,
  open,
  outcomeOf,
  placeFor,
  startStdio,
  until,
} from '../../../support/upstreams/stdio.ts';

const MIB = 1024 * 1024;
const startedPids = (logged: readonly LogLine[]) =>
  logged.filter(({ message }) => message.endsWith('process started')).map(({ about }) => about['pid'] as number);
/** A clock that stands still: a session that waits for a slot does not give up, however long a process takes to end. */
const stopped = () => 0;
const ping = { jsonrpc: '2.0', id: 1, method: 'ping' };

test.serial('an answer above the limit fails only its own request, and the process goes on', async (t) => {
  const { upstream } = startStdio(t, { answerBytes: MIB });
  const client = await open(upstream, placeFor());
  const pid = await client.pid();
  t.is((await client.call('huge', { length: MIB - 100 })).result.text.length, MIB - 100);
  await t.throwsAsync(client.call('huge', { length: MIB }), { message: /too large/ });
  t.is((await client.call('huge', { length: 10 })).result.text.length, 10);
  t.true(isAlive(pid));
  // The process ends, because such a line may have no end, but the caller learns the cause.
  await t.throwsAsync(client.call('huge', { length: 17 * MIB }), { message: /too large/ });
  await until(() => !isAlive(pid), 'its end');
  const opening = await initialize(upstream, placeFor({ command: '/bin/sh', args: ['-c', 'exec cat /dev/zero'] }));
  t.is(outcomeOf(opening), 'crashed', 'a line without an end ends its process');
});

test.serial('endless garbage ends a process, and some garbage between messages does not', async (t) => {
  const { upstream, logged } = startStdio(t);
  const client = await open(upstream, placeFor());
  const pid = await client.pid();
  const garbage = Array.from({ length: 600 }, () => 'x'.repeat(1000));
  for (let i = 0; i < 4; i++) t.deepEqual((await client.call('print', { lines: garbage })).result, {});
  await t.throwsAsync(client.call('print', { lines: [...garbage, ...garbage] }), { message: /not a message/ });
  await until(() => !isAlive(pid), 'its end');
  const lines = logged.filter(({ level, message }) => level === 'debug' && /printed a line that is not a message/.test(message));
  t.true(lines.length > 0 && lines.length < 1_000);
});

test.serial('a process that does not read makes its session busy and does not fill the memory', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const pid = await client.pid();
  await client.call('deaf');
  const big = { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'echo', arguments: { x: 'x'.repeat(MIB) } } };
  const outcomes: (number | string)[] = [];
  for (let i = 0; i < 12; i++) outcomes.push(outcomeOf(await client.post(big)));
  t.is(outcomes[0], 200);
  t.is(outcomes.at(-1), 'busy');
  t.true(outcomes.filter((outcome) => outcome === 200).length <= 9);
  t.is(outcomeOf(await client.post({ jsonrpc: '2.0', method: 'notifications/initialized', params: big.params })), 'busy');
  // Its input cannot even be closed in order.
  t.is(outcomeOf(await client.send({ method: 'DELETE' })), 200);
  await until(() => !isAlive(pid), 'its end');
});

test.serial('small messages to a process that does not read do not fill the memory', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  await client.call('deaf');
  const small = { jsonrpc: '2.0', method: 'notifications/roots/list_changed' };
  let taken = 0;
  while (taken < 32_000 && outcomeOf(await client.post(small)) === 202) taken++;
  t.true(taken < 20_000, `${taken} messages were taken`);
});

test.serial('lines that do not end take room from the share of their user, and the others are skipped', async (t) => {
  const { upstream, logged } = startStdio(t, { answerBytes: 16 * MIB });
  const clients = await Promise.all(Array.from({ length: 4 }, () => open(upstream, placeFor())));
  const begun = clients.map((client) => client.start('begin', { length: 15 * MIB, ms: 2_000 }));
  await Promise.all(begun);
  const skipped = () => logged.filter(({ message }) => /^message of a target skipped: there is no room/.test(String(message)));
  await until(() => skipped().length === 2, 'their end');
  t.is(skipped().length, 2);
});

test.serial('the messages of a session reach its process in their order, whatever their length', async (t) => {
  const { upstream } = startStdio(t, { answerBytes: 16 * MIB });
  const client = await open(upstream, placeFor());
  const calls = await Promise.all([1, 2].map((id) => client.start('echo', { x: 'x'.repeat(2 * MIB) }, { id })));
  t.is(outcomeOf(await client.post({ jsonrpc: '2.0', method: 'notifications/roots/list_changed' })), 202);
  // The process is not read on while an answer of the session is unread, and either may come first.
  await Promise.all(calls.map((answer) => answer.all()));
  const methods = (await client.received()).map(({ method }) => method);
  t.deepEqual(methods.slice(-4), ['tools/call', 'tools/call', 'notifications/roots/list_changed', 'tools/call']);
});

test.serial('a call that gets no answer fails in time', async (t) => {
  // Long enough for a process to start in.
  const { upstream } = startStdio(t, { headersMs: 4_000, silenceMs: 2_000 });
  const client = await open(upstream, placeFor());
  await t.throwsAsync(client.call('never'), { message: /in time/ });
  t.is((await client.call('echo', { delay: 600, x: 1 })).result.x, 1);
  const told = (await client.received()).filter(({ method }) => method === 'notifications/cancelled');
  t.is(told.length, 1);
  const started = performance.now();
  t.is(outcomeOf(await initialize(upstream, placeFor({ args: ['--silent'] }))), 'timeout');
  t.true(performance.now() - started < 20_000);
});

test.serial('a client that gives up on a starting process ends that process', async (t) => {
  const { upstream, logged } = startStdio(t);
  const impatient = new AbortController();
  const opening = initialize(upstream, placeFor({ args: ['--silent'] }), impatient.signal);
  await until(() => startedPids(logged).length === 1, 'its start');
  impatient.abort();
  t.is(outcomeOf(await opening), 'aborted');
  await until(() => startedPids(logged).every((pid) => !isAlive(pid)), 'its end');
});

// This test runs alone, because it measures the memory of the process and how soon other work runs.
test.serial('an unread flood of messages waits in the process, and continues when it is read', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const pid = await client.pid();
  const standing = await client.listen();
  await client.call('flood');
  const before = process.memoryUsage.rss();
  const written = () => readFileSync(`/proc/${pid}/io`, 'utf8').split('\n')[1];
  const other = await open(upstream, placeFor());
  for (let last: string | undefined; last !== written(); ) {
    last = written();
    for (let i = 0; i < 20; i++) await other.call('echo', { i });
  }
  t.true(process.memoryUsage.rss() - before < 64 * MIB);
  for (let i = 0; i < 20_000; i++) t.is((await standing.next())?.method, 'notifications/message');
  // Without a listener, unread messages do not delay other calls.
  standing.discard();
  const counted = await client.call('flooded');
  t.true(counted.result.written > 0);
  t.is((await other.call('echo', { x: 1 })).result.x, 1, 'others are served meanwhile');
});

test.serial('idle processes are ended, and processes with an open stream or a call in flight are kept', async (t) => {
  const { upstream, pass } = startStdio(t, {}, { idleMs: 60_000 });
  // The sweep runs every two seconds, with a clock that lets sessions become idle only when the test advances it.
  const { upstream: quick, logged, pass: passQuick } = startStdio(t, {}, { idleMs: 8_000 });
  const [listening, calling, idle] = await Promise.all([
    open(quick, placeFor()),
    open(quick, placeFor()),
    open(quick, placeFor()),
  ]);
  const pids = await Promise.all([listening, calling, idle].map((client) => client.pid()));
  const gone = new AbortController();
  const standing = await listening.listen(gone.signal);
  const never = await calling.start('never');
  passQuick(8_001);
  await until(() => !isAlive(pids[2] ?? 0), 'the end of the idle one');
  t.deepEqual(pids.slice(0, 2).map(isAlive), [true, true]);
  t.is(outcomeOf(await idle.post(ping)), 404);
  gone.abort();
  never.discard();
  passQuick(8_001);
  await until(() => !pids.some(isAlive), 'the end of all');
  await until(() => logged.filter(({ about }) => about['why'] === 'it was idle').length === 3, 'the word of it');
  standing.discard();
  const client = await open(upstream, placeFor());
  pass(50_000);
  t.is(outcomeOf(await client.post(ping)), 200);
});

test.serial('abandoned sessions of a shared process are closed, and the process stays while it is used', async (t) => {
  // Swept every two seconds.
  const { upstream, pass } = startStdio(t, {}, { idleMs: 8_000 });
  const place = placeFor({ scope: 'all' });
  const [silent, busy] = await Promise.all([open(upstream, place), open(upstream, place)]);
  const pid = await busy.pid();
  const standing = await busy.listen();
  const alone = await (await open(upstream, placeFor())).pid();
  pass(8_001);
  await until(() => !isAlive(alone), 'the sweep, which also ends an idle process');
  t.is(outcomeOf(await silent.post(ping)), 404);
  t.is(await busy.pid(), pid);
  standing.discard();
  pass(8_001);
  await until(() => !isAlive(pid), 'the end of one that nobody uses');
});

test.serial('a process ends after its lifetime, and may first finish calls in flight', async (t) => {
  const { upstream, pass, logged } = startStdio(t, {}, { idleMs: 500_000, lifetimeMs: 20_000 });
  const place = placeFor({ scope: 'all' });
  const [own, one] = await Promise.all([open(upstream, placeFor()), open(upstream, place)]);
  const [ownPid, sharedPid] = await Promise.all([own.pid(), one.pid()]);
  const finishing = one.call('echo', { delay: 1_500, x: 'done' });
  const never = own.call('never');
  pass(20_001);
  const two = await open(upstream, place);
  t.not(await two.pid(), sharedPid, 'no new session for the old one');
  t.is(outcomeOf(await one.post(ping)), 404, 'nor a new request');
  t.is((await finishing).result.x, 'done');
  await until(() => !isAlive(sharedPid), 'the end of the shared one');
  t.true(isAlive(ownPid));
  pass(60_000);
  await t.throwsAsync(never, { message: /too old/ });
  await until(() => !isAlive(ownPid), 'the end of the own one');
  await until(() => logged.some(({ about }) => about['why'] === 'it is too old'), 'the word of it');
});

test.serial('there are never more processes than allowed', async (t) => {
  const { upstream, pass, logged } = startStdio(t, {}, { maxProcesses: 3 }, stopped);
  const outcomes = await Promise.all(
    Array.from({ length: 10 }, () => open(upstream, placeFor()).catch((cause: Error) => cause.message)),
  );
  const clients = outcomes.flatMap((outcome) => (typeof outcome === 'string' ? [] : [outcome]));
  t.is(clients.length, 3);
  t.true(outcomes.filter((outcome) => typeof outcome === 'string').every((outcome) => outcome === 'no session: busy'));
  t.is(startedPids(logged).length, 3);
  t.is(outcomeOf(await initialize(upstream, placeFor({ scope: 'all' }))), 'busy');
  const [first, second, third] = clients;
  // One that has been idle for long gives way; one that is used does not.
  pass(29_000);
  t.is(outcomeOf((await second?.post(ping)) ?? { fault: 'aborted' }), 200);
  const standing = await third?.listen();
  pass(2_000);
  const late = await open(upstream, placeFor());
  t.is((await late.call('echo', { x: 1 })).result.x, 1);
  t.is(outcomeOf((await first?.post(ping)) ?? { fault: 'aborted' }), 404);
  t.is(startedPids(logged).filter(isAlive).length, 3);
  t.is(outcomeOf(await initialize(upstream, placeFor())), 'busy');
  // `late` was used last, but the other two have a stream open: one of a ping, and a standalone stream.
  pass(31_000);
  await open(upstream, placeFor());
  t.is(outcomeOf(await late.post(ping)), 404);
  for (const client of [second, third]) t.is(outcomeOf((await client?.post(ping)) ?? { fault: 'aborted' }), 200);
  t.is(startedPids(logged).filter(isAlive).length, 3);
  standing?.discard();
  // A place that becomes free can be taken at once.
  await third?.send({ method: 'DELETE' });
  await open(upstream, placeFor());
  t.is(startedPids(logged).filter(isAlive).length, 3);
});

test.serial('users who fill a shared process with open streams do not keep others out', async (t) => {
  const { upstream } = startStdio(t);
  const join = (owner: string) => open(upstream, placeFor({ scope: 'all', owner }));
  const isOpen = async (client: Client) => outcomeOf(await client.post(ping)) === 200;
  const victim = await join('victim');
  const own: Client[] = [];
  for (let n = 0; n < 625; n++) own.push(await join('1'));
  const [oldest, next, ...others] = own;
  if (oldest === undefined || next === undefined) throw new Error('no session');
  await oldest.listen();
  await (await join('1')).listen();
  t.false(await isOpen(next), 'the next session of the user ends an unused one');
  t.true(await isOpen(oldest));
  for (const client of others) await client.listen();
  t.is(outcomeOf(await initialize(upstream, placeFor({ scope: 'all', owner: '1' }))), 'busy');
  for (const user of ['2', '3', '4']) for (let n = 0; n < (user === '4' ? 624 : 625); n++) await (await join(user)).listen();
  const late = await join('late');
  t.true(await isOpen(late));
  t.true(await isOpen(victim), 'a user who has one keeps it');
});

test.serial('a user who has processes started again and again waits, and others do not', async (t) => {
  const { upstream, logged } = startStdio(t, {}, { maxProcesses: 200 });
  const started = performance.now();
  // They end at once.
  const crash = (owner: string) => initialize(upstream, placeFor({ command: '/bin/sh', args: ['-c', 'exit 1'], owner }));
  const attempts = Array.from({ length: 70 }, () => crash('greedy'));
  await Promise.all(Array.from({ length: 5 }, () => open(upstream, placeFor({ owner: 'modest' }))));
  const outcomes = (await Promise.all(attempts)).map(outcomeOf);
  const seconds = (performance.now() - started) / 1_000;
  t.true(outcomes.includes('busy'));
  const starts = startedPids(logged).length - 5;
  t.true(starts > 41 && starts <= 42 + seconds, `${starts} in ${seconds} s`);
});

test.serial('processes for everybody do not count for the user who comes first', async (t) => {
  const { upstream } = startStdio(t, {}, { maxProcesses: 200 });
  const opened = Array.from({ length: 60 }, (_, i) =>
    initialize(upstream, placeFor({ scope: 'all', command: '/bin/sh', args: ['-c', `exit ${i}`] })),
  );
  t.false((await Promise.all(opened)).map(outcomeOf).includes('busy'));
});

test.serial('many simultaneous sessions of a shared process start one process', async (t) => {
  const { upstream, logged } = startStdio(t, {}, { maxProcesses: 1 });
  const clients = await Promise.all(Array.from({ length: 20 }, () => open(upstream, placeFor({ scope: 'all' }))));
  t.is(new Set(clients.map(({ id }) => id)).size, 20);
  t.is(startedPids(logged).length, 1);
});

test.serial('sessions that wait for room for the same shared process share it', async (t) => {
  const { upstream, logged } = startStdio(t, {}, { maxProcesses: 1 }, stopped);
  const former = await open(upstream, placeFor({ args: ['--stubborn'] }));
  await former.send({ method: 'DELETE' });
  const clients = await Promise.all(Array.from({ length: 5 }, () => open(upstream, placeFor({ scope: 'all' }))));
  t.is(new Set(await Promise.all(clients.map((client) => client.pid()))).size, 1);
  t.is(startedPids(logged).length, 2);
});

test.serial('no process is started for a caller who may no longer use it when there is room', async (t) => {
  const { upstream, logged } = startStdio(t, {}, { maxProcesses: 1 }, stopped);
  const former = await open(upstream, placeFor({ args: ['--stubborn'] }));
  await former.send({ method: 'DELETE' });
  const { target, access } = placeFor();
  let asked = 0;
  const opening = initialize(upstream, { target, access: { ...access, stillAllowed: async () => asked++ === 0 } });
  t.is(outcomeOf(await opening), 'changed');
  t.is(startedPids(logged).length, 1);
});

test.serial('the children of a process end with it, however it ends', async (t) => {
  const { upstream } = startStdio(t);
  for (const end of ['DELETE', 'crash', 'exit'] as const) {
    const client = await open(upstream, placeFor());
    const pid = await client.pid();
    const child = (await client.call('spawn')).result.pid as number;
    t.true(isAlive(child), end);
    if (end === 'DELETE') await client.send({ method: 'DELETE' });
    else if (end === 'crash') process.kill(pid, 'SIGKILL');
    else await t.throwsAsync(client.call('exit', { code: 0, text: '' }));
    await until(() => !isAlive(pid) && !isAlive(child), `process and child after ${end}`);
  }
});

test.serial('a process that has closed its output is ended', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const pid = await client.pid();
  await client.call('closeOutput');
  await t.throwsAsync(client.call('never'));
  await until(() => !isAlive(pid), 'its end');
});

test.serial('close ends all processes in limited time, also those that resist or are starting', async (t) => {
  const { upstream, logged } = startStdio(t);
  const stubborn = await open(upstream, placeFor({ args: ['--stubborn'] }));
  const child = (await stubborn.call('spawn')).result.pid as number;
  const { cwd } = (await stubborn.call('facts')).result as { cwd: string };
  const starting = initialize(upstream, placeFor({ args: ['--silent', '--stubborn'] }));
  const sharing = initialize(upstream, placeFor({ scope: 'all', args: ['--silent'] }));
  await until(() => startedPids(logged).length === 3, 'all to have started');
  const started = performance.now();
  const closing = Promise.all([upstream.close(), upstream.close()]);
  t.deepEqual((await Promise.all([starting, sharing])).map(outcomeOf), ['crashed', 'crashed']);
  await closing;
  const took = performance.now() - started;
  t.true(took > 3_500 && took < 15_000, `${took}`);
  await until(() => ![...startedPids(logged), child].some(isAlive) && !existsSync(cwd), 'the end of all');
  t.is(outcomeOf(await initialize(upstream, placeFor())), 'busy');
  t.is(startedPids(logged).length, 3);
});

test.serial('a process whose first answer is not valid says nothing about the processes of other users', async (t) => {
  const { upstream } = startStdio(t);
  const broken = 'read line; echo "{\\"jsonrpc\\":\\"2.0\\",\\"id\\":1,\\"result\\":{\\"a\\":1,\\"a\\":2}}"; sleep 5';
  const opening = await initialize(upstream, placeFor({ command: '/bin/sh', args: ['-c', broken] }));
  t.like(opening, { fault: 'malformed' });
});

test.serial('one user cannot take the process slots of all others', async (t) => {
  const { upstream, logged } = startStdio(t, {}, { maxProcesses: 8 });
  const open4 = await Promise.all(Array.from({ length: 4 }, () => open(upstream, placeFor({ owner: 'greedy' }))));
  const streams = await Promise.all(open4.map((client) => client.listen()));
  t.is(outcomeOf(await initialize(upstream, placeFor({ owner: 'greedy' }))), 'busy');
  const other = await open(upstream, placeFor({ owner: 'modest' }));
  t.is((await other.call('echo', { x: 1 })).result.x, 1);
  // A value of the user's own makes the process the user's, even if the target's processes are shared.
  t.is(outcomeOf(await initialize(upstream, placeFor({ owner: 'greedy', scope: 'all', identity: 'another value' }))), 'busy');
  // One of the user's own that nothing is going on in gives way at once.
  streams[0]?.discard();
  const fifth = await open(upstream, placeFor({ owner: 'greedy' }));
  t.is((await fifth.call('echo', { x: 2 })).result.x, 2);
  await until(() => startedPids(logged).filter(isAlive).length === 5, 'the end of the one that gave way');
});

test.serial('users who take all process slots with open streams do not keep others out', async (t) => {
  const { upstream } = startStdio(t, {}, { maxProcesses: 4 });
  const own = [];
  for (let n = 0; n < 4; n++) own.push(await open(upstream, placeFor({ owner: 'greedy' })));
  for (const client of own) await client.listen();
  t.is(outcomeOf(await initialize(upstream, placeFor({ owner: 'greedy' }))), 'busy');
  const others = [await open(upstream, placeFor({ owner: 'modest' })), await open(upstream, placeFor({ owner: 'modest' }))];
  for (const client of others) await client.listen();
  for (const owner of ['greedy', 'modest']) t.is(outcomeOf(await initialize(upstream, placeFor({ owner }))), 'busy');
  const outcomes = await Promise.all([...own, ...others].map(async (client) => outcomeOf(await client.post(ping))));
  t.deepEqual(outcomes, [404, 404, 200, 200, 200, 200]);
});

test.serial('one user cannot take every slot that becomes free while several of its processes wait for one', async (t) => {
  const { upstream, pass, logged } = startStdio(t, {}, { maxProcesses: 8 }, stopped);
  const open3 = await Promise.all(Array.from({ length: 3 }, () => open(upstream, placeFor({ owner: 'greedy' }))));
  for (const client of open3) await client.listen();
  await Promise.all(Array.from({ length: 5 }, (_, n) => open(upstream, placeFor({ owner: `modest ${n}` }))));
  pass(31_000);
  const outcomes = await Promise.all(Array.from({ length: 5 }, () => initialize(upstream, placeFor({ owner: 'greedy' }))));
  t.deepEqual(outcomes.map(outcomeOf).toSorted(), [200, 'busy', 'busy', 'busy', 'busy']);
  t.is(startedPids(logged).filter(isAlive).length, 8);
});
