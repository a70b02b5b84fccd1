/** Two replicas behind a load balancer without affinity: a client sees one gateway, also while a replica dies. */
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { ElicitRequestSchema, LoggingMessageNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import test, { type ExecutionContext } from 'ava';
import { eachServer } from '../support/databases/each-engine.ts';
import { rest, startGateway } from '../support/gateway.ts';
import { until } from '../support/listener.ts';
import { call, modernClient, openSession, post } from '../support/mcp.ts';
import { dataDir, type GatewayProcess, runGateway } from '../support/process.ts';
import { roundRobin } from '../support/round-robin.ts';
import { startModernOnly } from '../support/upstreams/modern-only.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { type Stateful, startStateful } from '../support/upstreams/stateful.ts';
import { world } from '../support/world.ts';

interface Connected {
  readonly client: Client;
  readonly transport: StreamableHTTPClientTransport;
  /** The log of the target. */
  readonly logged: unknown[];
  asked: number;
}

async function connect(t: ExecutionContext, url: string, token: string): Promise<Connected> {
  const client = new Client({ name: 'test-1.x', version: '1.0.0' }, { capabilities: { elicitation: {} } });
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    requestInit: { headers: { authorization: `Bearer ${token}` } },
  });
  const connected: Connected = { client, transport, logged: [], asked: 0 };
  client.setRequestHandler(ElicitRequestSchema, () => {
    connected.asked++;
    return { action: 'accept', content: { word: 'yes' } };
  });
  client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => void connected.logged.push(params.data));
  await client.connect(transport);
  t.teardown(() => client.close());
  return connected;
}

const warnings: string[] = [];
process.on('warning', ({ name, message }) => warnings.push(`${name}: ${message}`));

const textOf = (result: object): string => (result as { content: { text: string }[] }).content[0]?.text ?? '';

for (const [path, prefix] of [
  ['/mcp/everything', ''],
  ['/mcp', 'everything__'],
] as const) {
  eachServer(test.serial, `${path} keeps one session through two replicas in turn`, async (t, at) => {
    const target = await startStateful();
    t.teardown(() => target.stop());
    const w = await world(t, at.url, target.url);
    const other = await startGateway(t, at.url);
    await w.allow({ name: 'all' });
    const balanced = await roundRobin(t, [w.gateway.url, other.url]);
    const connected = await connect(t, `${balanced.url}${path}`, w.token);
    const { client, transport } = connected;
    const echo = async () => textOf(await client.callTool({ name: `${prefix}echo`, arguments: {} }));
    const answers = new Set(await Promise.all(Array.from({ length: 10 }, echo)));
    t.is(answers.size, 1, 'one session at the target');

    for (let n = 1; n <= 3; n++) {
      const answer = JSON.parse(textOf(await client.callTool({ name: `${prefix}ask`, arguments: {} })));
      t.is(answer.content.word, 'yes');
      t.is(connected.asked, n);
    }

    await until('the stream is open', () => [...target.sessions.values()].some(({ stream }) => stream !== null));
    for (let n = 0; n < 3; n++) target.say('notifications/message', { level: 'info', data: n });
    await until('the messages of the target have arrived', () => connected.logged.length === 3);
    t.deepEqual(connected.logged, [0, 1, 2]);

    for (let n = 0; n < 2; n++) {
      const cancel = new AbortController();
      const before = target.seen().filter((method) => method === 'tools/call').length;
      const slow = client.callTool({ name: `${prefix}slow`, arguments: {} }, undefined, { signal: cancel.signal });
      await until('the call has arrived', () => target.seen().filter((method) => method === 'tools/call').length > before);
      const asked = target.received.findLast(({ message }) => message?.method === 'tools/call')?.message?.id;
      cancel.abort('enough');
      await t.throwsAsync(slow);
      const cancelled = () => target.received.findLast(({ message }) => message?.method === 'notifications/cancelled');
      await until('the target gets the cancellation', () => cancelled()?.message?.params?.['requestId'] === asked);
    }

    const session = transport.sessionId;
    await rest(w.gateway.url, 'POST', `/api/users/${w.user.id}/recycle`, { token: w.admin.token });
    const renewed = new Set(await Promise.all(Array.from({ length: 10 }, echo)));
    t.is(renewed.size, 1);
    t.not([...renewed][0], [...answers][0]);
    t.is(transport.sessionId, session);
    await until('the stream uses the new upstream session', () => [...target.sessions.values()].at(-1)?.stream != null);
    target.say('notifications/message', { level: 'info', data: 'again' });
    await until('the message arrives', () => connected.logged.includes('again'));
    t.true(
      balanced.counts.every((count) => count > 5),
      String(balanced.counts),
    );

    await transport.terminateSession();
    for (const url of [w.gateway.url, other.url]) {
      const { status } = await post(`${url}${path}`, w.token, call(`${prefix}echo`), { 'mcp-session-id': session ?? '' });
      t.is(status, 404, 'every replica knows that the session has ended');
    }
  });
}

interface Replicas {
  readonly processes: GatewayProcess[];
  readonly admin: string;
  readonly token: string;
  readonly url: string;
  api<T>(method: string, path: string, body?: unknown): Promise<T>;
}

/** Starts two replicas as processes, with these targets and a policy that allows everything. */
async function processes(t: ExecutionContext, databaseUrl: string, targets: Readonly<Record<string, string>>): Promise<Replicas> {
  const environment = {
    DATABASE_URL: databaseUrl,
    MASTER_KEY: Buffer.alloc(32, 3).toString('base64'),
    LOG_LEVEL: 'error',
    LOGIN_RATE_LIMIT: '1000',
  };
  const both = [
    await runGateway(t, { ...environment, DATA_DIR: dataDir(t) }),
    await runGateway(t, { ...environment, DATA_DIR: dataDir(t) }),
  ];
  const first = both[0]?.url ?? '';
  const account = { email: 'admin@example.com', password: 'a long passphrase' };
  await rest(first, 'POST', '/api/auth/register', { body: account });
  const { body: login } = await rest<{ token: string }>(first, 'POST', '/api/auth/login', { body: account });
  const api = async <T>(method: string, path: string, body?: unknown): Promise<T> =>
    (await rest<T>(first, method, path, { token: login.token, ...(body === undefined ? {} : { body }) })).body;
  for (const [name, url] of Object.entries(targets)) {
    await api('POST', '/api/targets', { name, transport: 'streamable-http', url });
  }
  const subjects = [{ subject_type: 'everyone' }];
  await api('POST', '/api/policies', { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects });
  const { token } = await api<{ token: string }>('POST', '/api/auth/tokens', { name: 'a client' });
  const { url } = await roundRobin(
    t,
    both.map((one) => one.url),
  );
  return { processes: both, admin: login.token, token, url, api };
}

const echoIn = async (url: string, token: string, session: string) => {
  const { message } = await post(url, token, call('everything__echo'), { 'mcp-session-id': session });
  return message;
};

eachServer(test.serial, 'a replica takes over the sessions of a killed owner', async (t, at) => {
  t.timeout(120_000);
  const target = await startStateful();
  t.teardown(() => target.stop());
  const modern = await startModernOnly();
  t.teardown(() => modern.stop());
  const replicas = await processes(t, at.url, { everything: target.url, modern: modern.url });
  const [holder, other] = replicas.processes;
  if (holder === undefined || other === undefined) throw new Error('no replicas');
  const mcp = `${replicas.url}/mcp`;
  const session = await openSession(`${holder.url}/mcp`, replicas.token);
  const served = await openSession(`${holder.url}/mcp/modern`, replicas.token);
  const callServed = () => post(`${other.url}/mcp/modern`, replicas.token, call('echo'), { 'mcp-session-id': served });
  t.truthy((await callServed()).message?.result, 'the request is forwarded to the owner');
  let answered = 0;
  let failed = 0;
  let over = false;
  const caller = async (): Promise<void> => {
    while (!over) {
      const message = await echoIn(mcp, replicas.token, session).catch(() => null);
      if (message?.result === undefined) failed++;
      else answered++;
    }
  };
  const callers = Array.from({ length: 4 }, caller);
  await until('calls are answered', () => answered > 50);
  t.is(failed, 0);
  holder.child.kill('SIGKILL');
  await holder.ended;
  const before = answered;
  await until('the other replica answers', () => answered > before + 50);
  over = true;
  await Promise.all(callers);
  t.true(failed <= 8, `${failed} requests failed, more than were in flight`);
  t.regex(textOf((await echoIn(`${other.url}/mcp`, replicas.token, session))?.result ?? {}), /^up-/);
  t.truthy((await callServed()).message?.result, 'a session of the bridge also continues');
  const { body } = await rest<{ id: string }[]>(other.url, 'GET', '/api/sessions', { token: replicas.admin });
  t.is(body.length, 2, 'no new session was made');
});

eachServer(test.serial, 'a client of 2026-07-28 only has to retry when a replica is killed', async (t, at) => {
  t.timeout(120_000);
  const target = await startRecording(
    byMethod({ 'tools/call': () => ({ resultType: 'complete', content: [{ type: 'text', text: 'ok' }] }) }, { modern: true }),
  );
  t.teardown(() => target.stop());
  const replicas = await processes(t, at.url, { everything: target.url });
  const client = await modernClient(t, `${replicas.url}/mcp/everything`, replicas.token);
  t.is(client.getNegotiatedProtocolVersion(), '2026-07-28');
  const echo = () => client.callTool({ name: 'echo', arguments: {} });
  for (let n = 0; n < 4; n++) t.is(textOf(await echo()), 'ok');
  const [first] = replicas.processes;
  first?.child.kill('SIGKILL');
  await first?.ended;
  for (let n = 0; n < 4; n++) t.is(textOf(await echo().catch(echo)), 'ok');
});

/** These tests take 15 s, because a replica may be silent for that long. */
const frozen = process.env['PORTCULLIS_TEST_FROZEN'] === 'true' ? eachServer : () => undefined;

frozen(
  test.serial,
  'the sessions of a frozen replica are taken over, and it does not own them when it continues',
  async (t, at) => {
    t.timeout(180_000);
    const target: Stateful = await startStateful();
    t.teardown(() => target.stop());
    const replicas = await processes(t, at.url, { everything: target.url });
    const [holder, other] = replicas.processes;
    if (holder === undefined || other === undefined) throw new Error('no replicas');
    const session = await openSession(`${holder.url}/mcp`, replicas.token);
    const held = textOf((await echoIn(`${holder.url}/mcp`, replicas.token, session))?.result ?? {});
    t.teardown(() => holder.child.kill('SIGCONT'));
    holder.child.kill('SIGSTOP');
    const began = performance.now();
    const during = await echoIn(`${other.url}/mcp`, replicas.token, session);
    t.is(during?.error?.code, -32603, 'the fate of the call is unknown');
    t.true(performance.now() - began < 30_000);
    const after = await echoIn(`${other.url}/mcp`, replicas.token, session);
    t.regex(textOf(after?.result ?? {}), /^up-/);
    holder.child.kill('SIGCONT');
    const again = textOf((await echoIn(`${holder.url}/mcp`, replicas.token, session))?.result ?? {});
    t.is(again, textOf(after?.result ?? {}), 'it forwards the request to the new owner');
    t.truthy(held);
  },
);

test.serial('requests that are passed to another replica cause no warnings of a leak', (t) => {
  t.deepEqual(
    warnings.filter((warning) => warning.startsWith('MaxListenersExceeded')),
    [],
  );
});
