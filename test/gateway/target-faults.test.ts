/** A whole gateway: what caller and administrator learn about targets that fail. */
import test, { type ExecutionContext } from 'ava';
import { person, startGateway } from '../support/gateway.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';

const initialize = { jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } };

interface Health {
  readonly status: string;
  readonly last_fault: { readonly kind: string; readonly message: string; readonly stderr: string | null } | null;
}

/** A gateway with one target, which everybody may use. */
async function gatewayWith(t: ExecutionContext, target: object, environment: Record<string, string> = {}) {
  const gateway = await startGateway(t, null, { STDIO_ALLOWED: process.execPath, ...environment });
  const { token } = await person(gateway, 'admin@example.com');
  const made = await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', { token, body: { name: 't', ...target } });
  const all = { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects: [{ subject_type: 'everyone' }] };
  await gateway.rest(201, 'POST', '/api/policies', { token, body: all });
  const url = `${gateway.url}/mcp/t`;
  const answerOf = async (message: object, session?: string) =>
    (await post(url, token, message, session === undefined ? {} : { 'mcp-session-id': session })).message;
  return {
    open: () => openSession(url, token),
    answerOf,
    messageOf: async (message: object, session?: string) => (await answerOf(message, session))?.error?.message ?? '',
    check: async () =>
      (await gateway.rest<{ fault: Health['last_fault'] }>(200, 'POST', `/api/targets/${made.body.id}/check`, { token })).body,
    health: async () => (await gateway.rest<Health>(200, 'GET', `/api/targets/${made.body.id}/health`, { token })).body,
  };
}

/** Answers `initialize`, and runs `onCall` for each call of a tool, with `calls`, `say` and `process` at hand. */
const program = (onCall: string): object => ({
  transport: 'stdio',
  command: process.execPath,
  args: [
    '-e',
    `let calls = 0;
    require('node:readline').createInterface({ input: process.stdin }).on('line', (line) => {
      const { id, method } = JSON.parse(line);
      const say = (result) => process.stdout.write(JSON.stringify({ jsonrpc: '2.0', id, result }) + '\\n');
      if (method === 'initialize') say({ protocolVersion: '2025-11-25', capabilities: {}, serverInfo: { name: 's', version: '1' } });
      else if (method === 'tools/call') { calls++; ${onCall} }
    });`.replaceAll(/\n\s*/g, ' '),
  ],
});

test.serial('the caller learns that a process has crashed, and the administrator also sees its last output', async (t) => {
  const { open, messageOf, health } = await gatewayWith(t, program("process.stderr.write('no /etc/data\\n'); process.exit(3);"));
  t.is(await messageOf(call('x'), await open()), 'The target `t` ended before it answered');
  const { last_fault } = await health();
  t.like(last_fault, { kind: 'crashed', stderr: 'no /etc/data\n' });
  t.regex(last_fault?.message ?? '', /exit code 3/);
});

test.serial('the caller learns that a target redirects, and the administrator also where to', async (t) => {
  const upstream = await startRecording((_, res) => void res.writeHead(307, { location: 'http://10.9.8.7/mcp/' }).end());
  t.teardown(() => upstream.stop());
  const { messageOf, health } = await gatewayWith(t, { transport: 'streamable-http', url: upstream.url });
  const message = await messageOf(initialize);
  t.regex(message, /redirects, which the gateway does not follow/);
  t.notRegex(message, /10\.9\.8\.7/);
  t.regex((await health()).last_fault?.message ?? '', /redirects to http:\/\/10\.9\.8\.7\/mcp\//);
});

test.serial('the caller and the administrator learn that the address is that of a page, and not of an MCP server', async (t) => {
  const upstream = await startRecording((_, res) => void res.writeHead(200, { 'content-type': 'text/html' }).end('<html>'));
  t.teardown(() => upstream.stop());
  const { messageOf, health, check } = await gatewayWith(t, { transport: 'streamable-http', url: upstream.url });
  const said = /answered with something other than JSON or an event stream: an administrator must check its address/;
  t.regex(await messageOf(initialize), said);
  t.regex((await health()).last_fault?.message ?? '', said);
  t.regex((await check()).fault?.message ?? '', said);
});

test.serial('the caller and the administrator learn that a server of HTTP+SSE has the wrong transport', async (t) => {
  const upstream = await startRecording(({ httpMethod }, res) => {
    if (httpMethod !== 'GET') return void res.writeHead(405).end();
    res.writeHead(200, { 'content-type': 'text/event-stream' }).write('event: endpoint\ndata: /messages\n\n');
  });
  t.teardown(() => upstream.stop());
  const { messageOf, health } = await gatewayWith(t, { transport: 'streamable-http', url: upstream.url });
  t.regex(await messageOf(initialize), /speaks HTTP with SSE.*set its transport to `sse`/);
  t.regex((await health()).last_fault?.message ?? '', /speaks HTTP with SSE/);
});

test.serial('the error for a silent target names the limit and its settings, over every transport', async (t) => {
  const plain = byMethod({});
  const upstream = await startRecording((received, res) =>
    received.message?.method === 'tools/call' ? undefined : plain(received, res),
  );
  t.teardown(() => upstream.stop());
  for (const target of [program(''), { transport: 'streamable-http', url: upstream.url }]) {
    const { open, messageOf, health } = await gatewayWith(t, target, { UPSTREAM_TIMEOUT_MS: '3000' });
    t.regex(
      await messageOf(call('x'), await open()),
      /did not answer in time: it may be silent for 3 s \(`timeout_ms` of the target, or UPSTREAM_TIMEOUT_MS\)/,
    );
    t.like((await health()).last_fault, { kind: 'timeout' });
  }
});

test.serial('a target may have its own limit for silence', async (t) => {
  const { open, messageOf } = await gatewayWith(t, { ...program(''), timeout_ms: 1_000 });
  t.regex(await messageOf(call('x'), await open()), /did not answer in time: it may be silent for 1 s/);
});

test.serial('the error for a too large answer names limit and setting, and the process keeps running', async (t) => {
  const onCall = "say({ content: [{ type: 'text', text: calls === 1 ? 'x'.repeat(90_000) : 'call ' + calls }] });";
  const { open, answerOf, messageOf, health } = await gatewayWith(t, program(onCall), { UPSTREAM_ANSWER_BYTES: '70000' });
  const session = await open();
  t.regex(
    await messageOf(call('x'), session),
    /answer that is too large: at most 70000 bytes are read \(UPSTREAM_ANSWER_BYTES\)/,
  );
  t.like((await health()).last_fault, { kind: 'too_large' });
  t.deepEqual((await answerOf(call('x'), session))?.result, { content: [{ type: 'text', text: 'call 2' }] });
});
