/** The metrics of calls and of the gateway; alerts and documents name only metrics that exist. */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import test, { type ExecutionContext } from 'ava';
import { parse } from 'yaml';
import { eachEngine } from '../support/databases/each-engine.ts';
import { rest } from '../support/gateway.ts';
import { listen, until } from '../support/listener.ts';
import { call, openSession, post } from '../support/mcp.ts';
import { startStateful } from '../support/upstreams/stateful.ts';
import { world } from '../support/world.ts';

const DOCS = join(import.meta.dirname, '../../docs');

async function read(url: string): Promise<string> {
  const answer = await fetch(`${url}/metrics`);
  if (answer.status !== 200) throw new Error(`the metrics are answered with ${answer.status}`);
  return answer.text();
}

/** The value of a series; labels in the order in which they are written. */
function seriesOf(metrics: string, series: string): number | null {
  const line = metrics.split('\n').find((text) => text.startsWith(`${series} `));
  return line === undefined ? null : Number(line.slice(series.length + 1));
}

async function setUp(t: ExecutionContext, databaseUrl: string | null) {
  const target = await startStateful();
  t.teardown(() => target.stop());
  const w = await world(t, databaseUrl, target.url);
  await w.allow({ name: 'echo', resource_type: 'tool', resource_pattern: '^(echo|slow)$' });
  return { ...w, upstream: target };
}

eachEngine(test.serial, 'a call is measured as a whole, at its target, and by the time that the gateway adds', async (t, at) => {
  const w = await setUp(t, at.url);
  const session = { 'mcp-session-id': await openSession(w.mcp, w.token) };
  for (let n = 0; n < 3; n++) t.truthy((await post(w.mcp, w.token, call('echo'), session)).message?.result);
  t.is((await post(w.mcp, w.token, call('other'), session)).message?.error?.code, 403);
  const metrics = await read(w.gateway.url);
  const calls = (error: string) =>
    seriesOf(metrics, `mcp_server_operation_duration_seconds_count{mcp_method_name="tools/call",error_type="${error}"}`);
  t.is(calls(''), 3);
  t.is(calls('denied'), 1);
  // The denied call has not reached the target; opening the session has.
  t.is(seriesOf(metrics, 'mcp_client_operation_duration_seconds_count{target="everything",error_type=""}'), 4);
  t.is(seriesOf(metrics, 'portcullis_added_latency_seconds_count'), 4);
  for (const step of ['gate', 'decision', 'audit_commit']) {
    const name = `portcullis_${step}_duration_seconds`;
    t.true((seriesOf(metrics, `${name}_count`) ?? 0) >= 5, name);
    t.true((seriesOf(metrics, `${name}_sum`) ?? 0) > 0, name);
  }
  const sum = (name: string) => seriesOf(metrics, name) ?? Number.NaN;
  const whole = sum('mcp_server_operation_duration_seconds_sum{mcp_method_name="tools/call",error_type=""}');
  t.true(whole > 0 && whole < 60, 'seconds, not milliseconds');
});

eachEngine(test.serial, 'open streams, sessions and waiting records are shown as they are now', async (t, at) => {
  const w = await setUp(t, at.url);
  const before = await read(w.gateway.url);
  t.is(seriesOf(before, 'portcullis_streams'), 0);
  t.is(seriesOf(before, 'portcullis_stdio_processes'), 0);
  t.is(seriesOf(before, 'portcullis_changes_behind'), 0);
  t.is(seriesOf(before, 'portcullis_audit_queue_records{kind="decision"}'), 0);
  t.true((seriesOf(before, 'portcullis_database_connections{state="free"}') ?? 0) >= 1);
  const url = `${w.gateway.url}/mcp`;
  const headers = { 'mcp-session-id': await openSession(url, w.token) };
  const stream = await listen(t, url, w.token, { headers });
  await post(url, w.token, call('everything__echo'), headers);
  const during = await read(w.gateway.url);
  t.is(seriesOf(during, 'portcullis_streams'), 1);
  t.is(seriesOf(during, 'portcullis_upstream_sessions'), 1);
  stream.leave();
  await until('the stream is gone', async () => seriesOf(await read(w.gateway.url), 'portcullis_streams') === 0);
  await rest(url, 'DELETE', '', { token: w.token, headers });
  await until('the session is gone', async () => seriesOf(await read(w.gateway.url), 'portcullis_upstream_sessions') === 0);
});

test.serial('the duration of a session is measured when its client or an administrator ends it', async (t) => {
  const w = await setUp(t, null);
  const count = async () => seriesOf(await read(w.gateway.url), 'mcp_server_session_duration_seconds_count');
  t.is(await count(), 0);
  for (const url of [w.mcp, `${w.gateway.url}/mcp`]) {
    const headers = { 'mcp-session-id': await openSession(url, w.token) };
    await rest(url, 'DELETE', '', { token: w.token, headers });
  }
  t.is(await count(), 2);
  await openSession(w.mcp, w.token);
  const { token } = w.admin;
  const { body } = await w.gateway.rest<{ id: string }[]>(200, 'GET', '/api/sessions', { token });
  await w.gateway.rest(204, 'DELETE', `/api/sessions/${body[0]?.id}`, { token });
  t.is(await count(), 3);
});

test.serial('an unreachable target, and one that refuses the credential, are counted by name', async (t) => {
  const w = await setUp(t, null);
  await openSession(w.mcp, w.token);
  t.notRegex(await read(w.gateway.url), /^portcullis_target_failures_total\{/m);
  await w.upstream.stop();
  const initialize = { jsonrpc: '2.0', id: 1, method: 'initialize', params: { protocolVersion: '2025-11-25', capabilities: {} } };
  t.is((await post(w.mcp, w.token, initialize)).message?.error?.code, -32603);
  const failures = (await read(w.gateway.url)).match(
    /^portcullis_target_failures_total\{target="everything",failure="\w+"\} \d+$/gm,
  );
  t.truthy(failures);
});

test.serial('an unreachable target is counted, too, if its clients use no sessions', async (t) => {
  const w = await setUp(t, null);
  await w.upstream.stop();
  const version = '2026-07-28';
  const body = {
    ...{ jsonrpc: '2.0', id: 1, method: 'tools/call' },
    params: {
      ...{ name: 'echo', arguments: {} },
      _meta: { 'io.modelcontextprotocol/protocolVersion': version, 'io.modelcontextprotocol/clientCapabilities': {} },
    },
  };
  const headers = { 'mcp-protocol-version': version, 'mcp-method': 'tools/call', 'mcp-name': 'echo' };
  t.is((await post(w.mcp, w.token, body, headers)).message?.error?.code, -32603);
  t.regex(await read(w.gateway.url), /^portcullis_target_failures_total\{target="everything",failure="\w+"\} 1$/m);
});

test.serial('invented names of callers never become labels', async (t) => {
  const w = await setUp(t, null);
  const session = { 'mcp-session-id': await openSession(w.mcp, w.token) };
  const made = 'made-up-by-a-caller';
  await post(`${w.gateway.url}/mcp/${made}`, w.token, call(made), session);
  await post(w.mcp, w.token, call(made), session);
  await post(w.mcp, w.token, { ...call('echo'), method: `${made}/x` }, session);
  await rest(w.gateway.url, 'POST', `/mcp/everything?${made}`, { token: w.token });
  await fetch(`${w.gateway.url}/${made}`, { method: 'PURGE' });
  t.false((await read(w.gateway.url)).includes(made));
});

const typesIn = (metrics: string): Map<string, string> =>
  new Map([...metrics.matchAll(/^# TYPE (\w+) (\w+)$/gm)].map(([, name = '', type = '']) => [name, type]));

test.serial('example alerts name existing metrics, and the documentation lists every metric', async (t) => {
  const w = await setUp(t, null);
  const metrics = await read(w.gateway.url);
  const types = typesIn(metrics);
  const { groups } = parse(readFileSync(join(DOCS, 'alerts.yml'), 'utf8')) as {
    groups: { rules: { alert: string; expr: string; annotations: { summary: string } }[] }[];
  };
  const rules = groups.flatMap((group) => group.rules);
  t.true(rules.length >= 10);
  for (const { alert, expr, annotations } of rules) {
    t.truthy(annotations.summary, alert);
    const names = expr.match(/\b(portcullis|mcp|process|nodejs)_\w+/g)?.filter((name) => !/^mcp_method_name$/.test(name)) ?? [];
    t.true(names.length > 0, alert);
    for (const name of names) {
      const base = name.replace(/_(bucket|count|sum)$/, '');
      t.true(types.has(name) || types.get(base) === 'histogram', `${alert}: ${name}`);
    }
  }
  const documented = readFileSync(join(DOCS, 'configuration.md'), 'utf8');
  for (const name of types.keys()) {
    if (!/^(process|nodejs)_/.test(name)) t.true(documented.includes(`\`${name}\``), name);
  }
  for (const name of ['process_resident_memory_bytes', 'nodejs_eventloop_lag_p99_seconds']) t.true(types.has(name), name);
  t.regex(metrics, /^portcullis_build_info\{version="\d+\.\d+\.\d+",node="\d+\.\d+\.\d+"\} 1$/m);
});
