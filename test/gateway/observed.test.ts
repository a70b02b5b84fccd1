import { Writable } from 'node:stream';
import test from 'ava';
import { createLog } from '../../src/log.ts';
import { person, rest, startGateway } from '../support/gateway.ts';

test.serial(
  'requests on /mcp are counted, and those that fail can be found in the log by the id that the client was given',
  async (t) => {
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
  },
);

test.serial('ready means that the database takes writes and the state can be had', async (t) => {
  const gateway = await startGateway(t);
  const { body } = await gateway.rest(200, 'GET', '/health/ready');
  t.deepEqual(body, { ready: true, checks: { accepting: true, database: true, state: true, audit: true } });
});
