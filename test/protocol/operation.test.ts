import test from 'ava';
import type { JsonObject, JsonValue } from '../../src/base/json/json.ts';
import type { ExtensionMethod } from '../../src/protocol/operation.ts';
import { itemObject, readExtension, readOperation } from '../../src/protocol/operation.ts';

const code = (mode: 'stateful' | 'stateless', method: string, params = {}) => {
  const operation = readOperation(mode, method, params);
  return 'code' in operation ? [operation.status, operation.code] : operation.kind;
};

test('each method is decided by the object that it names', (t) => {
  const object = (method: string, params: Record<string, string | Record<string, string>>) => {
    const operation = readOperation('stateful', method, params);
    return 'kind' in operation && operation.kind === 'object' ? Object.values(operation.object).join(' ') : operation;
  };
  const argument = { name: 'a', value: '' };
  t.is(object('tools/call', { name: 'ok', tool: 'other' }), 'tool ok');
  t.is(object('prompts/get', { name: 'ok' }), 'prompt ok');
  t.is(object('resources/read', { uri: 'file:///a' }), 'resource file:///a');
  t.is(object('resources/subscribe', { uri: 'file:///a' }), 'resource file:///a');
  t.is(object('completion/complete', { ref: { type: 'ref/prompt', name: 'p' }, argument }), 'prompt p');
  t.is(object('completion/complete', { ref: { type: 'ref/resource', uri: 'file:///{x}' }, argument }), 'resource file:///{x}');
});

test('methods that name no object are decided by the target, and lists item by item', (t) => {
  for (const method of ['initialize', 'ping', 'logging/setLevel', 'resources/unsubscribe'])
    t.is(code('stateful', method), 'target');
  t.is(code('stateless', 'server/discover'), 'target');
  for (const method of ['tools/list', 'prompts/list', 'resources/list', 'resources/templates/list']) {
    t.is(code('stateful', method), 'list');
    t.is(code('stateless', method), 'list');
  }
});

test('an unknown method is left to the target, and a method of another revision is unknown', (t) => {
  const odd = [
    'Tools/Call',
    ' tools/call',
    'tools/call\0',
    'tools//call',
    'acme/danger',
    '',
    'constructor',
    '__proto__',
    'toString',
  ];
  for (const method of [...odd, 'skills/get', 'tasks/Get']) {
    t.is(code('stateful', method), 'extension', method);
    t.is(code('stateless', method), 'extension', method);
  }
  for (const method of ['tasks/update', 'subscriptions/listen', 'server/discover']) {
    t.deepEqual(code('stateful', method), [200, -32601], method);
  }
  for (const method of ['initialize', 'ping', 'logging/setLevel', 'resources/subscribe', 'tasks/list', 'tasks/result']) {
    t.deepEqual(code('stateless', method), [404, -32601], method);
  }
});

test('a task is named by any text', (t) => {
  for (const mode of ['stateful', 'stateless'] as const) {
    t.deepEqual(readOperation(mode, 'tasks/get', { taskId: 'x' }), { kind: 'task', taskId: 'x' });
    for (const taskId of [1, null, ['x'], { taskId: 'x' }] as JsonValue[]) {
      t.deepEqual(code(mode, 'tasks/cancel', { taskId }), [200, -32602]);
    }
  }
});

test('an extension method names one object in a member that has only one reading', (t) => {
  const skill = { method: 'skills/get', resource_type: 'tool', param: 'skill' } as const;
  const directory = { method: 'directory/read', resource_type: 'resource', param: 'uri' } as const;
  const read = (extension: ExtensionMethod, params: JsonObject) => {
    const operation = readExtension(extension, params);
    if (!('kind' in operation)) return operation.message;
    return operation.kind === 'object' ? [operation.object.resource_name, operation.canonical] : operation.kind;
  };
  t.deepEqual(read(skill, { skill: 'a', name: 'b' }), ['a', true]);
  t.deepEqual(read(directory, { uri: 'file:///a/../b' }), ['file:///a/../b', false]);
  t.is(read(skill, {}), 'Invalid params: params.skill');
  t.is(read(skill, { skill: ['a'] }), 'Invalid params: params.skill');
  t.is(read(skill, { skill: 'a', Skill: 'b' }), 'Invalid params: params.skill');
  t.is(read(skill, { skill: 'a', s\u212aill: 'b' } as JsonObject), 'Invalid params: params.skill');
  t.is(read({ ...skill, param: 'toString' }, {}), 'Invalid params: params.toString');
  t.is(read(directory, { uri: '' }), 'Invalid params: params.uri');
});

test('a name is a text of 1 to 256 characters without control characters', (t) => {
  const call = (name: unknown) => code('stateful', 'tools/call', { name } as object);
  for (const name of [1, ['ok'], { toString: 'ok' }, null, true, '', 'a\0', 'a\u0085', 'x'.repeat(257)]) {
    t.deepEqual(call(name), [200, -32602], JSON.stringify(name));
  }
  t.deepEqual(code('stateful', 'tools/call'), [200, -32602]);
  for (const name of ['__proto__', 'constructor', 'ok ', 'x'.repeat(256), '𝒳'.repeat(256)]) t.is(call(name), 'object');
});

test('the reference of a completion must be complete', (t) => {
  const complete = (ref: object, argument: object = { name: 'a', value: '' }) =>
    code('stateful', 'completion/complete', { ref, argument } as object);
  t.deepEqual(complete({ type: 'ref/other', name: 'p' }), [200, -32602]);
  t.deepEqual(complete({ type: 'ref/prompt' }), [200, -32602]);
  t.deepEqual(complete({ type: 'ref/prompt', name: 'p' }, {}), [200, -32602]);
  // The target could read the member that was not decided.
  t.deepEqual(complete({ type: 'ref/prompt', name: 'p', uri: 'file:///secret' }), [200, -32602]);
  t.deepEqual(complete({ type: 'ref/resource', uri: 'file:///{x}', name: 'secret' }), [200, -32602]);
  for (const more of ['Name', 'URI', 'Type'])
    t.deepEqual(complete({ type: 'ref/prompt', name: 'p', [more]: 'x' }), [200, -32602]);
  t.not(complete({ type: 'ref/prompt', name: 'p', title: 'P' })[1], -32602);
  const known = (names: readonly string[]) =>
    code('stateful', 'completion/complete', {
      ...{ ref: { type: 'ref/resource', uri: 'file:///{dir}/{name}' }, argument: { name: 'name', value: '' } },
      context: { arguments: Object.fromEntries(names.map((name) => [name, 'x'])) },
    } as object);
  for (const twin of ['Dir', 'DIR', 'd_ir', '_dir', 'd-ir', 'd ir', 'dir\0', 'dir\0x'])
    t.deepEqual(known(['dir', twin]), [200, -32602], `the target could read the value of ${JSON.stringify(twin)}`);
  t.not(known(['dir', 'owner', 'dir2'])[1], -32602);
  t.deepEqual(known(['x'.repeat(257)]), [200, -32602]);
  t.deepEqual(known(Array.from({ length: 101 }, (_, n) => `v${n}`)), [200, -32602], 'no template has so many');
});

test('a URI with more than one reading is marked', (t) => {
  const canonical = (uri: string) => {
    const operation = readOperation('stateful', 'resources/read', { uri });
    return 'kind' in operation && operation.kind === 'object' && operation.canonical;
  };
  t.true(canonical('file:///public/a'));
  t.false(canonical('file:///public/../a'));
  t.deepEqual(code('stateful', 'resources/read', { uri: `file:///${'a'.repeat(2048)}` }), [200, -32602]);
});

test('an item that a call could not name has no object', (t) => {
  const tools = { member: 'tools', key: 'name', resource_type: 'tool', template: false } as const;
  const resources = { member: 'resources', key: 'uri', resource_type: 'resource', template: false } as const;
  t.deepEqual(itemObject(tools, { name: 'ok' }), { resource_type: 'tool', resource_name: 'ok' });
  for (const item of [null, 'ok', {}, { name: 1 }, { name: 'a\n' }, { name: '\ud800' }] as JsonValue[])
    t.is(itemObject(tools, item), null);
  t.is(itemObject(resources, { uri: 'file:///a/../b' }), null);
  const templates = { ...resources, key: 'uriTemplate', template: true };
  t.truthy(itemObject(templates, { uriTemplate: 'file:///{x}/../b' }));
  t.truthy(itemObject(templates, { uriTemplate: 'file:///a/b' }));
  t.is(itemObject(templates, { uriTemplate: 'file:///a/../b' }), null, 'it could not be read');
});
