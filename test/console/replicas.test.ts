/** The console of two replicas behind one address: each request goes to the other one, and the user sees one gateway. */
import test from 'ava';
import { browse, signIn } from '../browser/browser.ts';
import { eachServer } from '../support/databases/each-engine.ts';
import { apiToken, person, startGateway, type TestGateway } from '../support/gateway.ts';
import { modernClient } from '../support/mcp.ts';
import { freePort } from '../support/port.ts';
import { roundRobin } from '../support/round-robin.ts';
import { startEverything } from '../support/upstreams/everything.ts';

eachServer(test.serial, 'each page shows what the request before changed at the other replica', async (t, at) => {
  const everything = await startEverything();
  t.teardown(() => everything.stop());
  const ports = [await freePort(), await freePort()];
  const address = await roundRobin(
    t,
    ports.map((port) => `http://127.0.0.1:${port}`),
  );
  const environment = { PUBLIC_URL: address.url, ALLOWED_HOSTS: '127.0.0.1' };
  const replicas: TestGateway[] = [];
  for (const port of ports) replicas.push(await startGateway(t, at.url, { ...environment, PORT: String(port) }));
  const [one] = replicas;
  if (one === undefined) return t.fail();
  const admin = await person(one, 'admin@example.com');
  const user = await person(one, 'user@example.com');
  const browser = browse(address);
  await signIn(browser, admin);

  /** Sends a form, and returns the page to which it leads, as the other replica answers it. */
  const send = async (path: string, fields: Record<string, string>): Promise<string> => {
    const sent = await browser.post(path, fields);
    t.is(sent.status, 303, sent.text);
    const page = await browser.get(sent.headers.location ?? '');
    t.is(page.status, 200, page.text);
    return page.text;
  };
  const url = everything.url;
  t.regex(await send('/console/targets/new', { name: 'everything', transport: 'streamable-http', url }), /Allow tools/);
  t.regex((await browser.get('/console/targets')).text, /\/mcp\/everything/);
  const policy = {
    ...{ name: 'Everyone may echo', description: '', effect: 'allow', target_id: '', resource_type: 'tool' },
    ...{ resource_pattern: '^echo$', priority: '50', subjects: 'everyone', enabled: 'yes' },
  };
  const preview = await browser.post('/console/policies/new', { ...policy, do: 'preview' });
  t.regex(preview.text, /Looser: some requests will be allowed/);
  t.regex(await send('/console/policies/new', { ...policy, do: 'save' }), /The policy is made/);
  t.regex((await browser.get('/console/policies')).text, /Everyone may echo/);

  // The replica that did not make the policy decides the call, and the page of the other one shows it.
  const { token } = await apiToken(one, user);
  const client = await modernClient(t, `${address.url}/mcp/everything`, token);
  await client.callTool({ name: 'echo', arguments: { message: 'x' } });
  await t.throwsAsync(client.callTool({ name: 'get-env', arguments: {} }));
  for (let i = 0; i < 2; i++) t.regex((await browser.get('/console/log?resource_name=get-env')).text, /Default deny/);
  for (let i = 0; i < 2; i++) t.regex((await browser.get('/console/log/rows?resource_name=echo')).text, /Everyone may echo/);

  // A denied request becomes a draft with a shadow, and the draft a policy, each step at the other replica.
  const api = <T>(method: string, path: string, body?: object) =>
    one.rest<T>(200, method, path, { token: admin.token, ...(body && { body }) });
  const [denied] = (await api<{ id: string }[]>('GET', '/api/logs?resource_name=get-env')).body;
  t.regex((await browser.get('/console/demand')).text, /get-env/);
  const draft = `/console/drafts/decision-${denied?.id}`;
  t.regex(await send(`/console/log/${denied?.id}`, { do: 'draft' }), /Looser/);
  t.regex(await send(draft, { do: 'begin' }), /The shadow has begun/);
  const { text: shown } = await browser.get(draft);
  const [etag = '', expected = '', targets = ''] = ['etag', 'expected', 'targets'].map(
    (name) => new RegExp(`name="${name}" value="([^"]*)"`).exec(shown)?.[1]?.replaceAll('&#34;', '"') ?? '',
  );
  t.regex(await send(draft, { do: 'activate', etag, expected, targets }), /The draft is effective/);
  await client.callTool({ name: 'get-env', arguments: {} });

  const policies = (await api<{ id: string; name: string }[]>('GET', '/api/policies')).body;
  const moved = `/console/policies/${policies.find(({ name }) => name === 'Everyone may echo')?.id}`;
  t.is(policies.length, 2);
  const place = async (): Promise<string> => /number (\d) in the order/.exec((await browser.get(moved)).text)?.[1] ?? '';
  const to = (await place()) === '1' ? '2' : '1';
  const move = (await browser.get(`${moved}/move?position=${to}`)).text;
  const hidden = Object.fromEntries(
    [...move.matchAll(/type="hidden" name="(\w+)" value="([^"]*)"/g)].map(([, name, value]) => [name, value]),
  );
  t.regex(await send(`${moved}/move`, { ...hidden, do: 'move', override: 'yes' }), /The policy is moved/);
  t.is(await place(), to);
  const history = (await browser.get('/console/history')).text;
  t.regex(history, /Revision 3/);
  const back = (await browser.get('/console/history/1/rollback')).text;
  const kept = Object.fromEntries(
    [...back.matchAll(/type="hidden" name="(\w+)" value="([^"]*)"/g)].map(([, name, value]) => [name, value]),
  );
  t.regex(
    await send('/console/history/1/rollback', { ...kept, do: 'roll', override: 'yes' }),
    /The earlier policies are restored/,
  );
  await t.throwsAsync(client.callTool({ name: 'get-env', arguments: {} }));

  const made = await browser.post('/console/tokens', { do: 'make', name: 'mine', days: '30', endpoints: '' });
  t.is(made.status, 201);
  t.regex((await browser.get('/console/tokens')).text, /mine/);
  t.regex(await send('/console/keys', { do: 'rotate', sure: 'yes' }), /The new key signs/);
  t.regex((await browser.get('/console/keys')).text, /retired/);
  t.regex(
    await send('/console/rights', { do: 'give', right: 'read', subject_type: 'user', subject_value: user.email }),
    /user@example/,
  );
  t.regex((await browser.get('/console/access?rows=users')).text, /user@example\.com/);

  t.regex(await send(`/console/users/${user.id}/edit`, { role: 'analyst', groups: 'team' }), /analyst/);
  t.regex(await send(`/console/users/${user.id}`, { do: 'disable', sure: 'yes' }), /disabled/);
  await t.throwsAsync(client.callTool({ name: 'echo', arguments: { message: 'x' } }));
  await browser.post('/account/sign-out');
  for (let i = 0; i < 2; i++) t.is((await browser.get('/console/log')).status, 303);
  t.true(
    address.counts.every((count) => count > 10),
    address.counts.join(),
  );
});
