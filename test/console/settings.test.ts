/** The check of a target, and the page with its settings. */
import test from 'ava';
import { browse, signIn } from '../browser/browser.ts';
import { person, startGateway } from '../support/gateway.ts';
import { world } from '../support/world.ts';
import { HOSTILE } from './scene.ts';

const unescaped = (text: string): string => text.replaceAll(/&#(\d+);/g, (_, code: string) => String.fromCodePoint(Number(code)));
const etagIn = (text: string): string => unescaped(/name="etag" value="([^"]*)"/.exec(text)?.[1] ?? '');

/** What a browser would send for the form of a page. */
function formIn(page: string): Record<string, string> {
  const [, form = ''] = /<form class="stack form"[^>]*>(.*?)<\/form>/s.exec(page) ?? [];
  const inputs = [...form.matchAll(/<input ([^>]*)>/g)].flatMap(([, attributes = '']) => {
    if (attributes.includes('type="checkbox"') && !/\bchecked\b/.test(attributes)) return [];
    return [[/name="([^"]*)"/.exec(attributes)?.[1] ?? '', unescaped(/value="([^"]*)"/.exec(attributes)?.[1] ?? '')]];
  });
  // Browsers drop a line break at the start, and send the others as CR LF.
  const areas = [...form.matchAll(/<textarea [^>]*name="([^"]*)"[^>]*>\n?([^<]*)</g)].map(([, name = '', text = '']) => [
    name,
    unescaped(text).replaceAll(/\r\n?|\n/g, '\r\n'),
  ]);
  const choices = [...form.matchAll(/<select [^>]*name="([^"]*)"[^>]*>(.*?)<\/select>/gs)].map(([, name = '', options = '']) => [
    name,
    /value="([^"]*)" selected/.exec(options)?.[1] ?? '',
  ]);
  return Object.fromEntries([...inputs, ...areas, ...choices]) as Record<string, string>;
}

test.serial('a check says whether the target works, and shows what the process printed', async (t) => {
  const { gateway, admin, user, target } = await world(t);
  const console_ = browse(gateway);
  await signIn(console_, admin);
  const at = `/console/targets/${target.id}`;
  t.regex((await console_.get(at)).text, /value="check"/);
  const checked = await console_.post(at, { do: 'check' });
  t.is(checked.status, 200);
  t.regex(checked.text, /role="status".*The target works\. It says that it is .*has \d+ tools, and also resources and prompts/s);
  await gateway.rest(200, 'PUT', `/api/targets/${target.id}`, {
    token: admin.token,
    body: { url: `http://127.0.0.1:9/${encodeURIComponent(HOSTILE)}` },
  });
  const failed = await console_.post(at, { do: 'check' });
  t.is(failed.status, 200);
  t.regex(failed.text, /role="alert".*The target does not work: /s);
  t.notRegex(failed.text, /<img|<script>/);
  const plain = browse(gateway);
  await signIn(plain, user);
  t.is((await plain.post(at, { do: 'check' })).status, 403);
});

test.serial('every setting of a target can be changed, and saving the form unchanged changes nothing', async (t) => {
  const gateway = await startGateway(t, null, { STDIO_ALLOWED: process.execPath });
  const admin = await person(gateway, 'admin@example.com');
  const plain = await person(gateway, 'plain@example.com');
  const { token } = admin;
  const console_ = browse(gateway);
  await signIn(console_, admin);
  const make = async (body: object) => (await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', { token, body })).body.id;
  const read = async (id: string) =>
    (await gateway.rest<Record<string, unknown>>(200, 'GET', `/api/targets/${id}`, { token })).body;
  const members = ({ updated_at: _, ...rest }: Record<string, unknown>) => rest;
  const common = {
    ...{ denials: 'hidden', may_ask: ['roots'], timeout_ms: 5_000 },
    extension_methods: [{ method: 'acme/run', resource_type: 'tool', param: 'name' }],
    capture_arguments: { mask: ['password', HOSTILE] },
  };
  const own_accounts = { issuer: 'https://as.example', client_id: 'gateway', scopes: ['a', 'b'], send_resource: false };
  const keys = [
    { type: 'bearer', name: 'authorization' },
    { type: 'header', name: 'x-key' },
  ];
  const url = 'http://127.0.0.1:9/mcp';
  const stdio = { transport: 'stdio', command: process.execPath, args: ['x'] };
  const env = { A: 'b=c', B: HOSTILE };
  const targets = [
    await make({ name: 'plain', url }),
    await make({ name: 'http', url, ...common, user_credentials: keys }),
    await make({ name: 'own', url, ...common, own_accounts }),
    await make({ name: 'process', ...stdio, ...common, cwd: '/tmp', env, isolation: 'shared' }),
  ];
  for (const id of targets) {
    const at = `/console/targets/${id}/settings`;
    const before = await read(id);
    const page = await console_.get(at);
    t.notRegex(page.text, /<img|<script>/);
    const saved = await console_.post(at, formIn(page.text));
    t.is(saved.headers.location, `/console/targets/${id}?done=saved`, saved.text);
    t.deepEqual(members(await read(id)), members(before));
  }
  const [first = '', , , process_ = ''] = targets;
  const change = async (id: string, form: Record<string, string>) => {
    const at = `/console/targets/${id}/settings`;
    return console_.post(at, { ...formIn((await console_.get(at)).text), ...form });
  };
  const changed = await change(first, {
    ...{ timeout_ms: '7000', denials: 'hidden', 'ask-roots': '', capture: 'yes', capture_mask: 'a\r\nb', reason: 'ü' },
    ...{ user_credentials: 'header X-Own', extension_methods: 'acme/run prompt id' },
  });
  t.is(changed.status, 303, changed.text);
  t.like(await read(first), {
    ...{ timeout_ms: 7000, denials: 'hidden', may_ask: ['sampling', 'elicitation', 'elicitation_url'] },
    capture_arguments: { mask: ['a', 'b'] },
    user_credentials: [{ type: 'header', name: 'x-own' }],
    extension_methods: [{ method: 'acme/run', resource_type: 'prompt', param: 'id' }],
  });
  t.is((await change(process_, { cwd: '', env: 'X=1\r\nY=', isolation: 'per_role' })).status, 303);
  t.like(await read(process_), { cwd: null, env: { X: '1', Y: '' }, isolation: 'per_role' });

  for (const [id, form, field] of [
    [first, { timeout_ms: 'soon' }, 'timeout_ms'],
    [first, { timeout_ms: '1' }, 'timeout_ms'],
    [first, { user_credentials: 'cookie x' }, 'user_credentials'],
    [first, { user_credentials: 'header x-own more' }, 'user_credentials'],
    [first, { extension_methods: 'acme/run tool' }, 'extension_methods'],
    [first, { extension_methods: 'tools/call tool name' }, 'extension_methods'],
    [first, { user_credentials: '', own: 'yes', issuer: 'ftp://x' }, 'issuer'],
    [first, { user_credentials: '', own: 'yes', client_id: 'x' }, 'own'],
    [process_, { env: HOSTILE.replaceAll('=', '') }, 'env'],
    [process_, { env: 'A=1\nA=2' }, 'env'],
    [process_, { cwd: 'relative' }, 'cwd'],
    [process_, { isolation: 'x' }, 'isolation'],
  ] as const) {
    const refused = await change(id, form);
    t.is(refused.status, 400, JSON.stringify(form));
    t.true(
      refused.text.includes(`href="#f-${field}"`),
      `${JSON.stringify(form)} ${/role="alert".*?<\/div>/s.exec(refused.text)?.[0]}`,
    );
    t.notRegex(refused.text, /<img|<script>/);
  }
  const late = await console_.get(`/console/targets/${first}/settings`);
  await gateway.rest(200, 'PUT', `/api/targets/${first}`, { token, body: { description: 'by somebody else' } });
  const kept = await console_.post(`/console/targets/${first}/settings`, { ...formIn(late.text), timeout_ms: '9000' });
  t.is(kept.status, 412);
  t.regex(kept.text, /changed meanwhile.*value="9000"/s);
  t.not(etagIn(late.text), '');

  const theirs = browse(gateway);
  await signIn(theirs, plain);
  t.is((await theirs.get(`/console/targets/${first}/settings`)).status, 403);
  t.is((await theirs.post(`/console/targets/${first}/settings`, formIn(late.text))).status, 403);
});

test.serial('saving the form of a target unchanged keeps its arguments, description and credentials', async (t) => {
  const gateway = await startGateway(t, null, { STDIO_ALLOWED: process.execPath });
  const admin = await person(gateway, 'admin@example.com');
  const { token } = admin;
  const console_ = browse(gateway);
  await signIn(console_, admin);
  const stdio = { transport: 'stdio', command: process.execPath };
  for (const [at, given] of [
    { args: ['--prefix', '', '--x'], description: 'one\ntwo' },
    { args: ['', '--x', ''], description: '\nafter a line break' },
    { args: [''], description: 'one\r\ntwo' },
    { args: [], description: null },
  ].entries()) {
    const body = { name: `process-${at}`, ...stdio, ...given };
    const { id } = (await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', { token, body })).body;
    await gateway.rest(201, 'PUT', `/api/targets/${id}/credentials/default`, {
      token,
      body: { type: 'env', name: 'K', value: 'v' },
    });
    const save = async (form: Record<string, string>) => {
      const path = `/console/targets/${id}/edit`;
      return console_.post(path, { ...formIn((await console_.get(path)).text), ...form });
    };
    const read = async () => (await gateway.rest<object>(200, 'GET', `/api/targets/${id}`, { token })).body;
    t.is((await save({})).status, 303);
    t.like(await read(), given);
    t.is((await save({ description: 'new\r\ntext' })).status, 303);
    t.like(await read(), { ...given, description: 'new\ntext' });
    const { body: credentials } = await gateway.rest<object[]>(200, 'GET', `/api/targets/${id}/credentials`, { token });
    t.like(credentials[0], { usable: true });
    const changed = await save({ args: '--y\r\n\r\n--z' });
    if (given.args.length === 0) t.like(await read(), { args: ['--y', '--z'] });
    else t.regex(changed.text, /href="#f-args">Arguments cannot be changed here, because one of them is empty/);
  }
});
