import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import test from 'ava';
import express, { type Router } from 'express';
import { openapiDocument } from '../../src/rest/contract.ts';
import { type Mount, routeTable } from '../../src/rest/route-table.ts';
import { person, startGateway } from '../support/gateway.ts';
import { assertConforms } from '../support/openapi.ts';

const document = openapiDocument('http://127.0.0.1:8080');

/** Every router that an app mounts from now on, with its path. */
function watchMounts(): Mount[] {
  const mounts: Mount[] = [];
  const { use } = express.application;
  express.application.use = function (this: unknown, ...args: unknown[]) {
    const [path] = args;
    for (const handler of args) {
      if (typeof handler === 'function' && 'stack' in handler && typeof path === 'string') {
        mounts.push({ path: path === '/' ? '' : path, router: handler as unknown as Router });
      }
    }
    return Reflect.apply(use, this, args);
  } as typeof use;
  return mounts;
}

test.serial('the document has every route that is mounted, and no other', async (t) => {
  const mounts = watchMounts();
  const gateway = await startGateway(t);
  const mounted = routeTable(mounts).routes.flatMap(({ template, methods }) =>
    [...methods].map((method) => `${method} ${template.replaceAll(/:(\w+)/g, '{$1}')}`),
  );
  const { body } = await gateway.rest<ReturnType<typeof openapiDocument>>(200, 'GET', '/api/openapi.json');
  t.deepEqual(body, JSON.parse(JSON.stringify(openapiDocument(gateway.url))));
  const documented = Object.entries(body.paths).flatMap(([path, operations]) =>
    Object.keys(operations).map((method) => `${method.toUpperCase()} ${path}`),
  );
  t.deepEqual([...new Set(mounted)].sort(), documented.sort());
});

test.serial('the contract marks the open routes, and no other route answers without a token', async (t) => {
  const gateway = await startGateway(t);
  for (const [path, operations] of Object.entries(document.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      // Prometheus reads it from loopback without a token.
      if (path === '/metrics') continue;
      const concrete = path.replace('{name}', 'a-target').replaceAll(/\{\w+\}/g, '0190163d-8694-739b-aea5-966c26f8ad90');
      const open = (operation as { security?: unknown[] }).security?.length === 0;
      const answer = await fetch(gateway.url + concrete, { method: method.toUpperCase() });
      const body = (await answer.json()) as { code?: string };
      assertConforms(method, concrete, answer.status, body);
      if (open) t.not(body.code, 'unauthenticated', `${method} ${path}`);
      else t.is(answer.status, 401, `${method} ${path}`);
    }
  }
});

test.serial('answers and refusals of the administration match the contract', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const user = await person(gateway, 'user@example.com');
  const call = async (method: string, path: string, token: string, body?: unknown) => {
    const answer = await fetch(gateway.url + path, {
      method,
      headers: { authorization: `Bearer ${token}`, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    const text = await answer.text();
    const read = text === '' ? undefined : JSON.parse(text);
    t.notThrows(() => assertConforms(method, path, answer.status, read));
    return { status: answer.status, body: read };
  };
  for (const path of [
    '/api/auth/me',
    '/api/auth/tokens',
    '/api/users',
    '/api/policies',
    '/api/targets',
    '/api/logs',
    '/api/changes',
  ]) {
    t.is((await call('GET', path, admin.token)).status, 200, path);
    const own = path.startsWith('/api/auth/');
    t.is((await call('GET', path, user.token)).status, own ? 200 : 403, path);
  }
  t.is((await call('PUT', `/api/users/${user.id}`, admin.token, { role: 'auditor', groups: ['a'] })).status, 200);
  t.is((await call('GET', '/api/logs', user.token)).status, 200);
  t.is((await call('GET', '/api/changes', user.token)).status, 200);
  t.is((await call('GET', '/api/policies', user.token)).status, 200);
  t.is((await call('POST', '/api/policies', user.token, {})).status, 403);
  t.is((await call('POST', '/api/auth/tokens', user.token, { name: 'mine' })).status, 201);
  t.is((await call('POST', '/api/auth/tokens', user.token, { nam: 'mine' })).status, 400);
  t.is((await call('POST', '/api/keys/rotate', admin.token)).status, 201);
  t.is((await call('GET', '/api/users?limit=1', admin.token)).status, 200);
  t.is((await call('GET', '/api/users?limit=0', admin.token)).status, 400);
  t.is((await call('PUT', `/api/users/${admin.id}`, admin.token, { role: 'user' })).status, 409);
  t.is((await call('POST', '/api/users', admin.token, { email: 'user@example.com', password: 'long enough' })).status, 409);
  t.is((await call('PATCH', '/api/users', admin.token)).status, 405);
  t.is((await call('GET', '/api/nothing', admin.token)).status, 404);
  t.is((await call('POST', '/api/auth/logout', user.token)).status, 204);
  t.is((await call('GET', '/api/auth/me', user.token)).status, 401);
});

test.serial('each path answers unknown methods with 405 and the Allow of the contract', async (t) => {
  const gateway = await startGateway(t);
  const methods = ['GET', 'POST', 'PUT', 'DELETE', 'PATCH'];
  for (const [path, operations] of Object.entries(document.paths)) {
    const concrete = path.replace('{name}', 'a-target').replaceAll(/\{\w+\}/g, '0190163d-8694-739b-aea5-966c26f8ad90');
    const documented = Object.values(operations).map(({ responses }) => {
      const headers = responses[405]?.['headers'] as { Allow: { schema: { const: string } } } | undefined;
      return headers?.Allow.schema.const;
    });
    t.is(new Set(documented).size, 1, path);
    for (const method of methods.filter((other) => !(other.toLowerCase() in operations))) {
      const answer = await fetch(gateway.url + concrete, { method });
      t.is(answer.status, 405, `${method} ${path}`);
      t.is(answer.headers.get('allow') ?? '', documented[0] ?? 'none', `${method} ${path}`);
      await answer.text();
    }
  }
});

test.serial('each operation has its own name', (t) => {
  const operations = Object.values(document.paths).flatMap((path) => Object.values(path)) as { operationId?: string }[];
  const ids = operations.map(({ operationId }) => operationId ?? '');
  for (const id of ids) t.regex(id, /^[a-z][A-Za-z]+$/);
  t.is(new Set(ids).size, ids.length);
});

test.serial('each operation has one tag, which the document describes', (t) => {
  const operations = Object.values(document.paths).flatMap((path) => Object.values(path)) as { tags?: string[] }[];
  t.true(Array.isArray(document.tags));
  const tags = document.tags.map(({ name }) => name);
  for (const { tags: own = [] } of operations) t.true(own.length === 1 && tags.includes(own[0] ?? ''));
});

test.serial('each object of the contract has a name that generated clients can use', (t) => {
  const unnamed: string[] = [];
  const look = (schema: unknown, path: string, isNamed: boolean): void => {
    if (typeof schema !== 'object' || schema === null) return;
    if (!isNamed && 'properties' in schema && 'required' in schema) unnamed.push(path);
    for (const [name, inner] of Object.entries(schema)) look(inner, `${path}.${name}`, false);
  };
  for (const [name, schema] of Object.entries(document.components.schemas)) look(schema, name, true);
  look(document.paths, 'paths', false);
  t.deepEqual(unnamed, []);
  const text = JSON.stringify(document);
  for (const [, name = ''] of text.matchAll(/"#\/components\/schemas\/(\w+)"/g))
    t.true(name in document.components.schemas, name);
});

test.serial('the document names the address under which clients reach the gateway', async (t) => {
  const gateway = await startGateway(t, null, { PUBLIC_URL: 'https://gateway.example.com' });
  const { body } = await gateway.rest<{ servers: unknown }>(200, 'GET', '/api/openapi.json');
  t.deepEqual(body.servers, [{ url: 'https://gateway.example.com' }]);
});

test.serial('a request for the document counts as ten', async (t) => {
  const gateway = await startGateway(t, null, { API_RATE_LIMIT: '25' });
  const statuses: number[] = [];
  for (let n = 0; n < 4; n++) {
    const answer = await fetch(`${gateway.url}/api/openapi.json`);
    await answer.arrayBuffer();
    statuses.push(answer.status);
  }
  t.deepEqual(statuses, [200, 200, 429, 429]);
  t.is((await fetch(`${gateway.url}/health/ready`)).status, 200);
});

test.serial('each name of a schema is given in one place', (t) => {
  const folder = join(import.meta.dirname, '../../src');
  const files = readdirSync(folder, { recursive: true, encoding: 'utf8' }).filter((file) => file.endsWith('.ts'));
  const given = files.flatMap((file) =>
    [
      ...readFileSync(join(folder, file), 'utf8').matchAll(/\b(?:(?:model|named)(?:<.*>)?\(\s*|meta\(\{ model: )'([A-Z]\w*)'/g),
    ].map(([, name = '']) => name),
  );
  t.deepEqual(given.sort(), Object.keys(document.components.schemas).sort());
});

test.serial('every schema that the contract refers to exists', (t) => {
  const names = [...JSON.stringify(document).matchAll(/"\$ref":"#\/components\/schemas\/([^"]*)"/g)].map(([, name = '']) => name);
  t.true(names.length > 100);
  t.deepEqual(
    [...new Set(names)].filter((name) => !(name in document.components.schemas)),
    [],
  );
});

test.serial('an answer that the contract does not have is noticed', (t) => {
  const live = { live: true };
  t.notThrows(() => assertConforms('GET', '/health/live', 200, live));
  t.throws(() => assertConforms('GET', '/health/live', 200, { live: 'yes' }));
  t.throws(() => assertConforms('GET', '/health/live', 200, { live: true, more: 1 }));
  t.throws(() => assertConforms('GET', '/health/live', 201, live));
  t.throws(() => assertConforms('DELETE', `/api/auth/tokens/x`, 204, {}));
  t.throws(() => assertConforms('GET', '/api/nothing', 404, {}));
});
