import test from 'ava';
import { createDenials } from '../../src/audit/denials.ts';
import { apiToken, person, rest, startGateway } from '../support/gateway.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { world } from '../support/world.ts';

test.serial('a principal uses up only its own share of denials, for the rest of the minute', (t) => {
  let at = 0;
  let refused = 0;
  const warnings: object[] = [];
  const log = { warn: (record: object) => void warnings.push(record) };
  const denials = createDenials({ limit: 2, log, now: () => at, onRefused: () => refused++ });
  t.is(denials.wait('a'), null);
  denials.count('a');
  t.is(denials.wait('a'), null);
  denials.count('a');
  at = 15_000;
  t.is(denials.wait('a'), 45);
  t.is(denials.wait('a'), 45);
  t.is(denials.wait('b'), null);
  t.deepEqual([refused, warnings], [2, [{ principal: 'a', limit: 2 }]]);
  at = 60_000;
  t.is(denials.wait('a'), null);
  t.deepEqual(warnings.slice(1), [{ principal: 'a', refused: 2, limit: 2 }]);
});

test.serial('a flood of denials gets 429 without decisions, and does not affect other callers', async (t) => {
  const gateway = await startGateway(t, null, { DENIAL_RATE_LIMIT: '5' });
  const admin = await person(gateway, 'admin@example.com');
  const [loud, other] = [await person(gateway, 'loud@example.com'), await person(gateway, 'other@example.com')];
  const [loudToken, otherToken] = [await apiToken(gateway, loud), await apiToken(gateway, other)];
  const ask = async (token: string): Promise<number> => {
    const params = { protocolVersion: '2025-06-18', capabilities: {}, clientInfo: { name: 't', version: '1' } };
    const message = { jsonrpc: '2.0', id: 1, method: 'initialize', params };
    return (await post(`${gateway.url}/mcp/nothing`, token, message)).status;
  };
  const statuses: number[] = [];
  for (let i = 0; i < 8; i++) statuses.push(await ask(loudToken.token));
  t.deepEqual(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
  t.is(await ask(otherToken.token), 200);
  const answer = await fetch(`${gateway.url}/mcp/nothing`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${loudToken.token}`,
      'content-type': 'application/json',
      accept: 'application/json, text/event-stream',
    },
    body: '{"jsonrpc":"2.0","id":1,"method":"ping"}',
  });
  t.is(answer.status, 429);
  t.true(Number(answer.headers.get('retry-after')) >= 1);
  const { body } = await rest<{ user_id: string }[]>(gateway.url, 'GET', `/api/logs?user_id=${loud.id}`, { token: admin.token });
  t.is(body.length, 5);
  const metrics = await (await fetch(`${gateway.url}/metrics`)).text();
  t.regex(metrics, /^portcullis_denial_limited_requests_total 4$/m);
});

test.serial('denied notifications of a target do not lock its user out', async (t) => {
  const plain = byMethod({});
  const upstream = await startRecording((received, res) => {
    if (received.message?.method !== 'tools/call') return plain(received, res);
    const update = { jsonrpc: '2.0', method: 'notifications/resources/updated', params: { uri: 'file:///secret' } };
    res.writeHead(200, { 'content-type': 'text/event-stream' });
    for (let i = 0; i < 20; i++) res.write(`data: ${JSON.stringify(update)}\n\n`);
    res.end(`data: ${JSON.stringify({ jsonrpc: '2.0', id: received.message.id, result: { content: [] } })}\n\n`);
  });
  t.teardown(() => upstream.stop());
  const { allow, mcp, token, admin, user, gateway } = await world(t, null, upstream.url, { DENIAL_RATE_LIMIT: '5' });
  await allow({ name: 'tools', resource_type: 'tool' });
  const session = await openSession(mcp, token);
  const use = (name: string) => post(mcp, token, call(name), { 'mcp-session-id': session });
  t.deepEqual((await use('x')).message?.result, { content: [] });
  const { body } = await gateway.rest<object[]>(200, 'GET', `/api/logs?user_id=${user.id}&effect=deny`, { token: admin.token });
  t.is(body.length, 20, 'each decision is a row');
  t.is((await use('x')).status, 200);
});
