/** The pages that change policies, over HTTP. */
import test from 'ava';
import type { PolicyJson } from '../../src/policies/schema.ts';
import { person } from '../support/gateway.ts';
import { modernClient } from '../support/mcp.ts';
import { HOSTILE, scene } from './scene.ts';

const NEW = '/console/policies/new';
const FORM = {
  ...{ name: 'Groups may sum', description: '', effect: 'allow', target_id: '', resource_type: 'tool' },
  ...{ resource_pattern: '^get-sum$', priority: '50', subjects: 'everyone', enabled: 'yes' },
};
const etagIn = (text: string): string => /name="etag" value="([^"]*)"/.exec(text)?.[1]?.replaceAll('&#34;', '"') ?? '';

test.serial('an administrator previews, makes, edits and deletes a policy, as a form and as YAML', async (t) => {
  const { gateway, admin, browser, target, mcp, token } = await scene(t);
  const console_ = await browser(admin);
  const policies = async () => (await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token: admin.token })).body;
  const revision = async () =>
    Number((await gateway.rest(200, 'GET', '/api/policies?limit=1', { token: admin.token })).headers.get('portcullis-revision'));
  const before = await revision();

  const preview = await console_.post(NEW, { ...FORM, do: 'preview' });
  t.is(preview.status, 200, preview.text);
  t.regex(preview.text, /Looser: some requests will be allowed/);
  t.regex(preview.text, /For example .*<code>get-sum<\/code>/);
  t.regex(preview.text, /Recent decisions/);
  t.regex(preview.text, /id="f-name"[^>]*value="Groups may sum"/);
  t.is(await revision(), before, 'a preview changes nothing');

  const made = await console_.post(NEW, { ...FORM, description: `two\r\nlines`, reason: 'asked for: ü', do: 'save' });
  const [, id = ''] = /^\/console\/policies\/([0-9a-f-]{36})\?done=made$/.exec(made.headers.location ?? '') ?? [];
  t.is(made.status, 303, made.text);
  const policy = async () => (await policies()).find((each) => each.id === id);
  t.like(await policy(), { name: FORM.name, description: 'two\nlines', priority: 50, managed_as: null, enabled: true });
  const at = `/console/policies/${id}`;
  t.regex((await console_.get(`${at}?done=made`)).text, /role="status".*The policy is made/s);
  const client = await modernClient(t, mcp, token);
  await t.notThrowsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }));

  // A preview says nothing about files and owners that the policy does not have.
  const same = await console_.post(`${at}/edit`, { ...FORM, description: 'two\nlines', do: 'preview' });
  t.regex(same.text, /Nothing differs from the current policies/);
  const other = await console_.post(`${at}/edit`, { ...FORM, priority: '52', do: 'preview' });
  t.regex(other.text, /<code>priority<\/code><\/th><td[^>]*><code>50<\/code><\/td><td[^>]*><code>52</);
  for (const page of [same, other, await console_.get(`${at}/delete`)])
    t.notRegex(page.text, /managed_as|console\.preview|different file/);
  const limited = await person(gateway, 'limited@example.com');
  const right = { subject_type: 'user', subject_value: limited.id, right: 'policies:manage', owner: 'team-a' };
  await gateway.rest(201, 'POST', '/api/rights', { token: admin.token, body: right });
  const refused = await (await browser(limited)).post(NEW, { ...FORM, do: 'preview' });
  t.is(refused.status, 403);
  t.regex(refused.text, /needs the right `policies:plan` for policies of all owners and of none/);
  t.notRegex(refused.text, /console\.preview/);

  // An edit of what somebody else has changed meanwhile is refused, and what was entered stays.
  const form = await console_.get(`${at}/edit`);
  await gateway.rest(200, 'PUT', `/api/policies/${id}`, { token: admin.token, body: { priority: 51 } });
  const late = await console_.post(`${at}/edit`, { ...FORM, name: 'late', etag: etagIn(form.text), do: 'save' });
  t.is(late.status, 412);
  t.regex(
    late.text,
    /was changed at .* by admin@example\.com.*<th scope="row">Name<.*Groups may sum.*late.*<th scope="row">Priority<.*51.*50.*value="late"/s,
  );
  t.notRegex(late.text, /<th scope="row">(Applies to|Pattern|Enabled)</, 'fields that are the same');
  t.is(etagIn(late.text), etagIn((await console_.get(`${at}/edit`)).text), 'what was entered can be saved now');

  const yaml = await console_.get(`${at}/edit?as=yaml`);
  t.regex(yaml.text, /<textarea[^>]*name="yaml"[^>]*>name: Groups may sum/);
  const text = (target_: string) =>
    `name: By YAML\ntarget: ${target_}\nresource_type: tool\nresource_pattern: ^get-sum$\neffect: deny\npriority: 60\nsubjects:\n  - everyone\n`;
  const wrong = await console_.post(`${at}/edit`, { yaml: 'name: [', etag: etagIn(yaml.text), do: 'save' });
  t.is(wrong.status, 400);
  t.regex(wrong.text, /line 1, column/);
  t.is((await console_.post(`${at}/edit`, { yaml: text('nowhere'), etag: etagIn(yaml.text), do: 'save' })).status, 400);
  const stricter = await console_.post(`${at}/edit`, { yaml: text('everything'), etag: etagIn(yaml.text), do: 'preview' });
  t.regex(stricter.text, /Stricter: some requests will be denied/);
  t.regex(stricter.text, /1 would be denied now/);
  const saved = await console_.post(`${at}/edit`, { yaml: text('everything'), etag: etagIn(yaml.text), do: 'save' });
  t.is(saved.headers.location, `${at}?done=saved`, saved.text);
  t.like(await policy(), { name: 'By YAML', target_id: target.id, effect: 'deny', priority: 60 });
  await t.throwsAsync(client.callTool({ name: 'get-sum', arguments: { a: 1, b: 2 } }));

  const page = await console_.get(`${at}/delete`);
  t.is(page.status, 200);
  t.is((await console_.post(`${at}/delete`, { etag: '"old"' })).status, 412);
  const gone = await console_.post(`${at}/delete`, { etag: etagIn(page.text), reason: 'done' });
  t.is(gone.headers.location, '/console/policies?done=deleted');
  t.is(await policy(), undefined);
});

test.serial('wrong fields are named, and hostile texts stay texts', async (t) => {
  const { admin, browser, gateway } = await scene(t);
  const console_ = await browser(admin);
  const wrong: readonly (readonly [Record<string, string>, string])[] = [
    [{ name: '' }, 'name'],
    [{ priority: '1e3' }, 'priority'],
    [{ priority: '99999999999' }, 'priority'],
    [{ effect: 'maybe' }, 'effect'],
    [{ subjects: 'admin' }, 'subjects'],
    [{ subjects: 'user: nobody' }, 'subjects'],
    [{ subjects: 'everyone: x' }, 'subjects'],
    [{ resource_pattern: '(' }, 'resource_pattern'],
  ];
  for (const [over, name] of wrong) {
    for (const what of ['save', 'preview']) {
      const page = await console_.post(NEW, { ...FORM, ...over, do: what });
      t.is(page.status, 400, name);
      t.regex(page.text, new RegExp(`href="#f-${name}"`), `${what} ${JSON.stringify(over)}`);
    }
  }
  const hostile = { ...FORM, name: HOSTILE, description: HOSTILE, subjects: `group: ${HOSTILE}` };
  const made = await console_.post(NEW, { ...hostile, do: 'save' });
  t.is(made.status, 303, made.text);
  const at = made.headers.location?.replace(/\?.*/, '');
  const etag = etagIn((await console_.get(`${at}/edit`)).text);
  for (const page of [
    await console_.post(NEW, { ...hostile, do: 'preview' }),
    await console_.post(NEW, { yaml: HOSTILE, do: 'preview' }),
    await console_.post(`${at}/edit`, { ...hostile, priority: '51', etag, do: 'preview' }),
    ...(await Promise.all(['', '/edit', '/edit?as=yaml', '/delete'].map((path) => console_.get(at + path)))),
  ]) {
    t.true(page.status < 500);
    t.notRegex(page.text, /<img|<script>/);
  }
  t.is((await console_.post(NEW, { ...FORM, do: 'explode' })).status, 400);
  t.is((await console_.post(NEW, { ...FORM, do: 'patch' })).status, 400);
  t.is((await gateway.rest<unknown[]>(200, 'GET', '/api/policies', { token: admin.token })).body.length, 5);
});

test.serial('the preview runs tests on the policies with the change', async (t) => {
  const { admin, browser } = await scene(t);
  const console_ = await browser(admin);
  const tests = (effect: string): string =>
    `target: everything\r\nprincipals:\r\n  somebody: { role: user }\r\nrequests:\r\n  sum: { tool: get-sum }\r\ntests:\r\n  - name: "${HOSTILE.replaceAll('"', '\\"')}"\r\n    expect:\r\n      - effect: ${effect}\r\n`;
  const run = (text: string) => console_.post(NEW, { ...FORM, tests: text, do: 'preview' });
  t.regex((await run(tests('allow'))).text, /All 1 expectations hold/);
  const failed = await run(tests('deny'));
  t.is(failed.status, 200);
  t.regex(failed.text, /1 of 1 expectations do not hold.*somebody, sum: expected deny, got allow/s);
  t.notRegex(failed.text, /<img|<script>/);
  for (const wrong of ['tests: [', 'name: x', HOSTILE, tests('maybe'), tests('allow').replace('everything', 'nowhere')]) {
    const refused = await run(wrong);
    t.is(refused.status, 400, wrong);
    t.regex(refused.text, /href="#f-tests">Tests line \d+/, wrong);
    t.notRegex(refused.text, /<img|<script>/);
  }
});

test.serial('a policy of a file shows its new text, and is changed only if somebody insists', async (t) => {
  const { admin, browser, gateway } = await scene(t);
  const console_ = await browser(admin);
  const { body } = await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token: admin.token });
  const id = body.find(({ managed_as }) => managed_as === 'default/echo')?.id;
  const at = `/console/policies/${id}`;
  const page = await console_.get(`${at}/edit`);
  t.regex(page.text, /belongs to the file <code>default\/echo\.yaml/);
  const form = { ...FORM, name: 'Everyone may echo', resource_pattern: '^echo2$', priority: '10', etag: etagIn(page.text) };
  const preview = await console_.post(`${at}/edit`, { ...form, do: 'preview' });
  t.regex(preview.text, /New text of the file.*resource_pattern: \^echo2\$/s);
  const patch = await console_.post(`${at}/edit`, { ...form, do: 'patch' });
  t.is(patch.headers['content-disposition'], 'attachment; filename="echo.yaml.patch"');
  t.regex(
    patch.text,
    /^diff --git a\/policies\/echo\.yaml b\/policies\/echo\.yaml\n.*\n-resource_pattern: \^echo\$\n.*\+resource_pattern: \^echo2\$\n/s,
  );
  t.regex((await console_.post(`${at}/delete`, { do: 'patch' })).text, /deleted file mode/);
  t.is((await console_.post(`${at}/edit`, { ...form, resource_pattern: '^echo$', do: 'patch' })).status, 400, 'nothing differs');
  t.is((await console_.post(`${at}/edit`, { ...form, do: 'save' })).status, 409);
  t.is((await console_.post(`${at}/delete`, { etag: etagIn(page.text) })).status, 409);
  t.is((await console_.post(`${at}/edit`, { ...form, override: 'yes', do: 'save' })).headers.location, `${at}?done=saved`);
  t.regex((await console_.get(at)).text, /changed outside of its file/);
});

test.serial('nobody changes a policy without the right or from a different page', async (t) => {
  const { admin, browser, gateway } = await scene(t);
  const [theirs, own] = [await browser(await person(gateway, 'plain@example.com')), await browser(admin)];
  const { body } = await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token: admin.token });
  const at = `/console/policies/${body[0]?.id}`;
  const foreign: readonly Record<string, string | string[]>[] = [
    { origin: 'https://evil.example' },
    { origin: gateway.url.replace(/\d+$/, '9791') },
    { origin: [] },
    { 'sec-fetch-site': 'same-site' },
    { 'sec-fetch-site': [] },
  ];
  for (const path of [NEW, `${at}/edit`, `${at}/delete`]) {
    t.is((await theirs.get(path)).status, 403, path);
    for (const what of ['preview', 'save']) {
      t.is((await theirs.post(path, { ...FORM, do: what })).status, 403, path);
      t.is((await theirs.post(path, { yaml: '[', do: what })).status, 403, `${path}: before the YAML is read`);
    }
    for (const headers of foreign) t.is((await own.post(path, { ...FORM, do: 'save' }, headers)).status, 403, path);
  }
  const after = await gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token: admin.token });
  t.deepEqual(after.body, body);
});
