import { classifyInboundRequest } from '@modelcontextprotocol/server';
import test from 'ava';
import fc from 'fast-check';
import { checkStatelessHeaders, nameHeader } from '../../src/protocol/headers.ts';
import { readMessage } from '../../src/protocol/message.ts';
import { classifyMode, META_KEYS } from '../../src/protocol/mode.ts';

const MODERN = '2026-07-28';

/** Translates the answer of the gateway's classifier into the words of the SDK's. */
function ours(body: unknown, version: string | undefined, method: string | undefined): string {
  const message = readMessage(body as never);
  if (message.kind === 'invalid') return 'refused -32600';
  const mode = classifyMode(message, { version, method, name: undefined });
  if ('code' in mode) return `refused ${mode.code}`;
  return mode.mode === 'stateless' ? `modern ${mode.revision}` : 'session';
}

function theirs(body: unknown, version: string | undefined, method: string | undefined): string {
  const route = classifyInboundRequest({
    httpMethod: 'POST',
    body,
    ...(version === undefined ? {} : { protocolVersionHeader: version }),
    ...(method === undefined ? {} : { mcpMethodHeader: method }),
  });
  if (route.kind === 'modern') return `modern ${route.classification.revision}`;
  return route.kind === 'legacy' ? 'session' : `refused ${route.code}`;
}

const version = fc.constantFrom(undefined, '2025-03-26', '2025-11-25', MODERN, '2027-01-01', '1', '');
const method = fc.constantFrom('initialize', 'tools/list', 'tools/call', 'ping', 'notifications/cancelled', 'acme/x');
const meta = fc.record(
  {
    [META_KEYS.version]: fc.constantFrom<unknown>(MODERN, '2025-11-25', '2027-01-01', 1, null),
    [META_KEYS.capabilities]: fc.constantFrom<unknown>({}, { elicitation: {} }, null, 'x'),
    [META_KEYS.clientInfo]: fc.constantFrom<unknown>({ name: 'a', version: '1' }, { name: 1 }, 'x'),
    [META_KEYS.logLevel]: fc.constantFrom<unknown>('info', 'loud'),
    progressToken: fc.constantFrom<unknown>('p', 1),
  },
  { requiredKeys: [] },
);
const params = fc.option(fc.record({ _meta: meta, name: fc.constant('ok') }, { requiredKeys: [] }), { nil: undefined });
const body = fc.oneof(
  fc.record(
    { jsonrpc: fc.constant('2.0'), id: fc.constantFrom<unknown>(1, 'a'), method, params },
    { requiredKeys: ['jsonrpc', 'method'] },
  ),
  fc.record(
    { jsonrpc: fc.constantFrom('2.0', '1.0'), id: fc.constantFrom<unknown>(1, null, 1.5), method },
    { requiredKeys: ['jsonrpc'] },
  ),
  fc.record(
    { jsonrpc: fc.constant('2.0'), id: fc.constant(1), result: fc.constant({}), error: fc.constant({ code: 1, message: '' }) },
    { requiredKeys: ['jsonrpc', 'id'] },
  ),
  fc.constantFrom<unknown>(null, 1, 'x', {}),
);

test('the gateway classifies every generated request like the SDK', (t) => {
  const seen = new Set<string>();
  fc.assert(
    fc.property(body, version, fc.option(method, { nil: undefined }), (message, header, methodHeader) => {
      // The wire has no undefined members.
      const sent = JSON.parse(JSON.stringify(message));
      const [a, b] = [ours(sent, header, methodHeader), theirs(sent, header, methodHeader)];
      seen.add(b);
      return a === b;
    }),
    { numRuns: 4000 },
  );
  // The comparison has seen each kind of answer.
  for (const kind of ['session', `modern ${MODERN}`, 'refused -32600', 'refused -32602', 'refused -32020'])
    t.true(seen.has(kind), kind);
});

const headers = (name?: string, changes = {}) => ({ version: MODERN, method: 'tools/call', name, ...changes });

test('the headers of 2026-07-28 must be present and repeat the body', (t) => {
  const check = (name: string | undefined, changes = {}) =>
    checkStatelessHeaders('tools/call', { name: 'ok' }, headers(name, changes))?.code;
  t.is(check('ok'), undefined);
  for (const name of [undefined, 'secret', 'OK', 'ok%20', '']) t.is(check(name), -32020, name);
  t.is(check('ok', { version: undefined }), -32020);
  t.is(check('ok', { method: undefined }), -32020);
  t.is(checkStatelessHeaders('tools/list', {}, headers(undefined, { method: 'tools/list' })), null);
});

test('an encoded name has exactly one encoding', (t) => {
  const check = (encoded: string, name: string) =>
    checkStatelessHeaders('tools/call', { name }, headers(`=?base64?${encoded}?=`))?.code;
  t.is(check('b2s=', 'ok'), undefined);
  t.is(check('w6k=', 'é'), undefined);
  for (const encoded of ['b2s', 'b2t=', 'b2s=\n', 'b 2s=', 'c2VjcmV0', 'PT9iYXNlNjQ/YjJzPT89', '_w==', '/w=='])
    t.is(check(encoded, 'ok'), -32020, encoded);
});

test('the gateway accepts the Mcp-Name header that it sends itself', (t) => {
  fc.assert(
    fc.property(fc.string({ unit: 'grapheme', minLength: 1 }), (name) => {
      const sent = nameHeader('tools/call', { name });
      return (
        sent !== undefined && /^[\x20-\x7e]+$/.test(sent) && checkStatelessHeaders('tools/call', { name }, headers(sent)) === null
      );
    }),
  );
  t.is(nameHeader('tools/call', { name: '=?base64?b2s=?=' }), '=?base64?PT9iYXNlNjQ/YjJzPT89?=');
  t.is(nameHeader('tools/list', { name: 'ok' }), undefined);
});
