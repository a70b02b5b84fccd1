/** The pages that change targets, over HTTP. */
import test from 'ava';
import { person } from '../support/gateway.ts';
import { HOSTILE, scene } from './scene.ts';

const SECRET = 'a very secret value';

test.serial(
  'an administrator adds, edits, disables and deletes a target, and sets its credentials, which no page shows',
  async (t) => {
    const { gateway, admin, browser } = await scene(t);
    const { token } = admin;
    const console_ = await browser(admin);
    const address = { transport: 'streamable-http', url: 'http://127.0.0.1:9/mcp', command: '', args: '' };

    const wrong = await console_.post('/console/targets/new', {
      ...address,
      name: HOSTILE,
      url: 'ftp://x',
      description: HOSTILE,
    });
    t.is(wrong.status, 400);
    t.notRegex(wrong.text, /<img|<script>/);
    t.regex(wrong.text, /href="#f-name".*href="#f-url"/s);
    t.regex(wrong.text, /id="f-name"[^>]*aria-invalid="true"/);

    const made = await console_.post('/console/targets/new', { ...address, name: 'mine', description: HOSTILE });
    t.is(made.status, 303, made.text);
    const [, id = ''] = /^\/console\/targets\/([0-9a-f-]{36})\/allow\?done=added$/.exec(made.headers.location ?? '') ?? [];
    const at = `/console/targets/${id}`;
    const target = async () => (await gateway.rest<Record<string, unknown>>(200, 'GET', `/api/targets/${id}`, { token })).body;
    t.like(await target(), { name: 'mine', url: address.url, description: HOSTILE, enabled: true });

    // A target that does not answer is said to be so, and gets no policy.
    const tried = await console_.post(`${at}/allow`, { do: 'try' });
    t.is(tried.status, 200);
    t.regex(tried.text, /The target does not work/);

    t.is((await console_.post(at, { do: 'disable' })).headers.location, `${at}?done=disabled`);
    t.is((await target())['enabled'], false);
    t.regex((await console_.get(`${at}?done=disabled`)).text, /role="status".*The target is disabled/s);
    t.is((await console_.post(at, { do: 'explode' })).status, 400);
    t.is((await console_.post(at, { do: 'enable' })).status, 303);

    // An edit of what somebody else has changed meanwhile is refused, and what was entered stays.
    const form = await console_.get(`${at}/edit`);
    const etag = /name="etag" value="([^"]*)"/.exec(form.text)?.[1]?.replaceAll('&#34;', '"') ?? '';
    await gateway.rest(200, 'PUT', `/api/targets/${id}`, { token, body: { description: 'by somebody else' } });
    const late = await console_.post(`${at}/edit`, { ...address, url: 'http://127.0.0.1:10/mcp', description: 'late', etag });
    t.is(late.status, 412);
    t.regex(late.text, /changed meanwhile.*value="http:\/\/127\.0\.0\.1:10\/mcp"/s);
    const again =
      /name="etag" value="([^"]*)"/.exec((await console_.get(`${at}/edit`)).text)?.[1]?.replaceAll('&#34;', '"') ?? '';
    const edited = await console_.post(`${at}/edit`, {
      ...address,
      url: 'http://127.0.0.1:10/mcp',
      description: '',
      etag: again,
      reason: 'a new port: ü',
    });
    t.is(edited.headers.location, `${at}?done=saved`);
    t.like(await target(), { url: 'http://127.0.0.1:10/mcp', description: null });
    const { body: changes } = await gateway.rest<{ reason: string | null }[]>(200, 'GET', '/api/changes?limit=1', { token });
    t.is(changes[0]?.reason, 'a new port: ü');

    const credential = { do: 'set', subject_type: 'group', subject_value: HOSTILE, type: 'header', key: 'X-Key', value: SECRET };
    t.is((await console_.post(`${at}/credentials`, { ...credential, subject_value: '' })).status, 400);
    const bad = await console_.post(`${at}/credentials`, { ...credential, value: `${SECRET}\n` });
    t.is(bad.status, 400);
    t.false(bad.text.includes(SECRET));
    t.is((await console_.post(`${at}/credentials`, credential)).status, 303);
    for (const path of ['', '/credentials', '/edit', '/delete']) {
      const page = await console_.get(at + path);
      t.is(page.status, 200, path);
      t.false(page.text.includes(SECRET));
      t.notRegex(page.text, /<img|<script>/);
    }
    const remove = { do: 'delete', subject_type: 'group', subject_value: HOSTILE, key: 'x-key' };
    t.regex((await console_.post(`${at}/credentials`, remove)).text, /Its value cannot be brought back/);
    t.is(
      (await console_.post(`${at}/credentials`, { ...remove, sure: 'yes' })).headers.location,
      `${at}/credentials?done=deleted`,
    );
    t.deepEqual((await gateway.rest(200, 'GET', `/api/targets/${id}/credentials`, { token })).body, []);

    t.is((await console_.post(`${at}/delete`, { typed: 'other' })).status, 400);
    t.is((await console_.post(`${at}/delete`, { typed: 'mine' })).headers.location, '/console/targets?done=deleted');
    t.is((await console_.get(at)).status, 404);
  },
);

test.serial('nobody changes a target without the right or from a different page', async (t) => {
  const { gateway, admin, target, browser } = await scene(t);
  const plain = await person(gateway, 'plain@example.com');
  const at = `/console/targets/${target.id}`;
  const forms: readonly (readonly [string, Record<string, string>])[] = [
    ['/console/targets/new', { name: 'x', transport: 'streamable-http', url: 'http://127.0.0.1:9/mcp' }],
    [at, { do: 'disable' }],
    [`${at}/edit`, { transport: 'streamable-http', url: 'http://127.0.0.1:9/mcp' }],
    [`${at}/delete`, { typed: 'everything' }],
    [`${at}/credentials`, { do: 'set', subject_type: 'default', type: 'bearer', value: SECRET }],
    [`${at}/allow`, { do: 'try' }],
  ];
  const count = async () => (await gateway.rest<unknown[]>(200, 'GET', '/api/changes', { token: admin.token })).body.length;
  const [theirs, own] = [await browser(plain), await browser(admin)];
  const before = await count();
  const foreign: readonly Record<string, string | string[]>[] = [
    { origin: 'https://evil.example' },
    { origin: gateway.url.replace(/\d+$/, '9791') },
    { origin: [] },
    { 'sec-fetch-site': 'same-site' },
    { 'sec-fetch-site': [] },
  ];
  for (const [path, form] of forms) {
    t.is((await theirs.post(path, form)).status, 403, path);
    for (const headers of foreign) t.is((await own.post(path, form, headers)).status, 403, path);
  }
  t.is(await count(), before);
});
