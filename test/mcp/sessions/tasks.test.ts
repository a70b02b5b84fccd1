/** Callers reach only their own tasks, each use of a task is decided as its tool, and clients never see the target's ids. */
import { once } from 'node:events';
import { type ClientRequest, request, type ServerResponse } from 'node:http';
import test, { type ExecutionContext } from 'ava';
import type { TaskStore } from '../../../src/mcp/sessions/task-store.ts';
import { createSseReader } from '../../../src/protocol/sse.ts';
import { byMethod, type Message, type Script, startRecording } from '../../support/upstreams/recording.ts';
import { routed, startGateway, type TestGateway } from '../gateway.ts';
import { call, inSession, MODERN, modern, open, type Raw, type Reply, send } from '../raw.ts';
import { memoryTasks } from '../stores.ts';

type Era = 'stateful' | 'stateless';
const RELATED = 'io.modelcontextprotocol/related-task';
const EXTENSION = 'io.modelcontextprotocol/tasks';

/** A target that makes a task of every call. It cannot tell its users apart, because they share a credential. */
async function setUp(t: ExecutionContext, mode: Era, tasks: TaskStore = memoryTasks()) {
  const made: string[] = [];
  const task = (taskId: unknown) => ({ taskId, status: 'working', createdAt: 'c', lastUpdatedAt: 'l' });
  const results = {
    initialize: ({ protocolVersion }: Record<string, unknown>) => ({
      protocolVersion,
      capabilities: { tools: {}, tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } },
      serverInfo: { name: 'r', version: '1' },
    }),
    'server/discover': {
      supportedVersions: [MODERN],
      capabilities: { tools: {}, extensions: { [EXTENSION]: {} } },
      resultType: 'complete',
    },
    'tools/call': (params: Record<string, unknown>) => {
      if (mode === 'stateful' && params['task'] === undefined) return { content: [] };
      made.push(`upstream-${params['name']}-${made.length}`);
      return mode === 'stateful' ? { task: task(made.at(-1)) } : { resultType: 'task', ...task(made.at(-1)), ttlMs: 60_000 };
    },
    'tasks/get': ({ taskId }: Record<string, unknown>) => ({ resultType: 'complete', ...task(taskId) }),
    'tasks/result': ({ taskId }: Record<string, unknown>) => ({
      content: [{ type: 'resource_link', uri: 'file:///secret', name: 'x' }],
      _meta: { [RELATED]: { taskId } },
    }),
    'tasks/cancel': ({ taskId }: Record<string, unknown>) => (mode === 'stateful' ? task(taskId) : { resultType: 'complete' }),
    'tasks/update': { resultType: 'complete' },
    'tasks/list': () => ({ tasks: made.map(task), nextCursor: 'n' }),
  };
  const plain = byMethod(results, { modern: mode === 'stateless' });
  const upstream = await startRecording(plain);
  const gateway = await startGateway({
    targets: [routed('t', upstream.url), routed('other', upstream.url)],
    rights: {
      alice: ({ resource_name }) => resource_name !== 'file:///secret',
      bob: ({ resource_name }) => resource_name !== 'file:///secret',
    },
    deps: { tasks },
  });
  t.teardown(async () => {
    await gateway.stop();
    await upstream.stop();
  });
  const sessions = new Map<string, string>();
  const ask = async (method: string, params: object, raw: Raw = {}): Promise<Reply> => {
    if (mode === 'stateless') return send(gateway, { ...declaring(method, params), ...raw });
    const { user = 'alice', path = '/mcp/t' } = raw;
    const key = `${user} ${path}`;
    const session = sessions.get(key) ?? (await open(gateway, { user: user ?? '', target: path.slice('/mcp/'.length) }));
    sessions.set(key, session);
    return send(gateway, inSession(session, call(method, params), raw));
  };
  const make = async (name: string, user = 'alice'): Promise<string> => {
    const { result } = JSON.parse((await ask('tools/call', { name, task: { ttl: 60_000 } }, { user })).text);
    return mode === 'stateful' ? result.task.taskId : result.taskId;
  };
  const on = (method: string, script: Script): void => {
    const before = upstream.script;
    upstream.script = (received, res) => (received.message?.method === method ? script(received, res) : before(received, res));
  };
  const sessionOf = (user = 'alice') => sessions.get(`${user} /mcp/t`) ?? '';
  return { gateway, upstream, made, ask, make, on, sessionOf };
}

/** A request of 2026-07-28 whose client knows tasks. */
function declaring(method: string, params: object, extensions: object = { [EXTENSION]: {} }): Raw {
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': { elicitation: {}, extensions },
  };
  const { taskId } = params as { taskId?: unknown };
  const headers = typeof taskId === 'string' ? { 'mcp-name': /^[\x21-\x7e]+$/.test(taskId) ? taskId : '' } : {};
  return modern(method, { ...params, _meta }, Object.keys(headers).length === 0 ? {} : { headers });
}

const resultOf = (reply: Reply) => JSON.parse(reply.text).result;
const edited = (id: string): string => `${id.slice(0, 30)}${id[30] === 'A' ? 'B' : 'A'}${id.slice(31)}`;

const USES: Readonly<Record<Era, readonly string[]>> = {
  stateful: ['tasks/get', 'tasks/result', 'tasks/cancel'],
  stateless: ['tasks/get', 'tasks/update', 'tasks/cancel'],
};

for (const mode of ['stateful', 'stateless'] as const) {
  test.serial(`${mode}: client and target each know a task by their own id`, async (t) => {
    const { gateway, upstream, made, ask, make } = await setUp(t, mode);
    const id = await make('ok');
    t.false(id.includes('upstream'));
    for (const method of USES[mode]) {
      const params = method === 'tasks/update' ? { taskId: id, inputResponses: { q: { x: 1.0 } } } : { taskId: id };
      const reply = await ask(method, params);
      t.is(reply.code, undefined, reply.text);
      t.notRegex(reply.text, /upstream-/);
      t.is(upstream.received.at(-1)?.message?.params?.['taskId'], made[0]);
      if (method === 'tasks/get') t.is(resultOf(reply).taskId, id);
      if (method === 'tasks/result') t.deepEqual(resultOf(reply), { content: [], _meta: { [RELATED]: { taskId: id } } });
      if (mode === 'stateless') t.is(upstream.received.at(-1)?.headers['mcp-name'], made[0]);
      t.is(gateway.audited().at(-1), `${method} tool ok allow`);
      t.is(gateway.outcomes.at(-1)?.outcome, 'ok');
    }
  });

  test.serial(
    `${mode}: a foreign, edited or invented task id, or one of another target, is unknown and the target is not asked`,
    async (t) => {
      const { gateway, upstream, made, ask, make } = await setUp(t, mode);
      const id = await make('ok');
      await make('ok', 'bob');
      await ask('ping', {}, { path: '/mcp/other' });
      await ask('ping', {}, { user: 'bob' });
      const seen = upstream.received.length;
      for (const method of USES[mode]) {
        const replies = [
          await ask(method, { taskId: id }, { user: 'bob' }),
          await ask(method, { taskId: id }, { path: '/mcp/other' }),
          await ask(method, { taskId: edited(id) }),
          await ask(method, { taskId: id.slice(0, -1) }),
          await ask(method, { taskId: made[0] ?? '' }),
          await ask(method, { taskId: 'x'.repeat(9000) }),
        ];
        for (const { status, text } of replies) {
          t.deepEqual([status, text], [200, '{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Task not found"}}']);
        }
        t.is((await ask(method, { taskId: 1 })).code, -32602);
      }
      t.deepEqual(
        upstream
          .seen()
          .slice(seen)
          .filter((method) => method.startsWith('tasks/')),
        [],
      );
      t.is(
        gateway.audited().filter((row) => row === 'tasks/get allow').length,
        6,
        'each attempt is recorded as a use of the target',
      );
    },
  );

  test.serial(`${mode}: a caller that loses a right loses the tasks that it made with it`, async (t) => {
    const { gateway, upstream, ask, make } = await setUp(t, mode);
    const id = await make('ok');
    gateway.rights.set('alice', ({ resource_name }) => resource_name !== 'ok');
    const seen = upstream.received.length;
    for (const method of USES[mode]) t.is((await ask(method, { taskId: id })).code, 403, method);
    t.is(gateway.audited().at(-1), 'tasks/cancel tool ok deny');
    gateway.targets.set('t', routed('t', upstream.url, { denials: 'hidden' }));
    t.deepEqual(JSON.parse((await ask('tasks/get', { taskId: id })).text).error, { code: -32602, message: 'Task not found' });
    gateway.rights.delete('alice');
    t.is((await ask('tasks/get', { taskId: id })).code, 404, 'the target is gone');
    t.is(upstream.received.length, seen);
  });

  test.serial(`${mode}: a task is unknown after its target has moved, and after its lifetime`, async (t) => {
    const { gateway, upstream, ask, make } = await setUp(t, mode);
    const id = await make('ok');
    if (mode === 'stateless') {
      gateway.targets.set('t', routed('t', upstream.url, { id: 'another' }));
      t.is((await ask('tasks/get', { taskId: id })).code, -32602);
      gateway.targets.set('t', routed('t', upstream.url));
      gateway.now = Date.now() + 31 * 24 * 3_600_000;
      t.is((await ask('tasks/get', { taskId: id })).code, -32602);
      gateway.now = null;
    }
    t.is((await ask('tasks/get', { taskId: id })).code, undefined);
  });

  test.serial(`${mode}: an answer about another task is refused, whoever owns that task`, async (t) => {
    const { made, ask, make, on } = await setUp(t, mode);
    const id = await make('ok');
    await make('ok');
    await make('ok', 'bob');
    for (const taskId of [made[1] === undefined ? '' : made[2], 'unheard-of']) {
      on('tasks/get', ({ message }, res) => answer(res, message, { resultType: 'complete', taskId, status: 'working' }));
      const reply = await ask('tasks/get', { taskId: id });
      t.is(reply.code, -32603);
      t.notRegex(reply.text, /upstream|unheard/);
    }
  });

  test.serial(`${mode}: a task that could not be stored is not reported to its client`, async (t) => {
    const { gateway, upstream, ask } = await setUp(t, mode);
    let tries = 0;
    const failing = {
      remember: async () => {
        tries++;
        throw new Error('the database is gone');
      },
      handles: async () => new Map<string, string>(),
    };
    const other = await startGateway({
      targets: [...gateway.targets.values()],
      rights: { alice: () => true },
      deps: { tasks: failing },
    });
    t.teardown(() => other.stop());
    const params = { name: 'ok', task: { ttl: 1 } };
    const reply =
      mode === 'stateless'
        ? await send(other, declaring('tools/call', params))
        : await send(other, inSession(await open(other), call('tools/call', params)));
    t.is(reply.code, -32603);
    t.is(tries, 1);
    t.notRegex(reply.text, /upstream-/);
    t.is(upstream.seen().at(-1), 'tools/call');
    t.is((await ask('tools/call', params)).code, undefined);
  });
}

function answer(res: ServerResponse, message: Message | undefined, result: object): void {
  res.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify({ jsonrpc: '2.0', id: message?.id, result }));
}

test.serial("2025-11-25: a list of tasks shows the caller's tasks of tools that it may call", async (t) => {
  const { gateway, ask, make } = await setUp(t, 'stateful');
  const mine = [await make('ok'), await make('secret')];
  const theirs = await make('ok', 'bob');
  const list = async (user = 'alice') => resultOf(await ask('tasks/list', { cursor: 'c' }, { user }));
  const ids = (result: { tasks: { taskId: string }[] }) => result.tasks.map(({ taskId }) => taskId);
  t.deepEqual(ids(await list()), mine);
  t.is((await list()).nextCursor, 'n');
  t.deepEqual(ids(await list('bob')), [theirs]);
  gateway.rights.set('alice', ({ resource_name }) => resource_name === 'ok');
  t.deepEqual(ids(await list()), mine.slice(0, 1));
  t.like(gateway.shown.at(-1), { resource_type: 'tool', names: ['ok'], hidden: 2 });
  t.is(gateway.audited().at(-1), 'tasks/list allow');
  t.is(
    (await ask('tasks/get', { taskId: ids(await list())[0] ?? '' })).code,
    undefined,
    'the ids are those that the client holds',
  );
});

test.serial('2025-11-25: a list of tasks whose owners cannot be looked up is not answered', async (t) => {
  const { gateway, upstream, make } = await setUp(t, 'stateful');
  await make('ok');
  const other = await startGateway({
    targets: [...gateway.targets.values()],
    rights: { alice: () => true },
    deps: { tasks: { remember: async () => undefined, handles: async () => Promise.reject(new Error('gone')) } },
  });
  t.teardown(() => other.stop());
  const reply = await send(other, inSession(await open(other), call('tasks/list')));
  t.is(reply.code, -32603);
  t.is(upstream.seen().at(-1), 'tasks/list');
});

test.serial('sessions of older revisions have no tasks', async (t) => {
  const { gateway, upstream, make } = await setUp(t, 'stateful');
  const id = await make('ok');
  const session = await open(gateway, { revision: '2025-06-18' });
  for (const method of ['tasks/get', 'tasks/result', 'tasks/cancel', 'tasks/list']) {
    const reply = await send(gateway, inSession(session, call(method, { taskId: id })));
    t.deepEqual([reply.status, reply.code], [200, -32601], method);
  }
  const reply = await send(gateway, inSession(session, call('tools/call', { name: 'ok', task: {} })));
  t.deepEqual(resultOf(reply), { content: [] });
  t.false('task' in (upstream.received.at(-1)?.message?.params ?? {}));
});

test.serial('2025-11-25: a task that the client did not ask for is not a valid answer', async (t) => {
  const { upstream, ask, on } = await setUp(t, 'stateful');
  on('tools/call', ({ message }, res) => answer(res, message, { task: { taskId: 'upstream-x', status: 'working' } }));
  await ask('tools/call', { name: 'ok', task: { ttl: 5, taskId: 'upstream-ok-0' } });
  t.deepEqual(upstream.received.at(-1)?.message?.params?.['task'], { ttl: 5 }, 'a client does not name it');
  for (const params of [{ name: 'ok' }, { name: 'ok', task: null }, { name: 'ok', task: 'x' }]) {
    const reply = await ask('tools/call', params);
    t.is(reply.code, -32603, JSON.stringify(params));
    t.notRegex(reply.text, /upstream-/);
  }
});

test.serial('a target gets the wish for a task only with calls of tools', async (t) => {
  const { upstream, ask } = await setUp(t, 'stateful');
  for (const [method, params] of [
    ['prompts/get', { name: 'p' }],
    ['resources/subscribe', { uri: 'file:///a' }],
    ['logging/setLevel', { level: 'info' }],
    ['tasks/list', {}],
  ] as const) {
    await ask(method, { ...params, task: { ttl: 5 } });
    t.like(upstream.received.at(-1)?.message, { method, params: { ...params, task: undefined } });
  }
});

test.serial('a client can name only its own tasks as related tasks', async (t) => {
  const { gateway, upstream, made, ask, make, sessionOf } = await setUp(t, 'stateful');
  const id = await make('ok');
  const theirs = await make('ok', 'bob');
  const related = (taskId: string) => ({ _meta: { x: 1, [RELATED]: { taskId, TaskId: made[1] ?? '' } } });
  const forwarded = async (taskId: string) => {
    await ask('tools/call', { name: 'ok', ...related(taskId) });
    return upstream.received.at(-1)?.message?.params?.['_meta'];
  };
  t.deepEqual(await forwarded(id), { x: 1, [RELATED]: { taskId: made[0] } });
  for (const foreign of [theirs, made[1] ?? '', edited(id)]) t.deepEqual(await forwarded(foreign), { x: 1 });
  const notify = async (taskId: string) => {
    const params = { progressToken: 1, progress: 1, ...related(taskId) };
    await send(gateway, inSession(sessionOf(), { jsonrpc: '2.0', method: 'notifications/progress', params }));
    return upstream.received.at(-1)?.message?.params?.['_meta'];
  };
  t.deepEqual(await notify(id), { x: 1, [RELATED]: { taskId: made[0] } });
  t.deepEqual(await notify(made[1] ?? ''), { x: 1 });
});

const event = (message: object) => `data: ${JSON.stringify(message)}\n\n`;

interface Heard {
  readonly method?: string;
  readonly id?: string;
  readonly params?: Record<string, unknown>;
  readonly result?: Record<string, unknown>;
}

/** An open stream of the gateway, message by message. */
async function listenTo(gateway: TestGateway, { path = '/mcp/t', user = 'alice', headers = [], body }: Raw): Promise<Stream> {
  const text = body === undefined ? undefined : JSON.stringify(body);
  const own = [
    ...['authorization', `Bearer ${user}`, 'accept', 'application/json, text/event-stream', 'host', new URL(gateway.origin).host],
    ...(text === undefined ? [] : ['content-type', 'application/json', 'content-length', String(Buffer.byteLength(text))]),
  ];
  const req: ClientRequest = request(gateway.origin + path, {
    method: text === undefined ? 'GET' : 'POST',
    headers: [...own, ...headers] as never,
  });
  req.end(text);
  const [res] = await once(req, 'response');
  const reader = createSseReader(1_000_000);
  const chunks = res[Symbol.asyncIterator]();
  const ready: Heard[] = [];
  return {
    async hear() {
      while (ready.length === 0) {
        const { value, done } = await chunks.next();
        if (done === true) throw new Error('the stream has ended');
        for (const { data } of reader.push(value as Buffer)) if (data !== '') ready.push(JSON.parse(data) as Heard);
      }
      return ready.shift() as Heard;
    },
    close: () => void req.destroy(),
  };
}

interface Stream {
  hear(): Promise<Heard>;
  close(): void;
}

test.serial("2025-11-25: the state of a task reaches its caller under the caller's id, while it may call the tool", async (t) => {
  let mostSought = 0;
  const stored = memoryTasks();
  const tasks: TaskStore = {
    ...stored,
    handles(keys) {
      mostSought = Math.max(mostSought, keys.length);
      return stored.handles(keys);
    },
  };
  const { gateway, upstream, made, make, sessionOf } = await setUp(t, 'stateful', tasks);
  const id = await make('ok');
  await make('ok', 'bob');
  const plain = upstream.script;
  const streams: ServerResponse[] = [];
  upstream.script = (received, res) => {
    if (received.httpMethod !== 'GET') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    res.flushHeaders();
    streams.push(res);
  };
  const stream = await listenTo(gateway, { headers: ['mcp-session-id', sessionOf()] });
  t.teardown(() => stream.close());
  const say = (method: string, params: object) => streams[0]?.write(event({ jsonrpc: '2.0', method, params }));
  const tell = (taskId: unknown, status: string) => say('notifications/tasks/status', { taskId, status });
  const log = (data: string, taskId: unknown) =>
    say('notifications/message', { level: 'info', data, _meta: { [RELATED]: { taskId } } });
  tell(made[1], 'of another');
  tell('unheard-of', 'of nobody');
  tell(7, 'of nothing');
  say('notifications/tasks', { taskId: made[0], status: 'of another revision' });
  const listed = Array.from({ length: 1_000 }, (_, i) => ({ taskId: `listed ${i}` }));
  say('notifications/tasks/status', { taskId: made[1], status: 'of another', tasks: listed });
  tell(made[0], 'mine');
  t.deepEqual(await stream.hear(), {
    jsonrpc: '2.0',
    method: 'notifications/tasks/status',
    params: { taskId: id, status: 'mine' },
  } as Heard);
  t.is(gateway.audited().at(-1), 'notifications/tasks/status tool ok allow');
  t.is(mostSought, 1, 'a list of tasks in the state of one means nothing');
  log('of another', made[1]);
  log('of nothing', 7);
  log('mine', made[0]);
  t.deepEqual((await stream.hear()).params, { level: 'info', data: 'mine', _meta: { [RELATED]: { taskId: id } } });
  gateway.rights.set('alice', ({ resource_name }) => resource_name !== 'ok');
  tell(made[0], 'no more');
  say('notifications/tools/list_changed', {});
  t.is((await stream.hear()).method, 'notifications/tools/list_changed');
  t.is(gateway.audited().at(-1), 'notifications/tasks/status tool ok deny');
});

test.serial("2025-11-25: a request during a task and its answer each name the task by the reader's id", async (t) => {
  const { gateway, upstream, made, make, on, sessionOf } = await setUp(t, 'stateful');
  const id = await make('ok');
  await make('ok', 'bob');
  const waiting: ServerResponse[] = [];
  const question = (q: string, taskId: unknown) =>
    event({ jsonrpc: '2.0', id: q, method: 'elicitation/create', params: { message: q, _meta: { [RELATED]: { taskId } } } });
  on('tasks/result', (_, res) => {
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    const progress = (taskId: unknown, token: string) => {
      const params = { progressToken: token, progress: 1, ...(taskId === null ? {} : { _meta: { [RELATED]: { taskId } } }) };
      return event({ jsonrpc: '2.0', method: 'notifications/progress', params });
    };
    res.write(progress(null, 'of nothing') + progress(made[1], 'of another') + progress(made[0], 'of the call'));
    res.write(question('of another', made[1]) + question('mine', made[0]));
    waiting.push(res);
  });
  const raw = inSession(sessionOf(), call('tasks/result', { taskId: id }, 9));
  const stream = await listenTo(gateway, raw);
  t.deepEqual((await stream.hear()).params, { progressToken: 'of the call', progress: 1, _meta: { [RELATED]: { taskId: id } } });
  const asked = await stream.hear();
  t.deepEqual(asked.params, { message: 'mine', _meta: { [RELATED]: { taskId: id } } });
  const response = { jsonrpc: '2.0', id: asked.id, result: { action: 'accept', _meta: { [RELATED]: { taskId: id }, x: 1 } } };
  t.is((await send(gateway, inSession(sessionOf(), response))).status, 202);
  t.deepEqual(upstream.received.at(-1)?.message, {
    jsonrpc: '2.0',
    id: 'mine',
    result: { action: 'accept', _meta: { x: 1, [RELATED]: { taskId: made[0] } } },
  } as Message);
  t.like(upstream.received.find(({ message }) => message?.id === 'of another')?.message, { error: { code: -32601 } });
  waiting[0]?.end(event({ jsonrpc: '2.0', id: 9, result: { content: [], _meta: { [RELATED]: { taskId: made[0] } } } }));
  t.deepEqual((await stream.hear()).result, { content: [], _meta: { [RELATED]: { taskId: id } } });
});

test.serial('2026-07-28: a client that does not declare tasks has none', async (t) => {
  const { gateway, upstream, made, make } = await setUp(t, 'stateless');
  const id = await make('ok');
  const seen = upstream.received.length;
  for (const method of [...USES.stateless]) {
    for (const taskId of [id, 'invented']) {
      const reply = await send(gateway, declaring(method, { taskId }, {}));
      t.deepEqual([reply.status, reply.code], [400, -32021], method);
      t.deepEqual(JSON.parse(reply.text).error.data, { requiredCapabilities: { extensions: { [EXTENSION]: {} } } });
    }
  }
  const listen = await send(gateway, declaring('subscriptions/listen', { notifications: { taskIds: [id] } }, {}));
  t.deepEqual([listen.status, listen.code], [400, -32021]);
  t.is(upstream.received.length, seen);
  const undeclared = await send(gateway, declaring('tools/call', { name: 'ok' }, {}));
  t.is(undeclared.code, -32603, 'a task that was not asked for is no answer');
  t.notRegex(undeclared.text, new RegExp(made.at(-1) ?? 'none'));
});

test.serial('2026-07-28: the methods of tasks are unknown at a target without tasks', async (t) => {
  const { gateway, upstream } = await setUp(t, 'stateless');
  upstream.script = byMethod({}, { modern: true });
  for (const method of USES.stateless) {
    const reply = await send(gateway, declaring(method, { taskId: 'x' }));
    t.deepEqual([reply.status, reply.code], [404, -32601], method);
  }
  t.deepEqual(upstream.seen(), ['server/discover']);
});

test.serial("2026-07-28: the header repeats the client's id of the task", async (t) => {
  const { gateway, upstream, made, make } = await setUp(t, 'stateless');
  const id = await make('ok');
  const seen = upstream.received.length;
  const wrong = modern('tasks/get', (declaring('tasks/get', { taskId: id }).body as { params: object }).params, {
    headers: { 'mcp-name': made[0] },
  });
  t.is((await send(gateway, wrong)).code, -32020);
  t.is(upstream.received.length, seen);
});

test.serial('2026-07-28: the state of a task is filtered like the result of a call', async (t) => {
  const { gateway, ask, make, made, on } = await setUp(t, 'stateless');
  const id = await make('ok');
  const state = async (more: object) => {
    on('tasks/get', ({ message }, res) => answer(res, message, { resultType: 'complete', taskId: made[0], ...more }));
    return ask('tasks/get', { taskId: id });
  };
  const link = (uri: string) => ({ type: 'resource_link', uri, name: uri });
  const done = await state({ status: 'completed', ttlMs: 7, result: { content: [link('file:///a'), link('file:///secret')] } });
  t.deepEqual(resultOf(done), {
    resultType: 'complete',
    taskId: id,
    status: 'completed',
    ttlMs: 7,
    result: { content: [link('file:///a')] },
  });
  t.like(gateway.shown.at(-1), { resource_type: 'resource', names: ['file:///a'], hidden: 1 });
  const asking = (params: object) =>
    state({ status: 'input_required', inputRequests: { q: { method: 'elicitation/create', params } } });
  t.is((await asking({ message: 'x' })).code, undefined);
  t.is((await asking({ mode: 'url', url: 'https://x.test' })).code, -32603, 'the client offers no addresses');
});

test.serial("2026-07-28: the target gets only the caller's own tasks of a listening filter", async (t) => {
  const { gateway, upstream, made, make } = await setUp(t, 'stateless');
  const mine = await make('ok');
  const barred = await make('secret');
  const theirs = await make('ok', 'bob');
  await make('ok');
  gateway.rights.set('alice', ({ resource_name }) => resource_name !== 'secret' && resource_name !== 'file:///secret');
  const plain = upstream.script;
  const streams: ServerResponse[] = [];
  upstream.script = (received, res) => {
    if (received.message?.method !== 'subscriptions/listen') return plain(received, res);
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    const notifications = { taskIds: [made[2], made[0], made[3], 'unheard-of'] };
    const params = { notifications, _meta: { 'io.modelcontextprotocol/subscriptionId': 1 } };
    res.write(event({ jsonrpc: '2.0', method: 'notifications/subscriptions/acknowledged', params }));
    streams.push(res);
  };
  const filter = { taskIds: [mine, barred, theirs, edited(mine), made[2], mine] };
  const stream = await listenTo(gateway, declaring('subscriptions/listen', { notifications: filter }));
  t.teardown(() => stream.close());
  t.deepEqual((await stream.hear()).params?.['notifications'], { taskIds: [mine] });
  t.deepEqual(upstream.received.at(-1)?.message?.params?.['notifications'], { taskIds: [made[0]] });
  t.deepEqual(gateway.audited().slice(-3), [
    'subscriptions/listen allow',
    'subscriptions/listen tool ok allow',
    'subscriptions/listen tool secret deny',
  ]);
  const tell = (taskId: unknown, more: object) => {
    const params = { taskId, _meta: { 'io.modelcontextprotocol/subscriptionId': 1 }, ...more };
    streams[0]?.write(event({ jsonrpc: '2.0', method: 'notifications/tasks', params }));
  };
  const link = (uri: string) => ({ type: 'resource_link', uri, name: uri });
  tell(made[2], { status: 'of another' });
  tell(made[1], { status: 'of a tool that is barred' });
  tell(made[3], { status: 'of a task that nobody listens to' });
  tell(made[0], { status: 'input_required', inputRequests: { q: { method: 'roots/list' } } });
  tell(made[0], { status: 'completed', result: { content: [link('file:///secret'), link('file:///a')] } });
  const told = (await stream.hear()).params;
  t.like(told, { taskId: mine, status: 'completed', result: { content: [link('file:///a')] } });
  t.is(gateway.audited().at(-1), 'notifications/tasks tool ok allow');
});

test.serial('2026-07-28: a listening filter names tasks as a list of texts', async (t) => {
  const { gateway, upstream } = await setUp(t, 'stateless');
  for (const taskIds of ['x', [1], {}, Array(1001).fill('x')]) {
    const reply = await send(gateway, declaring('subscriptions/listen', { notifications: { taskIds } }));
    t.deepEqual([reply.status, reply.code], [400, -32602]);
  }
  t.is(upstream.received.length, 0);
});
