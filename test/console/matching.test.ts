/** Users by what they have: over REST, on the page of users, and behind the example of a changed decision. */
import test from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person, startGateway } from '../support/gateway.ts';
import { HOSTILE, scene } from './scene.ts';

eachEngine(
  test.serial,
  'users are found by a part of their e-mail, by role, and by all of several groups',
  async (t, { url }) => {
    const gateway = await startGateway(t, url);
    const admin = await person(gateway, 'admin@example.com');
    const { token } = admin;
    const has: Readonly<Record<string, readonly [string, readonly string[]]>> = {
      one: ['dev', ['a', 'b']],
      two: ['dev', ['a,b', 'A']],
      three: ['Dev', [HOSTILE, ',', 'b']],
      four: ['x', ['x,', ',y']],
      five: ['dev', []],
    };
    const ids = new Map<string, string>();
    for (const [name, [role, groups]] of Object.entries(has)) {
      const body = { email: `${name}@example.com`, password: 'a long passphrase', role, groups };
      ids.set((await gateway.rest<{ id: string }>(201, 'POST', '/api/users', { token, body })).body.id, name);
    }
    const find = async (...query: readonly (readonly [string, string])[]): Promise<readonly (string | undefined)[]> => {
      const path = `/api/users?${new URLSearchParams(query.map(([name, value]): [string, string] => [name, value]))}`;
      return (await gateway.rest<{ id: string }[]>(200, 'GET', path, { token })).body.map(({ id }) => ids.get(id));
    };
    t.deepEqual(await find(['text', 'FOUR@ex']), ['four']);
    for (const text of ['%', '_', "'", HOSTILE]) t.deepEqual(await find(['text', text]), [], text);
    t.deepEqual(await find(['role', 'dev']), ['one', 'two', 'five'], 'byte for byte');
    t.deepEqual(await find(['group', 'a']), ['one']);
    t.deepEqual(await find(['group', 'b']), ['one', 'three']);
    t.deepEqual(await find(['group', 'a'], ['group', 'b']), ['one']);
    t.deepEqual(await find(['group', 'b'], ['role', 'Dev']), ['three']);
    t.deepEqual(await find(['group', ',']), ['three']);
    t.deepEqual(await find(['group', HOSTILE], ['group', 'b'], ['text', 'three']), ['three']);
    t.deepEqual(await find(['group', 'a'], ['group', 'A']), []);
    for (const query of ['text=', 'role=', 'group=', 'role=a&role=b', `group=${'x'.repeat(257)}`])
      await gateway.rest(400, 'GET', `/api/users?${query}`, { token });
    // The address of the next page repeats each group.
    const first = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/users?group=b&limit=1', { token });
    t.regex(String(first.headers.get('link')), /group=b&limit=1&cursor=/);
  },
);

test.serial('the page of users has the filters, and a group of the list leads to its users', async (t) => {
  const w = await scene(t);
  const body = { groups: ['a', 'b'] };
  await w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body });
  const console_ = await w.browser(w.admin);
  const found = await console_.get('/console/users?group=b%2C+a');
  t.regex(found.text, /user@example\.com/);
  t.notRegex(found.text, /">admin@example\.com<\/a>/);
  t.regex((await console_.get('/console/users?group=a%2C+none')).text, /No user matches the filter/);
  t.regex((await console_.get('/console/users?role=nobody')).text, /Show all users/);
  t.is((await console_.get(`/console/users?role=${'x'.repeat(257)}`)).status, 400);
});

test.serial('the preview of a change names the users behind its example', async (t) => {
  const w = await scene(t);
  const console_ = await w.browser(w.admin);
  const policy = {
    ...{ name: 'Sums', description: '', effect: 'allow', target_id: w.target.id, resource_type: 'tool', do: 'preview' },
    ...{ resource_pattern: '^get-sum$', priority: '50', subjects: 'group: analysts', enabled: 'yes' },
  };
  t.regex((await console_.post('/console/policies/new', policy)).text, /group <b>analysts<\/b>.*No user has this today\./s);
  const groups = ['analysts', 'other'];
  await w.gateway.rest(200, 'PUT', `/api/users/${w.user.id}`, { token: w.admin.token, body: { groups } });
  t.regex(
    (await console_.post('/console/policies/new', policy)).text,
    new RegExp(`Users who have this today: <a href="/console/users/${w.user.id}">user@example\\.com</a>`),
  );
  for (let i = 0; i < 5; i++) {
    const { id } = await person(w.gateway, `analyst-${i}@example.com`);
    await w.gateway.rest(200, 'PUT', `/api/users/${id}`, { token: w.admin.token, body: { groups } });
  }
  t.regex((await console_.post('/console/policies/new', policy)).text, /href="\/console\/users\?group=analysts">and others</);
});
