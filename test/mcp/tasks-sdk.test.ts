/** Tasks between an official client and an official server (SDK 1.x) through the gateway, and the table of tasks. */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { InMemoryTaskMessageQueue, InMemoryTaskStore } from '@modelcontextprotocol/sdk/experimental/tasks';
import { Server } from '@modelcontextprotocol/sdk/server/index.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import type { TaskRequestOptions } from '@modelcontextprotocol/sdk/shared/protocol.js';
import type { Transport } from '@modelcontextprotocol/sdk/shared/transport.js';
import {
  CallToolRequestSchema,
  CallToolResultSchema,
  ElicitRequestSchema,
  ElicitResultSchema,
  ListToolsRequestSchema,
} from '@modelcontextprotocol/sdk/types.js';
import test, { type ExecutionContext } from 'ava';
import { createSeal } from '../../src/mcp/sessions/seal.ts';
import { type TaskStore, taskStore } from '../../src/mcp/sessions/task-store.ts';
import { openTask, sealTask, TASK_LIFETIME_MS, type TaskScope, taskKey } from '../../src/mcp/sessions/tasks.ts';
import { openTestDatabase } from '../support/database.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { routed, startGateway } from './gateway.ts';
import { memoryTasks } from './stores.ts';

interface TaskServer {
  readonly url: string;
  /** Ids of the tasks that it made. */
  readonly made: string[];
  stop(): Promise<void>;
}

/** All sessions share one store, so the server can tell its users apart only by their sessions. */
async function startTaskServer(): Promise<TaskServer> {
  const made: string[] = [];
  const tasks = new InMemoryTaskStore();
  const sessions = new Map<string, StreamableHTTPServerTransport>();

  function build(): Server {
    const server = new Server(
      { name: 'tasks', version: '1' },
      {
        capabilities: { tools: {}, tasks: { list: {}, cancel: {}, requests: { tools: { call: {} } } } },
        taskStore: tasks,
        taskMessageQueue: new InMemoryTaskMessageQueue(),
      },
    );
    server.setRequestHandler(ListToolsRequestSchema, () => ({
      tools: ['work', 'ask'].map((name) => ({
        name,
        inputSchema: { type: 'object' as const },
        execution: { taskSupport: 'optional' as const },
      })),
    }));
    server.setRequestHandler(CallToolRequestSchema, async ({ params }, extra) => {
      const { taskStore: store } = extra;
      if (params.task === undefined || store === undefined) return { content: [{ type: 'text' as const, text: 'at once' }] };
      const task = await store.createTask({ ttl: 60_000, pollInterval: 20 });
      made.push(task.taskId);
      void (async () => {
        let text = 'done';
        if (params.name === 'ask') {
          const answer = await extra.sendRequest(
            {
              method: 'elicitation/create',
              params: { message: 'Which word?', requestedSchema: { type: 'object', properties: { word: { type: 'string' } } } },
            },
            ElicitResultSchema,
            { relatedTask: { taskId: task.taskId } } as TaskRequestOptions,
          );
          text = `${answer.action} ${JSON.stringify(answer.content)}`;
        }
        await store.storeTaskResult(task.taskId, 'completed', { content: [{ type: 'text', text }] });
      })();
      return { task };
    });
    return server;
  }

  const http = createServer(async (req, res) => {
    const id = req.headers['mcp-session-id'];
    const known = typeof id === 'string' ? sessions.get(id) : undefined;
    if (id !== undefined) return known === undefined ? void res.writeHead(404).end() : known.handleRequest(req, res);
    const transport: StreamableHTTPServerTransport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (opened) => void sessions.set(opened, transport),
    });
    await build().connect(transport as Transport);
    await transport.handleRequest(req, res);
  });
  http.listen(0, '127.0.0.1');
  await once(http, 'listening');
  return {
    url: `http://127.0.0.1:${(http.address() as AddressInfo).port}/mcp`,
    made,
    async stop() {
      tasks.cleanup();
      for (const transport of sessions.values()) await transport.close();
      http.closeAllConnections();
      http.close();
      await once(http, 'close');
    },
  };
}

async function setUp(t: ExecutionContext) {
  const server = await startTaskServer();
  const gateway = await startGateway({
    targets: [routed('t', server.url)],
    rights: { alice: () => true, bob: () => true },
  });
  t.teardown(async () => {
    await gateway.stop();
    await server.stop();
  });
  const connect = async (user: string): Promise<Client> => {
    const client = new Client({ name: 'test', version: '1' }, { capabilities: { elicitation: {} } });
    client.setRequestHandler(ElicitRequestSchema, () => ({ action: 'accept' as const, content: { word: 'yes' } }));
    const requestInit = { headers: { Authorization: `Bearer ${user}` } };
    await client.connect(new StreamableHTTPClientTransport(new URL(gateway.url('t')), { requestInit }) as Transport);
    t.teardown(() => client.close());
    return client;
  };
  return { gateway, server, connect };
}

/** The messages on the stream of a call, in order, and their task. */
async function follow(client: Client, name: string): Promise<{ said: string[]; taskId: string; text: string }> {
  const said: string[] = [];
  let taskId = '';
  let text = '';
  for await (const message of client.experimental.tasks.callToolStream({ name }, CallToolResultSchema, {
    task: { ttl: 60_000 },
  })) {
    if (said.at(-1) !== message.type) said.push(message.type);
    if (message.type === 'taskCreated') taskId = message.task.taskId;
    if (message.type === 'result') text = JSON.stringify(message.result.content);
    if (message.type === 'error') text = message.error.message;
  }
  return { said, taskId, text };
}

test.serial('a client runs a call as a task and gets its result', async (t) => {
  const { gateway, server, connect } = await setUp(t);
  const client = await connect('alice');
  t.deepEqual(client.getServerCapabilities()?.tasks, { list: {}, cancel: {}, requests: { tools: { call: {} } } });
  const { said, taskId, text } = await follow(client, 'work');
  t.deepEqual([said.at(0), said.at(-1), text], ['taskCreated', 'result', '[{"type":"text","text":"done"}]']);
  t.not(taskId, server.made[0]);
  const { tasks } = client.experimental;
  t.like(await tasks.getTask(taskId), { taskId, status: 'completed' });
  t.deepEqual(
    (await tasks.listTasks()).tasks.map((task) => task.taskId),
    [taskId],
  );
  const result = await tasks.getTaskResult(taskId, CallToolResultSchema);
  t.deepEqual(result._meta, { 'io.modelcontextprotocol/related-task': { taskId } });
  await t.throwsAsync(tasks.cancelTask(taskId), { message: /Cannot cancel task in terminal status/ });
  t.true(gateway.audited().includes('tasks/result tool work allow'));
});

test.serial('a task asks its user before it ends', async (t) => {
  const { connect } = await setUp(t);
  const { said, text } = await follow(await connect('alice'), 'ask');
  t.is(said.at(-1), 'result', text);
  t.regex(text, /accept \{\\"word\\":\\"yes\\"\}/);
});

test.serial("another user's client finds no task by any id", async (t) => {
  const { server, connect } = await setUp(t);
  const [alice, bob] = [await connect('alice'), await connect('bob')];
  const { taskId } = await follow(alice, 'work');
  for (const id of [taskId, server.made[0] ?? '']) {
    for (const attempt of [
      bob.experimental.tasks.getTask(id),
      bob.experimental.tasks.cancelTask(id),
      bob.experimental.tasks.getTaskResult(id, CallToolResultSchema),
    ]) {
      await t.throwsAsync(attempt, { message: 'MCP error -32602: Task not found' });
    }
  }
  t.deepEqual((await bob.experimental.tasks.listTasks()).tasks, []);
  t.deepEqual((await bob.callTool({ name: 'work' })).content, [{ type: 'text', text: 'at once' }]);
});

const place = (sub: string, changes: Partial<TaskScope> = {}): TaskScope => ({
  seal: createSeal([Buffer.alloc(32, 7)]),
  owner: { sub },
  targetName: 't',
  fingerprint: 'the place',
  now: 1_000,
  ...changes,
});

test.serial('a sealed task id opens for thirty days, for its principal and the unmoved target only', (t) => {
  const task = sealTask(place('alice'), 'upstream', 'tool');
  t.deepEqual(openTask(place('alice', { now: 1_000 + TASK_LIFETIME_MS }), task.handle), task);
  for (const other of [
    place('bob'),
    place('alice', { targetName: 'u' }),
    place('alice', { fingerprint: 'another place' }),
    place('alice', { now: 1_001 + TASK_LIFETIME_MS }),
    place('alice', { seal: createSeal([Buffer.alloc(32, 8)]) }),
  ]) {
    t.is(openTask(other, task.handle), null);
  }
});

const LEADS = 'what is remembered leads from an id of the target to the one of its client';

test.serial(`${LEADS} [memory]`, (t) => {
  const store = memoryTasks();
  return leads(t, () => store);
});
eachEngine(test.serial, LEADS, async (t, at) => {
  const { knex } = await openTestDatabase(t, at);
  await leads(t, () => taskStore(knex));
});

/** `open`: a store, as of a process that has just started. */
async function leads(t: ExecutionContext, open: () => TaskStore): Promise<void> {
  const store = open();
  const key = (id: string) => taskKey({ sub: 's' }, 'p', id);
  await store.remember(key('a'), 'first', 1_000);
  await store.remember(key('b'), 'x'.repeat(6_000), 2_000);
  await store.remember(key('a'), 'second', 3_000);
  const many = Array.from({ length: 1_200 }, (_, index) => key(String(index)));
  t.deepEqual([...(await store.handles([key('a'), key('A'), ...many, key('b')]))].sort(), [
    ...[
      [key('a'), 'second'],
      [key('b'), 'x'.repeat(6_000)],
    ].sort(),
  ]);
  t.is((await store.handles([])).size, 0);
  t.is((await open().handles([key('a')])).get(key('a')), 'second');
}
