import test from 'ava';
import { readJsonText } from '../../src/base/json/json.ts';
import { readMessage } from '../../src/protocol/message.ts';
import { rebuildAsked, rebuildCall, rebuildResponse } from '../../src/protocol/rebuild.ts';

function parse(text: string) {
  const reading = readJsonText(text, { spanDepth: 2 });
  if (!reading.ok) throw new Error(reading.reason);
  const message = readMessage(reading.value);
  if (message.kind !== 'request' && message.kind !== 'notification') throw new Error(message.kind);
  return { message, reading };
}

test('the decided members are written again, and arguments are forwarded as the original text', (t) => {
  const { message, reading } = parse(
    '{ "params" : {"\\u006eame":"\\u006fk", "arguments" : {"n":1.0, "b": 1e2 ,"k":"\\u00e9"},"x":[1.0],"_name":"secret","task":{"ttl":1,"x":1}}, "id":7,"method":"tools\\/call","jsonrpc":"2.0"}',
  );
  t.is(
    rebuildCall(message, reading),
    '{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"ok","arguments":{"n":1.0, "b": 1e2 ,"k":"\\u00e9"},"task":{"ttl":1}}}',
  );
});

test('an extension method keeps all members, because only the target knows them', (t) => {
  const { message, reading } = parse('{"jsonrpc":"2.0","id":1,"method":"acme/run","params":{"x":[1.0],"ref":{"x":1}}}');
  t.is(rebuildCall(message, reading), '{"jsonrpc":"2.0","id":1,"method":"acme/run","params":{"x":[1],"ref":{"x":1}}}');
});

test('members are replaced and removed', (t) => {
  const { message, reading } = parse(
    '{"jsonrpc":"2.0","id":"a","method":"m","params":{"task":{},"requestState":"s","name":"x"}}',
  );
  t.is(
    rebuildCall(message, reading, { task: undefined, requestState: 'u', absent: 'z' }),
    '{"jsonrpc":"2.0","id":"a","method":"m","params":{"requestState":"u","name":"x"}}',
  );
});

test('notifications have no id, and answers and requests of the target get a new one', (t) => {
  const { message, reading } = parse('{"jsonrpc":"2.0","method":"notifications/initialized"}');
  t.is(rebuildCall(message, reading), '{"jsonrpc":"2.0","method":"notifications/initialized"}');
  const response = readJsonText('{"jsonrpc":"2.0","id":"sealed","result":{"n": 1.0}}', { spanDepth: 2 });
  if (response.ok) t.is(rebuildResponse(3, 'result', response), '{"jsonrpc":"2.0","id":3,"result":{"n": 1.0}}');
  const asked = readJsonText('{"jsonrpc":"2.0","id":3,"method":"roots/list"}', { spanDepth: 2 });
  if (asked.ok) t.is(rebuildAsked('sealed', 'roots/list', asked), '{"jsonrpc":"2.0","id":"sealed","method":"roots/list"}');
});
