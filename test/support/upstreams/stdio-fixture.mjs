/** A stdio server that behaves, or misbehaves, as its tools are called. Plain JavaScript: it runs without any environment. */
import { spawn } from 'node:child_process';
import { writeSync } from 'node:fs';

/** Longer than any test. If a test is killed, even a stubborn process ends after this time. */
const LIFETIME_MS = 120_000;
setTimeout(() => process.exit(), LIFETIME_MS).unref();

/** Every line that came, as it came. */
const received = [];
const waiting = new Map();
const counts = { initialize: 0 };

const send = (message) => process.stdout.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const isSet = (name) => process.argv.includes(name);

const tools = {
  facts: () => ({ env: process.env, cwd: process.cwd(), pid: process.pid, args: process.argv.slice(2), counts }),
  received: () => ({ received }),
  echo: async ({ delay = 0, ...rest }) => {
    await sleep(delay);
    return rest;
  },
  progress: async ({ count }, { progressToken }) => {
    for (let progress = 1; progress <= count; progress++) {
      send({ method: 'notifications/progress', params: { progressToken, progress, total: count } });
    }
    return { progressToken };
  },
  /** Sends a request to the client, and answers the call with the client's answer. */
  ask: ({ method, params, id = 'asked-1' }) =>
    new Promise((resolve) => {
      waiting.set(id, ({ result, error }) => resolve({ result, error }));
      send({ id, method, params });
    }),
  /** Prints these lines unchanged, and then answers. */
  print: ({ lines }) => {
    for (const line of lines) process.stdout.write(`${line}\n`);
    return {};
  },
  /** The same once the call is over. */
  later: ({ lines }) => {
    setTimeout(() => tools.print({ lines }), 20);
    return {};
  },
  stderr: ({ text }) => {
    writeSync(2, text);
    return {};
  },
  exit: ({ code, text }) => {
    writeSync(2, text);
    process.exit(code);
  },
  /** Begins a line, and ends it later. */
  begin: async ({ length, ms }) => {
    process.stdout.write('x'.repeat(length));
    await sleep(ms);
    process.stdout.write('\n');
    return {};
  },
  never: () => new Promise(() => undefined),
  huge: ({ length }) => ({ text: 'x'.repeat(length) }),
  /** Writes without end, whether or not the output is read. */
  flood: () => {
    const line = `${JSON.stringify({ jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', data: 'x'.repeat(1000) } })}\n`;
    let written = 0;
    const more = () => {
      while (process.stdout.write(line)) written++;
      process.stdout.once('drain', more);
    };
    setImmediate(more);
    tools.flooded = () => ({ written });
    return {};
  },
  /** Reads nothing any more. */
  deaf: () => {
    process.stdin.pause();
    // Nothing else keeps it alive.
    setInterval(() => undefined, 1000);
    return {};
  },
  closeOutput: () => {
    setTimeout(() => process.stdout.end(), 10);
    setInterval(() => undefined, 1000);
    return {};
  },
  /** Starts a child process that ignores every signal that can be ignored. */
  spawn: async () => {
    const script = `process.on('SIGTERM', () => {}); process.on('SIGHUP', () => {}); setTimeout(() => {}, ${LIFETIME_MS}); console.log('up')`;
    const child = spawn(process.execPath, ['-e', script], { stdio: ['ignore', 'pipe', 'ignore'] });
    await new Promise((resolve) => child.stdout.once('data', resolve));
    return { pid: child.pid };
  },
};

async function handle({ id, method, params = {}, result, error }) {
  if (method === undefined) {
    waiting.get(id)?.({ result, error });
    return;
  }
  if (id === undefined) return;
  if (method === 'initialize') {
    counts.initialize++;
    if (isSet('--silent')) return;
    if (isSet('--refuse')) {
      send({ id, error: { code: -32000, message: 'not today' } });
      return;
    }
    const resources = { subscribe: true, listChanged: true };
    const capabilities = { tools: {}, logging: {}, tasks: {}, completions: {}, resources };
    const serverInfo = { name: 'fixture', version: '1' };
    send({ id, result: { protocolVersion: params.protocolVersion, capabilities, serverInfo } });
    return;
  }
  const tool = method === 'tools/call' ? tools[params.name] : () => ({ method });
  if (tool === undefined) {
    send({ id, error: { code: -32602, message: 'no such tool' } });
    return;
  }
  send({ id, result: await tool(params.arguments ?? {}, params._meta ?? {}) });
}

if (isSet('--crash')) {
  writeSync(2, 'it cannot work \u001b[31mlike this\n');
  process.exit(7);
}
if (isSet('--stubborn')) {
  for (const signal of ['SIGTERM', 'SIGHUP', 'SIGINT']) process.on(signal, () => undefined);
  setInterval(() => undefined, 1000);
}
if (isSet('--banner')) process.stdout.write('Welcome!\n\n[1, 2]\n{"not": "a message"}\n{broken\n');

let rest = '';
process.stdin.setEncoding('utf8');
process.stdin.on('data', (text) => {
  const lines = (rest + text).split('\n');
  rest = lines.pop();
  for (const line of lines) {
    received.push(line);
    void handle(JSON.parse(line));
  }
});
