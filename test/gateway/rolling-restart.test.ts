/** Two replicas behind a load balancer are restarted one after the other while clients call. */
import { request } from 'node:http';
import test from 'ava';
import { balance } from '../support/balancer.ts';
import { eachServer } from '../support/databases/each-engine.ts';
import { rest } from '../support/gateway.ts';
import { until } from '../support/listener.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { dataDir, type GatewayProcess, runGateway } from '../support/process.ts';
import { startStateful } from '../support/upstreams/stateful.ts';

const account = { email: 'admin@example.com', password: 'a long passphrase' };

eachServer(test.serial, 'a rolling restart behind a load balancer refuses no request', async (t, at) => {
  t.timeout(240_000);
  const target = await startStateful();
  t.teardown(() => target.stop());
  const environment = {
    DATABASE_URL: at.url,
    MASTER_KEY: Buffer.alloc(32, 3).toString('base64'),
    LOG_LEVEL: 'error',
    DRAIN_DELAY_MS: '5000',
    MCP_RATE_LIMIT: '1000000',
  };
  const start = (port?: string): Promise<GatewayProcess> =>
    runGateway(t, { ...environment, DATA_DIR: dataDir(t), ...(port === undefined ? {} : { PORT: port }) });
  const replicas = [await start(), await start()];
  const urls = replicas.map(({ url }) => url);
  const [first = ''] = urls;
  await rest(first, 'POST', '/api/auth/register', { body: account });
  const { body: login } = await rest<{ token: string }>(first, 'POST', '/api/auth/login', { body: account });
  const api = <T>(path: string, body: object) => rest<T>(first, 'POST', path, { token: login.token, body });
  await api('/api/targets', { name: 'everything', transport: 'streamable-http', url: target.url });
  const subjects = [{ subject_type: 'everyone' }];
  await api('/api/policies', { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects });
  const { token } = (await api<{ token: string }>('/api/auth/tokens', { name: 'a client' })).body;

  const balancer = await balance(t, urls);
  const allReady = (): Promise<void> => until('both replicas are ready', () => urls.every(balancer.isReady));
  await allReady();
  const unexpected: string[] = [];
  let answered = 0;
  let over = false;
  const caller = async (path: string, tool: string): Promise<void> => {
    const session = await openSession(`${balancer.url}${path}`, token);
    while (!over) {
      const { status, message } = await post(`${balancer.url}${path}`, token, call(tool), { 'mcp-session-id': session });
      if (message?.result === undefined) unexpected.push(`${path} ${status} ${JSON.stringify(message)}`);
      else answered++;
    }
  };
  const reader = async (): Promise<void> => {
    while (!over) {
      const { status } = await rest(balancer.url, 'GET', '/api/auth/me', { token });
      if (status === 200) answered++;
      else unexpected.push(`GET /api/auth/me ${status}`);
    }
  };
  const one = (): Promise<void> => caller('/mcp/everything', 'echo');
  const load = Promise.all([one(), one(), one(), caller('/mcp', 'everything__echo'), reader()]);
  // A session of the replica that stays would hide what happens to sessions of the replica that ends.
  for (let n = 0; n < 2; n++) {
    const before = answered;
    await until('there is traffic', () => answered > before + 250 || unexpected.length > 0);
    const ending = replicas[n];
    if (ending === undefined) throw new Error('no replica');
    ending.child.kill('SIGTERM');
    t.is(await ending.ended, 0, ending.output());
    const alone = answered;
    await until('the other replica goes on', () => answered > alone + 250 || unexpected.length > 0);
    replicas[n] = await start(new URL(ending.url).port);
    await allReady();
  }
  const before = answered;
  await until('both answer again', () => answered > before + 250 || unexpected.length > 0);
  over = true;
  await load;
  t.deepEqual(balancer.failures, []);
  t.deepEqual(unexpected, []);
  t.log(`${answered} requests answered, none refused`);
  t.true(answered > 1000, String(answered));
});

eachServer(
  test.serial,
  'sessions leave a replica before it closes its listener, and their calls in flight end there',
  async (t, at) => {
    const target = await startStateful();
    t.teardown(() => target.stop());
    const environment = { DATABASE_URL: at.url, MASTER_KEY: Buffer.alloc(32, 3).toString('base64'), DRAIN_DELAY_MS: '2000' };
    const owner = await runGateway(t, { ...environment, DATA_DIR: dataDir(t) });
    const other = await runGateway(t, { ...environment, DATA_DIR: dataDir(t) });
    await rest(owner.url, 'POST', '/api/auth/register', { body: account });
    const { token } = (await rest<{ token: string }>(owner.url, 'POST', '/api/auth/login', { body: account })).body;
    const api = (path: string, body: object) => rest(owner.url, 'POST', path, { token, body });
    await api('/api/targets', { name: 'everything', transport: 'streamable-http', url: target.url });
    const subjects = [{ subject_type: 'everyone' }];
    await api('/api/policies', { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects });
    const session = await openSession(`${owner.url}/mcp`, token);
    const echo = (url: string) => post(`${url}/mcp`, token, call('everything__echo'), { 'mcp-session-id': session });
    t.truthy((await echo(other.url)).message?.result);
    const slow = post(`${other.url}/mcp`, token, call('everything__slow'), { 'mcp-session-id': session });
    await until('the target has the call', () => target.received.some(({ message }) => message?.params?.['name'] === 'slow'));
    t.notRegex(other.output(), /taking over the session/);
    owner.child.kill('SIGTERM');
    await until('the session has moved', async () => {
      t.truthy((await echo(other.url)).message?.result);
      return /taking over the session/.test(other.output());
    });
    t.regex(other.output(), /"passed":"gone"/, 'no request was forwarded to a closed listener');
    // The other replica checks every 5 seconds that the owner of a forwarded call is still there.
    await new Promise((resolve) => setTimeout(resolve, 5_500));
    target.release();
    t.truthy((await slow).message?.result);
    t.is(await owner.ended, 0, owner.output());
  },
);

/** Returns the status and the headers about the connection of an answer on a new connection that the client would keep. */
function head(url: string): Promise<{ status: number; connection: string | undefined; kept?: string }> {
  return new Promise((resolve, reject) => {
    const req = request(url, { headers: { connection: 'keep-alive' } }, (res) => {
      res.resume();
      const { connection, 'keep-alive': kept } = res.headers;
      res.on('end', () => resolve({ status: res.statusCode ?? 0, connection, ...(typeof kept === 'string' ? { kept } : {}) }));
    });
    req.on('error', reject);
    req.end();
  });
}

test.serial('after SIGTERM readiness fails, and requests get Connection: close until the delay is over', async (t) => {
  const gateway = await runGateway(t, { DATA_DIR: dataDir(t), DRAIN_DELAY_MS: '60000' });
  // Longer than balancers keep an idle connection, so that it is they who close it.
  t.deepEqual(await head(`${gateway.url}/health/ready`), { status: 200, connection: 'keep-alive', kept: 'timeout=65' });
  gateway.child.kill('SIGTERM');
  await until('readiness fails', async () => (await head(`${gateway.url}/health/ready`)).status === 503);
  const { body } = await rest(gateway.url, 'GET', '/health/ready');
  t.deepEqual(body, { ready: false, checks: { accepting: false } });
  t.deepEqual(await head(`${gateway.url}/health/live`), { status: 200, connection: 'close' });
  t.deepEqual(await head(`${gateway.url}/mcp/x`), { status: 401, connection: 'close' });
  t.is((await rest(gateway.url, 'POST', '/api/auth/register', { body: account })).status, 201, 'work is still done');
  gateway.child.kill('SIGTERM');
  t.is(await gateway.ended, 1, 'a second signal ends it at once');
});

test.serial('SIGINT ends the gateway without the delay for load balancers', async (t) => {
  const gateway = await runGateway(t, { DATA_DIR: dataDir(t), DRAIN_DELAY_MS: '600000' });
  gateway.child.kill('SIGINT');
  t.is(await gateway.ended, 0);
});
