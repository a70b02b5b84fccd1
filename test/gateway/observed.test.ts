import { Writable } from 'node:stream';
import test from 'ava';
import { createLog } from '../../src/base/log.ts';
import { person, rest, startGateway } from '../support/gateway.ts';
import { listen, until } from '../support/listener.ts';
import { call, openSession } from '../support/mcp.ts';
import { startStateful } from '../support/upstreams/stateful.ts';

test.serial('requests on /mcp are counted, and the log has failed ones by the request id of the client', async (t) => {
  let output = '';
  const destination = new Writable({
    write(chunk, _, done) {
      output += String(chunk);
      done();
    },
  });
  const gateway = await startGateway(t, null, {}, { log: createLog('info', destination) });
  const admin = await person(gateway, 'admin@example.com');
  const refused = await rest(gateway.url, 'POST', '/mcp/x');
  t.is(refused.status, 401);
  await rest(gateway.url, 'GET', '/mcp/x', { token: admin.token });

  const answer = await fetch(`${gateway.url}/metrics`, { headers: { authorization: `Bearer ${admin.token}` } });
  const metrics = await answer.text();
  t.regex(metrics, /portcullis_http_requests_total\{method="POST",route="\/mcp\/:target",status="401"\} 1/);
  t.regex(metrics, /portcullis_decisions_total\{effect="deny",reason="no_target"\} 1/);
  const id = refused.headers.get('x-request-id') ?? '';
  const line = output.split('\n').find((text) => text.includes(id));
  t.like(JSON.parse(line ?? '{}'), { request_id: id, status: 401, route: '/mcp/:target' });
});

test.serial('a client that leaves a call is logged with 499, and one that ends its stream is not', async (t) => {
  let output = '';
  const destination = new Writable({
    write(chunk, _, done) {
      output += String(chunk);
      done();
    },
  });
  const target = await startStateful();
  t.teardown(() => target.stop());
  const gateway = await startGateway(t, null, {}, { log: createLog('info', destination) });
  const { token } = await person(gateway, 'admin@example.com');
  const registered = { name: 'everything', transport: 'streamable-http', url: target.url };
  await gateway.rest(201, 'POST', '/api/targets', { token, body: registered });
  const subjects = [{ subject_type: 'everyone' }];
  const all = { name: 'all', resource_type: 'all', effect: 'allow', priority: 1, subjects };
  await gateway.rest(201, 'POST', '/api/policies', { token, body: all });
  const counted = async (labels: string) => {
    const metrics = await (await fetch(`${gateway.url}/metrics`)).text();
    return metrics.split('\n').find((line) => line.startsWith(`portcullis_http_requests_total{${labels}}`));
  };
  for (const path of ['/mcp/everything', '/mcp']) {
    const url = `${gateway.url}${path}`;
    const headers = { 'mcp-session-id': await openSession(url, token) };
    const stream = await listen(t, url, token, { headers });
    t.is(stream.status, 200);
    stream.leave();
  }
  const route = 'route="/mcp/:target"';
  await until('both streams are over', async () => /} 2$/.test((await counted(`method="GET",${route},status="200"`)) ?? ''));
  t.is(await counted(`method="GET",${route},status="499"`), undefined);
  t.notRegex(output, /"method":"GET"[^\n]*\/mcp/);

  const url = `${gateway.url}/mcp/everything`;
  const session = await openSession(url, token);
  const cancel = new AbortController();
  const asked = () => target.seen().includes('tools/call');
  const slow = fetch(url, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${token}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
      'mcp-session-id': session,
    },
    body: JSON.stringify(call('slow')),
    signal: cancel.signal,
  });
  await until('the call is there', asked);
  cancel.abort();
  await slow.then((answer) => answer.text()).catch(() => undefined);
  await until('it is counted', async () => (await counted(`method="POST",${route},status="499"`)) !== undefined);
  t.regex(output, /"status":499/);
});

test.serial('the gateway is ready when the database takes writes and the state can be read', async (t) => {
  const gateway = await startGateway(t);
  const { body } = await gateway.rest(200, 'GET', '/health/ready');
  t.deepEqual(body, { ready: true, checks: { accepting: true, database: true, state: true, audit: true } });
});
