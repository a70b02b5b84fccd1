import test from 'ava';
import type { JsonValue } from '../../src/base/json/json.ts';
import { arrayText, LONG_TEXT, readMessage } from '../../src/protocol/message.ts';

const kind = (value: JsonValue) => readMessage(value).kind;
const call = (changes: { [name: string]: JsonValue }) => kind({ jsonrpc: '2.0', id: 1, method: 'tools/call', ...changes });

test('a message is a request, a notification or a response', (t) => {
  t.is(call({ params: {} }), 'request');
  t.is(kind({ jsonrpc: '2.0', method: 'notifications/cancelled' }), 'notification');
  t.is(kind({ jsonrpc: '2.0', id: 1, result: {} }), 'response');
  t.is(kind({ jsonrpc: '2.0', error: { code: -1, message: 'x' } }), 'response');
});

test('every other value is not a message', (t) => {
  for (const id of [null, 1.5, 2 ** 53, 2 ** 60, {}, [], true, 'x'.repeat(1025)])
    t.is(call({ id }), 'invalid', JSON.stringify(id));
  for (const params of [[], 'x', null, 1]) t.is(call({ params }), 'invalid');
  for (const progressToken of ['x'.repeat(1025), 1.5, 2 ** 53, true, {}, []])
    t.is(call({ params: { _meta: { progressToken } } }), 'invalid');
  for (const progressToken of ['x'.repeat(1024), 1, null]) t.is(call({ params: { _meta: { progressToken } } }), 'request');
  for (const method of [1, null, {}]) t.is(call({ method }), 'invalid');
  for (const extra of ['result', 'error', 'x', 'jsonrcp']) t.is(call({ [extra]: {} }), 'invalid', extra);
  t.is(call({ jsonrpc: '1.0' }), 'invalid');
  t.is(kind([]), 'invalid');
  t.is(kind({ jsonrpc: '2.0', id: 1 }), 'invalid');
  t.is(kind({ jsonrpc: '2.0', id: 1, result: {}, error: { code: 1, message: '' } }), 'invalid');
  t.is(kind({ jsonrpc: '2.0', id: 1, result: [] }), 'invalid');
  t.is(kind({ jsonrpc: '2.0', id: 1, error: { code: 1.5, message: '' } }), 'invalid');
});

test('names that a case-insensitive receiver takes for protocol names are refused', (t) => {
  t.is(kind({ jsonrpc: '2.0', id: 1, Method: 'tools/call' }), 'invalid');
  t.is(kind({ jsonrpc: '2.0', id: 1, method: 'tools/call', 'param\u017f': { name: 'secret' } }), 'invalid');
  for (const params of [
    { name: 'ok', Name: 'secret' },
    { 'name\0': 'secret', name: 'ok' },
    { 'uri\0x': 'x' },
    { '_meta\0': {} },
    { URI: 'x' },
    { 'ta\u017fk': {} },
    { 'ta\u017f\u212a': {} },
    { _META: {} },
    { _meta: { 'IO.modelcontextprotocol/protocolVersion': 'x' } },
    { ref: { type: 'ref/prompt', Name: 'x' } },
    { argument: { Value: 'x' } },
  ] as { [name: string]: JsonValue }[]) {
    t.is(call({ params }), 'invalid', JSON.stringify(params));
  }
});

test('data may have members of any name', (t) => {
  t.is(call({ params: { name: 'ok', arguments: { Name: 'x', METHOD: 'y', _Meta: {} }, custom: 1 } }), 'request');
  t.is(call({ params: { _meta: { traceparent: 'x', NAME: 'y' } } }), 'request');
});

test('an array of texts keeps long texts as they are, and joins short ones', (t) => {
  const long = 'x'.repeat(LONG_TEXT);
  t.is(arrayText(['1', ['2', '3'], '4']), '[1,23,4]');
  t.deepEqual(arrayText(['1', ['2', long, '3'], long, '4']), ['[1,2', long, '3,', long, ',4]']);
});
