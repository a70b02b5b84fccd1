/** Uses the client that openapi-typescript generates: `use.ts <origin> <e-mail> <password>`. */
import assert from 'node:assert/strict';
import createClient from 'openapi-fetch';
import type { components, paths } from './generated.ts';

const [baseUrl = '', email = '', password = ''] = process.argv.slice(2);

const open = createClient<paths>({ baseUrl });
const login = await open.POST('/api/auth/login', { body: { email, password } });
assert.ok(login.data, JSON.stringify(login.error));
assert.equal(login.data.user.email, email);
const client = createClient<paths>({ baseUrl, headers: { authorization: `Bearer ${login.data.token}` } });

const user = await client.POST('/api/users', { body: { email: 'typescript@example.com', password: 'a long passphrase' } });
assert.ok(user.data, JSON.stringify(user.error));
const id: string = user.data.id;
const changed = await client.PUT('/api/users/{id}', { params: { path: { id } }, body: { role: 'developer', groups: ['a'] } });
assert.deepEqual(changed.data?.groups, ['a']);
const page = await client.GET('/api/users', { params: { query: { limit: 1 } } });
assert.equal(page.data?.length, 1);
assert.match(page.response.headers.get('link') ?? '', /rel="next"/);

const body: components['schemas']['NewHttpTarget'] = { name: 'typescript', url: 'http://127.0.0.1:9/mcp' };
const target = await client.POST('/api/targets', { body });
assert.ok(target.data && 'url' in target.data, JSON.stringify(target.error));
assert.equal(target.data.url, body.url);

const policy = await client.POST('/api/policies', {
  params: { header: { 'Portcullis-Reason': 'to try a client' } },
  body: {
    name: 'Developers call echo',
    target_id: target.data.id,
    resource_type: 'tool',
    resource_pattern: '^echo$',
    effect: 'allow',
    priority: 100,
    subjects: [{ subject_type: 'role', subject_value: 'developer' }],
  },
});
assert.ok(policy.data, JSON.stringify(policy.error));
const explained = await client.POST('/api/policies/explain', {
  body: { principal: { user: id }, target: 'typescript', resource_type: 'tool', resource_name: 'echo' },
});
assert.equal(explained.data?.policy?.id, policy.data.id);

const refused = await client.POST('/api/sessions/recycle', { body: {} });
assert.equal(refused.error?.code, 'invalid_request');
assert.match(refused.error?.errors?.[0]?.message ?? '', /"all": true/);
const recycled = await client.POST('/api/sessions/recycle', { body: { all: true } });
assert.deepEqual(recycled.data, { recycled: 0 });

const { response } = await client.DELETE('/api/policies/{id}', { params: { path: { id: policy.data.id } } });
assert.equal(response.status, 204);
const missing = await client.GET('/api/policies/{id}', { params: { path: { id: policy.data.id } } });
assert.equal(missing.error?.code, 'not_found');
const changes = await client.GET('/api/changes', { params: { query: { limit: 10 } } });
assert.ok(changes.data?.some(({ reason }) => reason === 'to try a client'));
