import { type StdioOptions, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, readdirSync, realpathSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import type { ProcessFault } from '../../../../src/mcp/upstream/upstream.ts';
import { isFault } from '../../../../src/mcp/upstream/upstream.ts';
import {
  INITIALIZE,
  initialize,
  isAlive,
  type Message,
  open,
  outcomeOf,
  placeFor,
  startStdio,
  stream,
  textOf,
  until,
} from '../../../support/upstreams/stdio.ts';

const bin = (name: string) => fileURLToPath(import.meta.resolve(`@modelcontextprotocol/${name}/dist/index.js`));
const factsOf = (message: Message) => message.result as { env: object; cwd: string; pid: number; args: string[] };
/** Returns the name of the error. `t.throwsAsync` cannot be used, because an abort is not a native error. */
const failureOf = (promise: Promise<unknown>) =>
  promise.then(
    () => null,
    (cause: Error) => cause.name,
  );
const notification = (method: string, params: object = {}) => JSON.stringify({ jsonrpc: '2.0', method, params });

test.serial('the environment holds only the variables of the target and the credentials', async (t) => {
  process.env['PORTCULLIS_TEST_SECRET'] = 'of the gateway';
  // node hands this one on to every child unless it is kept from it.
  const coverage = mkdtempSync(join(tmpdir(), 'portcullis-coverage-'));
  process.env['NODE_V8_COVERAGE'] = coverage;
  t.teardown(() => {
    rmSync(coverage, { recursive: true, force: true });
    delete process.env['PORTCULLIS_TEST_SECRET'];
    delete process.env['NODE_V8_COVERAGE'];
  });
  const { upstream } = startStdio(t);
  const bare = await open(upstream, placeFor());
  t.deepEqual(factsOf(await bare.call('facts')).env, {});
  const place = placeFor({ env: { A: 'a', TOKEN: 'of the target' }, credentials: { TOKEN: 'of the user', LONE: 'ü=\n"' } });
  const client = await open(upstream, place);
  t.deepEqual(factsOf(await client.call('facts')).env, { A: 'a', TOKEN: 'of the user', LONE: 'ü=\n"' });
});

test.serial('a process gets three file descriptors only, whatever the gateway itself has open', async (t) => {
  const file = openSync(fileURLToPath(import.meta.url), 'r');
  const script = fileURLToPath(new URL('../../../support/upstreams/stdio-descriptors.ts', import.meta.url));
  // node hides consecutive descriptors from its children, so this one comes after a gap.
  const stdio: StdioOptions = ['ignore', 'pipe', 'inherit', ...Array<'ignore'>(27).fill('ignore'), file];
  const child = spawn(process.execPath, ['--import=./scripts/loader/register.js', script], { stdio });
  t.deepEqual(JSON.parse(await text(child.stdout as Readable)), { own: true, childs: ['0', '1', '2'] });
});

test.serial('arguments arrive unchanged, because no shell reads them', async (t) => {
  const { upstream } = startStdio(t);
  const args = ['$HOME', '; exit 1', '`id`', "'", '--', '*'];
  const client = await open(upstream, placeFor({ args }));
  t.deepEqual(factsOf(await client.call('facts')).args, args);
});

test.serial('the working folder is the named one, or an empty one that is removed with the process', async (t) => {
  const { upstream } = startStdio(t);
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'stdio-test-')));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const named = await open(upstream, placeFor({ cwd: folder }));
  t.is(factsOf(await named.call('facts')).cwd, folder);
  const own = await open(upstream, placeFor());
  const { cwd, pid } = factsOf(await own.call('facts'));
  t.is(statSync(cwd).mode & 0o777, 0o700);
  t.deepEqual(readdirSync(cwd), []);
  t.is(outcomeOf(await own.send({ method: 'DELETE' })), 200);
  await until(() => !existsSync(cwd) && !isAlive(pid), 'process and folder are gone');
  await named.send({ method: 'DELETE' });
  await upstream.close();
  t.true(existsSync(folder), 'the named one is not the gateway’s to remove');
});

test.serial('only commands that the configuration names byte for byte are started', async (t) => {
  const { upstream, logged } = startStdio(t, {}, { allowed: ['/bin/sh'] });
  for (const command of ['/bin/../bin/sh', '/bin/sh ', '/bin/SH', 'sh', process.execPath, '']) {
    t.is(outcomeOf(await initialize(upstream, placeFor({ command }))), 'transport', command);
  }
  t.true(logged.some(({ message, about }) => /does not allow/.test(message) && about['command'] === process.execPath));
  t.false(logged.some(({ message }) => message.endsWith('process started')));
});

test.serial('a target of another transport, or without usable credentials, is refused', async (t) => {
  const { upstream } = startStdio(t);
  const { target, access } = placeFor();
  t.is(outcomeOf(await initialize(upstream, { target, access: { ...access, credentials: 'unusable' } })), 'credential');
  const http = { ...target, transport: 'streamable-http', url: 'http://127.0.0.1/' } as never;
  t.is(outcomeOf(await initialize(upstream, { target: http, access })), 'transport');
  const stateless = { version: '2026-07-28', method: 'server/discover', name: undefined, params: [] };
  const asked = await upstream.send({ method: 'POST', target, access, stateless, body: '{}' });
  t.is(outcomeOf(asked), 400);
});

test.serial('each session has a process of its own', async (t) => {
  const { upstream } = startStdio(t);
  const [one, two] = await Promise.all([open(upstream, placeFor()), open(upstream, placeFor())]);
  const [a, b] = await Promise.all([one.call('facts'), two.call('facts')]);
  t.not(factsOf(a).pid, factsOf(b).pid);
  await one.send({ method: 'DELETE' });
  await until(() => !isAlive(factsOf(a).pid), 'the process of the session that ended');
  t.true(isAlive(factsOf(b).pid));
  t.is((await two.call('echo', { x: 1 })).result.x, 1);
  t.is(outcomeOf(await one.post({ jsonrpc: '2.0', id: 1, method: 'ping' })), 404);
  t.is(outcomeOf(await one.send({ method: 'GET' })), 404);
  t.is(outcomeOf(await one.send({ method: 'DELETE' })), 404);
});

test.serial('a session is valid only for its target, address and credentials', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const session = { upstreamId: client.id };
  const ping = JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' });
  for (const place of [placeFor({ binding: 'other' }), placeFor({ args: ['moved'] }), placeFor({ env: { A: 'b' } })]) {
    t.is(outcomeOf(await upstream.send({ method: 'POST', ...place, session, body: ping })), 404);
    t.is(outcomeOf(await upstream.send({ method: 'GET', ...place, session })), 404);
  }
  const { target, access } = placeFor();
  const elsewhere = { target: { ...target, id: 'another' }, access };
  t.is(outcomeOf(await upstream.send({ method: 'DELETE', ...elsewhere, session })), 404);
  t.is(outcomeOf(await upstream.send({ method: 'POST', ...placeFor(), session: { upstreamId: null }, body: ping })), 404);
  t.is(outcomeOf(await upstream.send({ method: 'POST', ...placeFor(), body: ping })), 400);
  t.is(outcomeOf(await client.post(INITIALIZE)), 400);
  t.is(outcomeOf(await client.post({ jsonrpc: '2.0', id: 1, method: 'ping' })), 200);
  // DELETE also works if the credentials have become unusable meanwhile.
  const ended = await upstream.send({ method: 'DELETE', target, access: { ...access, credentials: 'unusable' }, session });
  t.is(outcomeOf(ended), 200);
});

test.serial('simultaneous calls with equal ids and progress tokens get their own answers and progress', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const meta = { progressToken: 'same' };
  const streams = await Promise.all(
    Array.from({ length: 20 }, (_, n) => client.start('echo', { n, delay: 20 - n }, { id: 'same', meta })),
  );
  const answers = await Promise.all(streams.map((reader) => reader.all()));
  t.deepEqual(
    answers.map((messages) => messages.map(({ id, result }) => [id, result.n])),
    Array.from({ length: 20 }, (_, n) => [['same', n]]),
  );
  const [a, b] = await Promise.all([
    client.start('progress', { count: 2 }, { id: 7, meta: { progressToken: 5 } }),
    client.start('progress', { count: 3 }, { id: 7, meta: { progressToken: 5 } }),
  ]);
  for (const [reader, count] of [
    [a, 2],
    [b, 3],
  ] as const) {
    const messages = await reader.all();
    t.deepEqual(
      messages.slice(0, -1).map(({ params }) => params),
      Array.from({ length: count }, (_, i) => ({ progressToken: 5, progress: i + 1, total: count })),
    );
    t.is(messages.at(-1)?.id, 7);
  }
});

test.serial('progress of a task goes on after its call, on the standalone stream', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const standing = await client.listen();
  const [task, plain] = [{ ttl: 1 }, undefined];
  const params = (form: object | undefined, progressToken: string) => ({ name: 'echo', task: form, _meta: { progressToken } });
  for (const [form, token] of [
    [task, 'of a task'],
    [plain, 'of a call'],
  ] as const) {
    const sent = await client.post({ jsonrpc: '2.0', id: token, method: 'tools/call', params: params(form, token) });
    for await (const _ of stream(sent).events);
  }
  const tokens = (await client.received()).filter(({ params }) => params?.['name'] === 'echo').map(({ id }) => id);
  const lines = tokens.map((progressToken) => notification('notifications/progress', { progressToken, progress: 1 }));
  await client.call('print', { lines: [...lines.reverse(), notification('notifications/tools/list_changed')] });
  t.deepEqual((await standing.next())?.params, { progressToken: 'of a task', progress: 1 });
  t.is((await standing.next())?.method, 'notifications/tools/list_changed');
});

test.serial('a progress token that is none is not kept, and one that is odd or too long is refused', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const send = (progressToken: unknown) => {
    const params = { name: 'echo', arguments: { x: 1 }, _meta: { progressToken }, task: {} };
    return client.post({ jsonrpc: '2.0', id: 1, method: 'tools/call', params });
  };
  for await (const _ of stream(await send(null)).events);
  const seen = (await client.received()).findLast((message) => message.params?.['name'] === 'echo');
  t.like(seen?.params?.['_meta'], { progressToken: null });
  // A process that reads integers would take 1.5 for the token of a different call.
  for (const token of [1.5, 1e300, true, 'x'.repeat(1_025), { a: 1 }, []]) t.is(outcomeOf(await send(token)), 400);
});

test.serial('the process gets the posted response to its request', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const standing = await client.listen();
  for (const source of ['standing', 'own'] as const) {
    const reader = await client.start('ask', { method: 'sampling/createMessage', params: { maxTokens: 1 }, id: `ask-${source}` });
    const asked = await (source === 'standing' ? standing : reader).next();
    t.like(asked, { id: `ask-${source}`, method: 'sampling/createMessage', params: { maxTokens: 1 } }, source);
    t.is(outcomeOf(await client.post({ jsonrpc: '2.0', id: `ask-${source}`, result: { said: 'yes' } })), 202);
    const answer = await reader.all();
    t.deepEqual(answer.at(-1)?.result, { result: { said: 'yes' } });
    // Without a standalone stream, the next request arrives on the stream of the call.
    standing.discard();
  }
});

test.serial('the gateway answers a ping of the process, also before the session is open', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  t.deepEqual((await client.call('ask', { method: 'ping' })).result, { result: {} });
});

test.serial('messages without a stream wait for the next stream, within limits', async (t) => {
  const { upstream, logged } = startStdio(t);
  const client = await open(upstream, placeFor());
  const changed = notification('notifications/tools/list_changed');
  const roots = JSON.stringify({ jsonrpc: '2.0', id: 'r', method: 'roots/list' });
  const logs = Array.from({ length: 100 }, (_, n) => notification('notifications/message', { level: 'info', data: n }));
  const last = notification('notifications/message', { data: 'last' });
  await client.call('later', { lines: [roots, changed, ...logs, last, 'all of it'] });
  // Not by a call, which would take some of them along.
  await until(() => logged.some(({ about }) => about['line'] === 'all of it'), 'all of them');
  const standing = await client.listen();
  const first = await standing.next();
  t.is(first?.method, 'roots/list', 'a request is not dropped for notifications');
  const rest: unknown[] = [];
  for (let message = await standing.next(); message !== null; message = await standing.next()) {
    rest.push(message.params?.['data']);
    if (message.params?.['data'] === 'last') break;
  }
  t.is(rest.length, 63);
  t.is(rest[0], 38);
});

test.serial('a session has one standalone stream at a time', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const gone = new AbortController();
  const standing = await client.listen(gone.signal);
  t.is(outcomeOf(await client.send({ method: 'GET' })), 409);
  const waiting = standing.next();
  gone.abort();
  t.is(await failureOf(waiting), 'AbortError');
  const next = await client.listen();
  await client.call('print', { lines: [notification('notifications/resources/list_changed')] });
  t.is((await next.next())?.method, 'notifications/resources/list_changed');
  const last = next.next();
  await client.send({ method: 'DELETE' });
  t.is(await last, null);
});

test.serial('a cancelled call ends, and the process gets the cancellation under its own id', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const reader = await client.start('never', {}, { id: 'mine' });
  const other = await client.start('echo', { delay: 200 }, { id: 'other' });
  const waiting = reader.next();
  t.is(
    outcomeOf(await client.post({ jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 'nobody’s' } })),
    202,
  );
  const cancelled = { jsonrpc: '2.0', method: 'notifications/cancelled', params: { requestId: 'mine', reason: 'because' } };
  t.is(outcomeOf(await client.post(cancelled)), 202);
  t.is(await failureOf(waiting), 'AbortError');
  t.is((await other.all()).length, 1);
  const lines = await client.received();
  const call = lines.find(({ params }) => params?.['name'] === 'never');
  const told = lines.filter(({ method }) => method === 'notifications/cancelled');
  t.deepEqual(
    told.map(({ params }) => params),
    [{ requestId: call?.id, reason: 'because' }] as never,
  );
});

test.serial('a call that its client gave up is forgotten, and the process gets a cancellation', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const aborted = new AbortController();
  const reader = await client.start('never', {}, { signal: aborted.signal });
  const waiting = reader.next();
  aborted.abort();
  t.is(await failureOf(waiting), 'AbortError');
  (await client.start('never')).discard();
  const late = await client.start('echo', { delay: 50, x: 'late' });
  late.discard();
  t.is(await late.next(), null);
  t.is(outcomeOf(await client.post({ jsonrpc: '2.0', id: 1, method: 'ping' }, AbortSignal.abort())), 'aborted');
  const lines = await client.received();
  t.is(lines.filter(({ method }) => method === 'notifications/cancelled').length, 3);
});

test.serial('each message is one line, whatever its content', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const inner = '{"jsonrpc":"2.0","id":99,"method":"tools/call","params":{"name":"facts"}}';
  const raw = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{\n"a":\r\n1.0\r,\n"s":"\u2028\u0085\u2029${JSON.stringify(inner).slice(1, -1)}"\n}}}`;
  const sent = await client.post(raw);
  t.is(outcomeOf(sent), 200);
  await client.call('echo');
  const lines = (await client.call('received')).result.received as string[];
  const echoes = lines.filter((line) => line.includes('"echo"'));
  t.is(echoes.length, 2);
  t.true(echoes[0]?.includes('1.0'), 'numbers stay as they were written');
  t.notRegex(echoes[0] ?? '', /[\r\u2028\u2029\u0085]/);
  t.is(
    (JSON.parse(echoes[0] ?? '') as { params: { arguments: { s: string } } }).params.arguments.s,
    `\u2028\u0085\u2029${inner}`,
  );
  t.false(
    lines.some((line) => line.includes('"id":99,')),
    'no line of its own',
  );
});

test.serial('large messages are one line each, too, and arrive in the order in which they were posted', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const large = (id: number): string =>
    `{"jsonrpc":"2.0","id":${id},"method":"tools/call","params":{"name":"echo","more":"${'\u2028\u0085 '.repeat(100_000)}","arguments":{\n"n":${id}}}}`;
  const small = (id: number): string =>
    `{"jsonrpc":"2.0","id":${id},"method":"tools/call","params":{"name":"echo","arguments":{"n":${id}}}}`;
  const posted = [large(101), small(102), large(103), small(104)].map((raw) => client.post(raw));
  for (const answer of posted) t.is(outcomeOf(await answer), 200);
  const lines = (await client.call('received')).result.received as string[];
  const echoes = lines.filter((line) => line.includes('"echo"'));
  t.deepEqual(
    echoes.map((line) => (JSON.parse(line) as { params: { arguments: { n: number } } }).params.arguments.n).sort(),
    [101, 102, 103, 104],
  );
  for (const line of echoes) t.notRegex(line, /[\r\u2028\u2029\u0085]/);
});

test.serial('calls and session end with their process, and a new session works', async (t) => {
  const { upstream, logged } = startStdio(t);
  const client = await open(upstream, placeFor());
  const standing = await client.listen();
  const { pid } = factsOf(await client.call('facts'));
  const reader = await client.start('never');
  const waiting = reader.next();
  process.kill(pid, 'SIGKILL');
  await t.throwsAsync(waiting, { message: /SIGKILL/ });
  t.is(await standing.next(), null);
  t.is(outcomeOf(await client.post({ jsonrpc: '2.0', id: 1, method: 'ping' })), 404);
  const again = await open(upstream, placeFor());
  t.not(factsOf(await again.call('facts')).pid, pid);
  t.true(logged.some(({ level, about }) => level === 'warn' && about['pid'] === pid && about['how'] === 'ended by SIGKILL'));
});

test.serial('a session is lost as soon as its process is gone', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const reader = await client.start('exit', { code: 3, text: 'farewell' });
  await t.throwsAsync(reader.all(), { message: /exit code 3/ });
  t.is(outcomeOf(await client.post({ jsonrpc: '2.0', method: 'notifications/initialized' })), 404);
});

test.serial('the fault of a process that cannot start, or ends at once, says why', async (t) => {
  const { upstream, logged } = startStdio(t, {}, { allowed: [process.execPath, '/nowhere/server', '/etc/passwd'] });
  const started = performance.now();
  const causeOf = async (place: ReturnType<typeof placeFor>) => {
    const answer = await initialize(upstream, place);
    if (!isFault(answer)) throw new Error(`no fault but ${answer.status}`);
    const { message, stderr } = answer.cause as ProcessFault;
    t.is(answer.fault, stderr === '' ? 'unreachable' : 'crashed');
    return `${message}; stderr: ${stderr}`;
  };
  t.regex(await causeOf(placeFor({ args: ['--crash'] })), /exit code 7; stderr: it cannot work \\u\{1b\}\[31mlike this/);
  t.regex(await causeOf(placeFor({ command: '/nowhere/server' })), /ENOENT/);
  t.regex(await causeOf(placeFor({ command: '/etc/passwd' })), /EACCES/);
  t.regex(await causeOf(placeFor({ cwd: '/nowhere/at/all' })), /ENOENT/);
  t.regex(await causeOf(placeFor({ args: ['a\0b'] })), /could not be started/);
  t.regex(await causeOf(placeFor({ args: ['x'.repeat(4_000_000)] })), /could not be started/);
  t.true(performance.now() - started < 18_000);
  t.true(logged.some(({ level, about }) => level === 'warn' && /it cannot work/.test(String(about['stderr']))));
});

test.serial('output to stderr is logged escaped and without credentials', async (t) => {
  const { upstream, logged } = startStdio(t);
  const client = await open(upstream, placeFor({ credentials: { TOKEN: 'tr0ub4dor' } }));
  await client.call('stderr', { text: 'TOKEN=tr0ub4dor\n\u001b[2Jhello\r\nrest' });
  await client.call('print', { lines: ['env: tr0ub4dor'] });
  const lines = () => logged.flatMap(({ level, about }) => (level === 'debug' ? [about] : []));
  await until(() => lines().some(({ line }) => line === '\\u{1b}[2Jhello'), 'the lines');
  t.true(lines().some(({ line, target, pid }) => line === 'TOKEN=[redacted]' && target === 'fixture' && typeof pid === 'number'));
  await until(() => lines().some(({ line }) => line === 'env: [redacted]'), 'garbage on stdout');
  await client.call('stderr', { text: 'a line\n'.repeat(20_000) });
  await t.throwsAsync((await client.start('exit', { code: 1, text: 'the end' })).all());
  const last = logged.find(({ level, about }) => level === 'warn' && about['how'] === 'ended with exit code 1');
  const tail = String(last?.about['stderr']);
  t.true(tail.endsWith('a line\nthe end\n'));
  t.is(tail.length, 64 * 1024);
  t.true(lines().length < 1_000, 'within bounds');
  t.false(JSON.stringify(logged).includes('tr0ub4dor'));
});

test.serial('banners on stdout are ignored', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor({ args: ['--banner'] }));
  t.is((await client.call('echo', { x: 1 })).result.x, 1);
});

test.serial('an answer that cannot be read breaks off only its own call', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor());
  const never = await client.start('never');
  const lines = await client.received();
  const id = lines.find(({ params }) => params?.['name'] === 'never')?.id;
  await client.call('print', { lines: [`{"jsonrpc":"2.0","id":${id},"result":{},"result":{"x":1}}`] });
  await t.throwsAsync(never.all(), { message: /second member/ });
  t.is((await client.call('echo', { x: 1 })).result.x, 1);
});

test.serial('the refusal of a server to open a session is passed on, and its process is ended', async (t) => {
  const { upstream, logged } = startStdio(t);
  const answer = await initialize(upstream, placeFor({ args: ['--refuse'] }));
  if (isFault(answer)) throw new Error(answer.fault);
  t.deepEqual(JSON.parse(await textOf(answer)), { jsonrpc: '2.0', id: 0, error: { code: -32000, message: 'not today' } });
  t.is(answer.sessionId, null);
  const pid = logged.find(({ message }) => message.endsWith('process started'))?.about['pid'] as number;
  await until(() => !isAlive(pid), 'its process');
});

test.serial('the official file system server works', async (t) => {
  const { upstream } = startStdio(t);
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'stdio-test-')));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const place = placeFor({ command: process.execPath, args: [bin('server-filesystem'), folder] });
  const client = await open(upstream, place);
  const args = { path: join(folder, 'a.txt'), content: 'ünï' };
  t.falsy((await client.call('write_file', args)).result.isError);
  t.is((await client.call('read_text_file', { path: args.path })).result.content[0].text, 'ünï');
  t.true((await client.call('read_text_file', { path: '/etc/passwd' })).result.isError);
});

test.serial('two sessions share the official memory server', async (t) => {
  const { upstream } = startStdio(t);
  const folder = realpathSync(mkdtempSync(join(tmpdir(), 'stdio-test-')));
  t.teardown(() => rmSync(folder, { recursive: true }));
  const env = { MEMORY_FILE_PATH: join(folder, 'memory.jsonl') };
  const place = placeFor({ command: process.execPath, args: [bin('server-memory')], env, scope: 'all' });
  const [one, two] = await Promise.all([open(upstream, place), open(upstream, place)]);
  const entities = [{ name: 'gate', entityType: 'thing', observations: ['shut'] }];
  t.falsy((await one.call('create_entities', { entities })).result.isError);
  t.deepEqual((await two.call('read_graph')).result.structuredContent.entities, entities);
});

test.serial('the official server-everything works with progress, logging and sampling', async (t) => {
  const { upstream } = startStdio(t);
  const client = await open(upstream, placeFor({ command: process.execPath, args: [bin('server-everything'), 'stdio'] }));
  const standing = await client.listen();
  const tools = await await client.post({ jsonrpc: '2.0', id: 1, method: 'tools/list' });
  t.is(outcomeOf(tools), 200);
  const names = ((await client.call('trigger-long-running-operation', { duration: 0.2, steps: 2 }, 2)).result.content as object[])
    .length;
  t.is(names, 1);
  const meta = { progressToken: 'p' };
  const long = await client.start('trigger-long-running-operation', { duration: 0.2, steps: 2 }, { id: 3, meta });
  t.deepEqual(
    (await long.all()).map(({ method, params }) => [method, params?.['progress']]),
    [
      ['notifications/progress', 1],
      ['notifications/progress', 2],
      [undefined, undefined],
    ] as never,
  );
  const sampling = await client.start('trigger-sampling-request', { prompt: 'hello', maxTokens: 5 }, { id: 4 });
  let asked = await standing.next();
  while (asked !== null && asked.method !== 'sampling/createMessage') asked = await standing.next();
  const result = { role: 'assistant', model: 'm', content: { type: 'text', text: 'sampled' } };
  await client.post({ jsonrpc: '2.0', id: asked?.id, result });
  t.regex(JSON.stringify((await sampling.all()).at(-1)), /sampled/);
});
