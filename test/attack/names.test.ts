/** For names that can be read in two ways, list, call and audit log agree on one of them. */
import test from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { openSession, post } from '../support/mcp.ts';
import { byMethod, startRecording } from '../support/upstreams/recording.ts';
import { world } from '../support/world.ts';

const NAMES = [
  ...['__proto__', 'constructor', 'toString', 'hasOwnProperty', 'null', 'ok', 'OK', 'ok ', ' ok', 'ok\u200b', 'o\u212a'],
  ...[
    'caf\u00e9',
    'cafe\u0301',
    '\u{1f600}',
    'line\u2028end',
    'x'.repeat(256),
    '\u{10ffff}',
    '%00',
    "' or 1=1 --",
    '\\u006fk',
    '"',
  ],
];
const ALLOWED = ['__proto__', 'constructor', 'ok', 'caf\u00e9', '\u{1f600}', '%00', '"'];

const literally = (text: string): string => text.replace(/[^\w]/gu, (c) => `\\x{${c.codePointAt(0)?.toString(16)}}`);

const call = (name: string) => ({ jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name } });
const read = (uri: string) => ({ jsonrpc: '2.0', id: 1, method: 'resources/read', params: { uri } });

eachEngine(test.serial, 'list, call and audit log agree on every name', async (t, at) => {
  const tools = NAMES.map((name) => ({ name, inputSchema: { type: 'object' } }));
  const upstream = await startRecording(byMethod({ 'tools/list': { tools }, 'tools/call': { content: [] } }));
  t.teardown(() => upstream.stop());
  const w = await world(t, at.url, upstream.url);
  const groups = ['__proto__', 'constructor', ' ', 'caf\u00e9'];
  await w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body: { role: '__proto__', groups } });
  const subjects = [{ subject_type: 'role', subject_value: '__proto__' }];
  for (const name of ALLOWED) {
    await w.allow({ name: 'one', resource_type: 'tool', resource_pattern: `^${literally(name)}$`, subjects });
  }
  for (const subject_value of ['cafe\u0301', 'toString', 'Constructor']) {
    await w.allow({ name: 'of others', subjects: [{ subject_type: 'group', subject_value }] });
  }
  const session = { 'mcp-session-id': await openSession(w.mcp, w.token) };
  const list = await post(w.mcp, w.token, { jsonrpc: '2.0', id: 1, method: 'tools/list' }, session);
  const shown = ((list.message?.result?.['tools'] ?? []) as { name: string }[]).map(({ name }) => name);
  t.deepEqual(
    shown,
    NAMES.filter((name) => ALLOWED.includes(name)),
  );
  const called: string[] = [];
  for (const name of NAMES) {
    const { message } = await post(w.mcp, w.token, call(name), session);
    if (message?.result) called.push(name);
    const { body } = await w.gateway.rest<{ resource_name: string; effect: string }[]>(200, 'GET', '/api/logs?limit=1', {
      token: w.admin.token,
    });
    t.deepEqual([body[0]?.resource_name, body[0]?.effect], [name, message?.result ? 'allow' : 'deny']);
  }
  t.deepEqual(called, shown);
  t.is((await post(w.mcp, w.token, read('a:/b\0c'), session)).message?.error?.code, -32602);
  for (const uri of ['a:/b\nc', 'a:/\u001b[31m', 'a:/b\\c']) {
    await post(w.mcp, w.token, read(uri), session);
    const { body } = await w.gateway.rest<{ resource_name: string }[]>(200, 'GET', '/api/logs?limit=1', { token: w.admin.token });
    t.is(body[0]?.resource_name, uri);
  }
});
