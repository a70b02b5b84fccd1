/** Users' own accounts through whole gateways: pages, REST, clients, a real provider and a real target. */
import { setTimeout as sleep } from 'node:timers/promises';
import { Client, StreamableHTTPClientTransport, UrlElicitationRequiredError } from '@modelcontextprotocol/client';
import test from 'ava';
import { deferred } from '../../src/base/promises.ts';
import { COOKIE } from '../../src/browser/sessions.ts';
import { browse, signIn } from '../browser/browser.ts';
import { browserTest } from '../support/chromium.ts';
import { eachServer } from '../support/databases/each-engine.ts';
import { apiToken, person, startGateway } from '../support/gateway.ts';
import { MODERN_META, post } from '../support/mcp.ts';
import { registration, startProvider } from '../support/provider.ts';
import { linkIn, OWN, signInAt, startAccountTarget } from '../support/upstreams/account-target.ts';
import { call, connect, open, textOf, type User, type World, world } from './world.ts';

/** `npm run test:long` makes 10,000. */
const CALLS = Number(process.env['PORTCULLIS_TEST_ACCOUNT_CALLS'] ?? 0);

test.serial('each user of a target calls it with their own account, and is sent to connect one first', async (t) => {
  const w = await world(t);
  const mcp = `${w.gateway.url}/mcp/git`;
  const { session } = await open(mcp, w.ann.api);
  t.truthy(session, 'a session can be opened without an account');
  const before = await call(mcp, w.ann.api, session);
  t.is(before?.error?.code, -32603);
  const { url, account } = (before?.error?.data ?? {}) as { url: string; account: string };
  t.is(account, 'connect');
  t.true(before?.error?.message.includes(url));
  t.false(url.includes(w.ann.id) || url.includes('ann'), 'the address says nothing about the user');
  const list = await post(mcp, w.ann.api, { jsonrpc: '2.0', id: 1, method: 'tools/list' }, { 'mcp-session-id': session ?? '' });
  t.is(list.message?.error?.code, -32603);
  t.is(w.server.accounts.length, 0, 'nothing without an account reaches the target');

  const path = url.slice(w.gateway.url.length);
  t.regex((await browse(w.gateway).get(path)).headers['location'] ?? '', /^\/signin\?return=/);
  t.regex((await w.ann.browser.get(path)).text, /asks for your account at git/);
  t.regex((await w.ben.browser.get(path)).text, /made for a different user/);

  t.is((await connect(w, w.ann, 'annsaccount')).headers['location'], '/account/connections?connected=git');
  t.is(textOf(await call(mcp, w.ann.api, session)), 'annsaccount', 'the same session now works');
  t.deepEqual(new Set(w.server.accounts), new Set(['annsaccount']));

  const { session: bens } = await open(mcp, w.ben.api);
  t.is((await call(mcp, w.ben.api, bens))?.error?.code, -32603, "another user does not get ann's account");
  await connect(w, w.ben, 'bensaccount');
  t.is(textOf(await call(mcp, w.ben.api, bens)), 'bensaccount');
  t.is(textOf(await call(mcp, w.ann.api, session)), 'annsaccount');

  const everywhere = await open(`${w.gateway.url}/mcp`, w.ann.api);
  t.is(textOf(await call(`${w.gateway.url}/mcp`, w.ann.api, everywhere.session, 'git__whoami')), 'annsaccount');
});

test.serial('clients with URL elicitation get the address in the form of their revision (SDK 2.x)', async (t) => {
  const w = await world(t);
  const transport = () =>
    new StreamableHTTPClientTransport(new URL(`${w.gateway.url}/mcp/git`), {
      requestInit: { headers: { authorization: `Bearer ${w.ann.api}` } },
    });
  const options = { capabilities: { elicitation: { url: {} } } };
  const client = new Client({ name: 'test', version: '1' }, { ...options, versionNegotiation: { mode: 'auto' } });
  await client.connect(transport());
  t.teardown(() => client.close());
  t.is(client.getNegotiatedProtocolVersion(), '2025-11-25', 'a session fits every target, which is not known yet');
  const error = await t.throwsAsync(client.callTool({ name: 'whoami', arguments: {} }));
  t.true(error instanceof UrlElicitationRequiredError);
  const [elicitation] = (error as UrlElicitationRequiredError).elicitations;
  t.like(elicitation, { mode: 'url' });
  t.true(elicitation?.url.startsWith(`${w.gateway.url}/account/connections?target=git&for=`));
  const changed = new Promise<void>((resolve) =>
    client.setNotificationHandler('notifications/tools/list_changed', () => resolve()),
  );
  await connect(w, w.ann, 'annsaccount');
  await changed;
  t.true((await client.listTools()).tools.some(({ name }) => name === 'whoami'));
  t.like(await client.callTool({ name: 'whoami', arguments: {} }), { content: [{ type: 'text', text: 'annsaccount' }] });
});

test.serial(
  'a stateless client is asked with input_required, and its retry waits until the account is connected (SDK 2.x)',
  async (t) => {
    const w = await world(t, { modern: true });
    await connect(w, w.ann, 'annsaccount');
    const client = new Client(
      { name: 'test', version: '1' },
      { capabilities: { elicitation: { url: {} } }, versionNegotiation: { mode: 'auto' } },
    );
    const asked: string[] = [];
    client.setRequestHandler('elicitation/create', async ({ params }) => {
      asked.push((params as { url?: string }).url ?? '');
      setTimeout(() => void connect(w, w.ann, 'annsother'), 300);
      return { action: 'accept' as const };
    });
    const transport = new StreamableHTTPClientTransport(new URL(`${w.gateway.url}/mcp/git`), {
      requestInit: { headers: { authorization: `Bearer ${w.ann.api}` } },
    });
    await client.connect(transport);
    t.teardown(() => client.close());
    t.is(client.getNegotiatedProtocolVersion(), '2026-07-28');
    t.like(await client.callTool({ name: 'whoami', arguments: {} }), { content: [{ type: 'text', text: 'annsaccount' }] });

    // The target asks for a scope that the account lacks.
    w.server.needs = 'more';
    t.like(await client.callTool({ name: 'more', arguments: {} }), { content: [{ type: 'text', text: 'more for annsother' }] });
    t.is(asked.length, 1);
    t.true(asked[0]?.startsWith(`${w.gateway.url}/account/connections?target=git&for=`));
    const { body } = await w.gateway.rest<{ scopes: string[]; problem: string | null }[]>(200, 'GET', '/api/connections', {
      token: w.ann.api,
    });
    t.deepEqual(body[0]?.scopes.sort(), ['more', 'tools']);
    t.is(body[0]?.problem, null);
  },
);

/** Calls `whoami` in revision 2026-07-28, as a client that opens addresses. */
const callWith = (w: World, name: string, inputResponses?: object) =>
  post(
    `${w.gateway.url}/mcp/${name}`,
    w.ann.api,
    {
      ...{ jsonrpc: '2.0', id: 1, method: 'tools/call' },
      params: {
        ...{ name: 'whoami', arguments: {}, inputResponses },
        _meta: { ...MODERN_META, 'io.modelcontextprotocol/clientCapabilities': { elicitation: { url: {} } } },
      },
    },
    { 'mcp-protocol-version': '2026-07-28', 'mcp-method': 'tools/call', 'mcp-name': 'whoami' },
  );

test.serial("a target does not get the replies to the gateway's own question", async (t) => {
  const w = await world(t, { modern: true });
  await connect(w, w.ann, 'annsaccount');
  const [own, others] = [{ 'portcullis-account-before': { action: 'accept' } }, { city: { action: 'accept', content: {} } }];
  for (const replies of [own, { ...own, ...others }, others]) {
    t.is(textOf((await callWith(w, 'git', replies)).message), 'annsaccount');
  }
  t.deepEqual(w.server.replies, [undefined, others, others]);
});

test.serial(
  'a retry that replies to the question does not wait for the account if the user may not use the target',
  async (t) => {
    const w = await world(t, { modern: true });
    const asked = (await callWith(w, 'git')).message?.result?.['inputRequests'] as object;
    const [key = ''] = Object.keys(asked);
    t.true(key.startsWith('portcullis-account-'));
    const { body } = await w.gateway.rest<{ id: string }>(201, 'POST', '/api/policies', {
      token: w.admin.token,
      body: {
        ...{ name: 'not git', resource_type: 'all', effect: 'deny', priority: 100 },
        subjects: [{ subject_type: 'user', subject_value: w.ann.id }],
        target_id: w.targetId,
      },
    });
    t.teardown(() => w.gateway.rest(204, 'DELETE', `/api/policies/${body.id}`, { token: w.admin.token }));
    const replies = { [key]: { action: 'accept' } };
    const began = performance.now();
    const [denied, unknown] = [await callWith(w, 'git', replies), await callWith(w, 'none', replies)];
    t.true(performance.now() - began < 15_000, 'a wait for the account takes 30 s');
    const wordsOf = ({ message }: typeof denied) => JSON.stringify(message).replaceAll(/git|none/g, 'target');
    t.is(wordsOf(denied), wordsOf(unknown));
    t.is(denied.status, unknown.status);
  },
);

test.serial('a retry whose token is revoked while it waits for the account is neither decided nor sent', async (t) => {
  const w = await world(t, { modern: true });
  const [key = ''] = Object.keys((await callWith(w, 'git')).message?.result?.['inputRequests'] as object);
  const own = await apiToken(w.gateway, w.ann);
  const log = async () =>
    (await w.gateway.rest<object[]>(200, 'GET', '/api/logs?limit=1000', { token: w.admin.token })).body.length;
  const before = await log();
  const retry = callWith({ ...w, ann: { ...w.ann, api: own.token } }, 'git', { [key]: { action: 'accept' } });
  await w.gateway.rest(204, 'DELETE', `/api/auth/tokens/${own.id}`, { token: w.ann.token });
  t.is((await retry).message?.result, undefined);
  t.is(await log(), before);
});

test.serial('a client that knows only 2026-07-28 and opens no addresses gets the address in the error (SDK 2.x)', async (t) => {
  const w = await world(t, { modern: true });
  const client = () => new Client({ name: 'test', version: '1' }, { versionNegotiation: { mode: { pin: '2026-07-28' } } });
  const transport = () =>
    new StreamableHTTPClientTransport(new URL(`${w.gateway.url}/mcp/git`), {
      requestInit: { headers: { authorization: `Bearer ${w.ann.api}` } },
    });
  const error = await t.throwsAsync(client().connect(transport()));
  const address = `${w.gateway.url}/account/connections?target=git&for=`;
  t.true(error?.message.includes(`have not connected one. Connect it at ${address}`), error?.message);

  const answer = await post(
    `${w.gateway.url}/mcp/git`,
    w.ann.api,
    { jsonrpc: '2.0', id: 1, method: 'server/discover', params: { _meta: MODERN_META } },
    { 'mcp-protocol-version': '2026-07-28', 'mcp-method': 'server/discover' },
  );
  const { url, account, supported } = (answer.message?.error?.data ?? {}) as {
    url: string;
    account: string;
    supported: string[];
  };
  t.true(url.startsWith(address));
  t.is(account, 'connect');
  t.true(supported.includes('2025-11-25'), 'other clients open a session');

  await connect(w, w.ann, 'annsaccount');
  const connected = client();
  await connected.connect(transport());
  t.teardown(() => connected.close());
  t.like(await connected.callTool({ name: 'whoami', arguments: {} }), { content: [{ type: 'text', text: 'annsaccount' }] });
});

test.serial(
  'lists of a user without an account: an error with the address at the target, and no tools of it at /mcp',
  async (t) => {
    const w = await world(t);
    await connect(w, w.ben, 'bensaccount');
    const [own, all] = [`${w.gateway.url}/mcp/git`, `${w.gateway.url}/mcp`];
    const sessions = new Map<string, string>();
    const list = async (url: string, { api }: User, method: string) => {
      const session = sessions.get(url + api) ?? (await open(url, api)).session ?? '';
      sessions.set(url + api, session);
      return (await post(url, api, { jsonrpc: '2.0', id: 1, method }, { 'mcp-session-id': session })).message;
    };
    for (const method of ['tools/list', 'prompts/list', 'resources/list', 'resources/templates/list']) {
      const alone = await list(own, w.ann, method);
      t.is(alone?.error?.code, -32603, method);
      const { url } = (alone?.error?.data ?? {}) as { url: string };
      t.true(alone?.error?.message.includes(url) && url.includes('/account/connections?target=git&for='), method);
      const [member] = Object.entries((await list(all, w.ann, method))?.result ?? {}).filter(([, value]) => Array.isArray(value));
      t.deepEqual(member?.[1], [], `${method} at /mcp`);
    }
    const hidden = await list(all, w.ann, 'tools/list');
    t.deepEqual(hidden?.result?.['_meta'], { 'portcullis/unavailable': ['git'] });
    const names = async (who: User): Promise<string[]> => {
      const tools = ((await list(all, who, 'tools/list'))?.result?.['tools'] ?? []) as { name: string }[];
      return tools.map(({ name }) => name).sort();
    };
    t.deepEqual(await names(w.ben), ['git__more', 'git__slow', 'git__whoami']);
    t.deepEqual(await names(w.ann), []);
    await connect(w, w.ann, 'annsaccount');
    t.deepEqual(await names(w.ann), ['git__more', 'git__slow', 'git__whoami']);
  },
);

test.serial(
  'the page names the issuer that the user will trust, and the host of its sign-in page if that is a different one',
  async (t) => {
    const w = await world(t);
    const page = async () => (await w.ann.browser.post(`/account/connections/${w.targetId}/connect`)).text;
    const { host, port } = new URL(w.provider.issuer);
    const same = await page();
    t.true(same.includes(`You sign in at <strong>${host}</strong>`), same);
    t.false(same.includes('The sign-in page is at'));
    const issuer = `${w.provider.issuer}/tenant-1`;
    w.server.metadata = { ...w.server.metadata, authorization_servers: [issuer] };
    w.provider.intercept = (req, res) => {
      if (req.url !== '/.well-known/oauth-authorization-server/tenant-1') return false;
      res.writeHead(200, { 'content-type': 'application/json' }).end(
        JSON.stringify({
          ...{ issuer, token_endpoint: `${issuer}/token`, registration_endpoint: `${w.provider.issuer}/reg` },
          ...{ authorization_endpoint: `http://localhost:${port}/auth`, code_challenge_methods_supported: ['S256'] },
        }),
      );
      return true;
    };
    const other = await page();
    t.true(other.includes(`You sign in at <strong>${host}/tenant-1</strong>`), other);
    t.true(other.includes(`The sign-in page is at <strong>localhost:${port}</strong>`), other);
  },
);

test.serial('users and administrators see connections without tokens, and end them; the tokens are revoked', async (t) => {
  const w = await world(t);
  await connect(w, w.ann, 'annsaccount');
  await connect(w, w.ben, 'bensaccount');
  const mcp = `${w.gateway.url}/mcp/git`;
  const [anns, bens] = [(await open(mcp, w.ann.api)).session, (await open(mcp, w.ben.api)).session];
  t.is(textOf(await call(mcp, w.ann.api, anns)), 'annsaccount');
  t.is(textOf(await call(mcp, w.ben.api, bens)), 'bensaccount');
  const own = await w.gateway.rest<{ id: string; target: string }[]>(200, 'GET', '/api/connections', { token: w.ann.api });
  t.is(own.body.length, 1);
  const path = `/api/targets/${w.targetId}/connections`;
  const all = await w.gateway.rest<{ id: string; user_id: string }[]>(200, 'GET', path, { token: w.admin.token });
  t.deepEqual(new Set(all.body.map(({ user_id }) => user_id)), new Set([w.ann.id, w.ben.id]));
  const changes = await w.gateway.rest<unknown>(200, 'GET', '/api/changes', { token: w.admin.token });
  for (const token of w.server.tokens) t.false(JSON.stringify([own.body, all.body, changes.body]).includes(token));
  const idOf = (who: User): string => all.body.find(({ user_id }) => user_id === who.id)?.id ?? '';

  await w.gateway.rest(403, 'GET', path, { token: w.ann.token });
  await w.gateway.rest(404, 'DELETE', `/api/connections/${idOf(w.ben)}`, { token: w.ann.api });
  t.is((await w.ann.browser.post(`/account/connections/${idOf(w.ben)}/disconnect`)).status, 404);
  t.is(textOf(await call(mcp, w.ben.api, bens)), 'bensaccount');

  await w.gateway.rest(204, 'DELETE', `${path}/${idOf(w.ben)}`, { token: w.admin.token });
  t.is((await call(mcp, w.ben.api, bens))?.error?.code, -32603, 'ended with the answer');
  t.is((await w.ann.browser.post(`/account/connections/${idOf(w.ann)}/disconnect`)).status, 303);
  t.is((await call(mcp, w.ann.api, anns))?.error?.code, -32603);
  for (let tries = 0; tries < 100; tries++) {
    const found = await Promise.all([...w.server.tokens].map((token) => w.provider.provider.AccessToken.find(token)));
    if (found.every((token) => token === undefined)) break;
    if (tries === 99) t.fail('the tokens were not revoked');
    await sleep(100);
  }
});

test.serial('an account that is disconnected in mid-call lets the call finish, and the next one fails', async (t) => {
  const w = await world(t);
  await connect(w, w.ann, 'annsaccount');
  const mcp = `${w.gateway.url}/mcp/git`;
  const { session } = await open(mcp, w.ann.api);
  let begun = (): void => undefined;
  let release = (): void => undefined;
  const begins = new Promise<void>((resolve) => (begun = resolve));
  w.server.slow = () => {
    begun();
    return new Promise((resolve) => (release = resolve));
  };
  const slow = call(mcp, w.ann.api, session, 'slow');
  await begins;
  const { body } = await w.gateway.rest<{ id: string }[]>(200, 'GET', '/api/connections', { token: w.ann.api });
  await w.gateway.rest(204, 'DELETE', `/api/connections/${body[0]?.id}`, { token: w.ann.api });
  t.is((await call(mcp, w.ann.api, session))?.error?.code, -32603);
  release();
  t.is(textOf(await slow), 'annsaccount');
});

test.serial('a call that waits for a renewal while its user connects again is not told to connect the account', async (t) => {
  const w = await world(t, { accessTokenTtl: 1 });
  await connect(w, w.ann, 'annsaccount');
  const mcp = `${w.gateway.url}/mcp/git`;
  const { session } = await open(mcp, w.ann.api);
  await sleep(1_000);
  const reached = deferred();
  const released = deferred();
  w.provider.intercept = async (req) => {
    if (req.url !== '/token') return false;
    w.provider.intercept = null;
    reached.resolve();
    await released.promise;
    return false;
  };
  const waiting = call(mcp, w.ann.api, session);
  await reached.promise;
  w.provider.accessTokenTtl = 3600;
  t.is((await connect(w, w.ann, 'annsother')).headers['location'], '/account/connections?connected=git');
  // What was admitted less than 100 ms ago is not decided again.
  await sleep(150);
  released.resolve();
  const { error } = (await waiting) ?? {};
  t.is(error?.code, -32603);
  t.regex(error?.message ?? '', /your access has changed while the request waited: send it again/);
  t.is(textOf(await call(mcp, w.ann.api, session)), 'annsother');
});

test.serial('a target that moves, and a user who is disabled, lose their connections', async (t) => {
  const w = await world(t);
  await connect(w, w.ann, 'annsaccount');
  await connect(w, w.ben, 'bensaccount');
  const path = `/api/targets/${w.targetId}/connections`;
  const listed = async () => (await w.gateway.rest<unknown[]>(200, 'GET', path, { token: w.admin.token })).body.length;
  await w.gateway.rest(200, 'PUT', `/api/users/${w.ben.id}`, { token: w.admin.token, body: { enabled: false } });
  t.is(await listed(), 1);
  await w.gateway.rest(200, 'PUT', `/api/users/${w.ben.id}`, { token: w.admin.token, body: { enabled: true } });
  t.is(await listed(), 1, 'the account does not come back with the user');
  await signIn(w.ben.browser, w.ben);
  await w.gateway.rest(200, 'PUT', `/api/targets/${w.targetId}`, { token: w.admin.token, body: { description: 'no move' } });
  t.is(await listed(), 1);
  await w.gateway.rest(200, 'PUT', `/api/targets/${w.targetId}`, {
    token: w.admin.token,
    body: { url: `${w.server.url}?moved` },
  });
  t.is(await listed(), 0);
  const { session } = await open(`${w.gateway.url}/mcp/git`, w.ann.api);
  t.is((await call(`${w.gateway.url}/mcp/git`, w.ann.api, session))?.error?.code, -32603);
});

test.serial('an account that ended because its user was refused is not used when the user is admitted again', async (t) => {
  const w = await world(t);
  const { token } = w.admin;
  // Access tokens of many servers stay valid after their revocation.
  w.provider.intercept = (req, res) => {
    const isRevocation = req.url?.includes('revocation') === true;
    if (isRevocation) res.end();
    return isRevocation;
  };
  const cy = await person(w.gateway, 'cy@example.com');
  const user: User = { ...cy, browser: browse(w.gateway), api: (await apiToken(w.gateway, cy)).token };
  await signIn(user.browser, cy);
  await connect(w, user, 'cysaccount');
  const { body: other } = await w.gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
    token,
    body: { name: 'other', url: w.server.url, own_accounts: OWN },
  });
  await connect({ ...w, targetId: other.id }, w.ben, 'bensaccount');
  const company = await startProvider(t);
  const { body: provider } = await w.gateway.rest<{ id: string }>(201, 'POST', '/api/providers', {
    token,
    body: registration(company, {}),
  });
  await w.gateway.rest(200, 'POST', `/api/users/${cy.id}/link`, { token, body: { issuer: company.issuer, subject: 'cy' } });
  const mcp = `${w.gateway.url}/mcp/git`;
  const answer = async () => call(mcp, user.api, (await open(mcp, user.api)).session);
  t.is(textOf(await answer()), 'cysaccount');

  const admit = (email_domains: readonly string[]) =>
    w.gateway.rest(200, 'PUT', `/api/providers/${provider.id}`, { token, body: { email_domains } });
  await admit(['other.example']);
  const path = (target: string) => `/api/targets/${target}/connections`;
  const listed = async (target: string) => (await w.gateway.rest<{ id: string }[]>(200, 'GET', path(target), { token })).body;
  // The end of any connection lets the gateway look for those of refused users.
  await w.gateway.rest(204, 'DELETE', `${path(other.id)}/${(await listed(other.id))[0]?.id}`, { token });
  while ((await listed(w.targetId)).length > 0) await sleep(5);
  await admit([]);
  t.is((await answer())?.error?.code, -32603);
  const { body: changes } = await w.gateway.rest<{ action: string; actor: object; before: { user_id: string } }[]>(
    ...([200, 'GET', '/api/changes?limit=10', { token }] as const),
  );
  const end = changes.find(({ action, before }) => action === 'connection.end' && before.user_id === cy.id);
  t.deepEqual(end?.actor, { id: 'gateway', email: '' });
});

test.serial('a different user or browser cannot finish a sign-in, and forms come only from the page itself', async (t) => {
  const w = await world(t);
  const page = await w.ann.browser.post(`/account/connections/${w.targetId}/connect`);
  const returned = await signInAt(linkIn(page.text), 'annsaccount', w.gateway.url);
  const path = returned.pathname + returned.search;
  t.is((await browse(w.gateway).get(path)).status, 303, 'nobody is signed in: to the sign-in page');
  t.is((await w.ben.browser.get(path)).status, 400);
  const again = browse(w.gateway);
  await signIn(again, w.ann);
  t.is((await again.get(path)).status, 400, "ann's other browser");
  t.is((await w.ann.browser.get(path)).headers['location'], '/account/connections?connected=git');
  t.is((await w.ann.browser.get(path)).status, 400, 'used once');
  const foreign = { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' };
  t.is((await w.ben.browser.post(`/account/connections/${w.targetId}/connect`, {}, foreign)).status, 403);
  const { body } = await w.gateway.rest<{ user_id: string }[]>(200, 'GET', `/api/targets/${w.targetId}/connections`, {
    token: w.admin.token,
  });
  t.deepEqual(
    body.map(({ user_id }) => user_id),
    [w.ann.id],
  );
});

test.serial('metadata that point inside, name a different resource or a different issuer are refused', async (t) => {
  const w = await world(t);
  const begin = async () => (await w.ann.browser.post(`/account/connections/${w.targetId}/connect`)).text;
  const good = w.server.metadata;
  w.server.metadata = { ...good, authorization_servers: ['https://169.254.169.254/latest'] };
  t.regex(await begin(), /cannot be reached/);
  w.server.metadata = { ...good, authorization_servers: ['http://10.0.0.1'] };
  t.regex(await begin(), /names no usable authorization server/);
  w.server.metadata = { ...good, resource: 'https://other.example/mcp' };
  t.regex(await begin(), /metadata of a different resource/);
  w.server.metadata = { ...good, authorization_servers: [`${w.provider.issuer}/`] };
  t.regex(await begin(), /says that it is a different issuer/);
  w.server.metadata = good;
  w.provider.intercept = (req, res) => {
    if (req.url !== '/.well-known/oauth-authorization-server') return false;
    res.writeHead(200, { 'content-type': 'application/json' }).end(
      JSON.stringify({
        issuer: w.provider.issuer,
        authorization_endpoint: `${w.provider.issuer}/auth`,
        token_endpoint: `${w.provider.issuer}/token`,
      }),
    );
    return true;
  };
  t.regex(await begin(), /does not support PKCE/);
  t.is(w.server.accounts.length, 0);
});

test.serial(
  'a target that names the server of a different target gets tokens for itself alone, and cannot show them',
  async (t) => {
    const w = await world(t);
    const evil = await startAccountTarget(w.provider);
    t.teardown(() => evil.stop());
    const { body: made } = await w.gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
      token: w.admin.token,
      body: { name: 'evil', url: evil.url, own_accounts: OWN },
    });
    await connect(w, w.ann, 'annsaccount');
    await connect({ ...w, targetId: made.id }, w.ann, 'annsaccount');
    for (const name of ['git', 'evil']) {
      const mcp = `${w.gateway.url}/mcp/${name}`;
      t.is(textOf(await call(mcp, w.ann.api, (await open(mcp, w.ann.api)).session)), 'annsaccount');
    }
    t.true(evil.tokens.size > 0 && w.server.tokens.size > 0);
    for (const token of evil.tokens) {
      t.false(w.server.tokens.has(token));
      const answer = await fetch(w.server.url, { method: 'POST', headers: { authorization: `Bearer ${token}` }, body: '{}' });
      t.is(answer.status, 401, 'the token names the target that it is for');
    }
    const mcp = `${w.gateway.url}/mcp/evil`;
    for (const status of [307, 403, 429]) {
      evil.leaks = status;
      await call(mcp, w.ann.api, (await open(mcp, w.ann.api)).session);
      const { body } = await w.gateway.rest(200, 'GET', `/api/targets/${made.id}/health`, { token: w.admin.token });
      t.true(JSON.stringify(body).includes('elsewhere.example'), `${status}`);
      for (const token of evil.tokens) t.false(JSON.stringify(body).includes(token), `${status}`);
    }
    const browser = browse(w.gateway);
    await signIn(browser, w.admin);
    await connect({ ...w, targetId: made.id }, { ...w.admin, api: '', browser }, 'adminsaccount');
    evil.leaks = 'error';
    const path = `/api/targets/${made.id}`;
    const { body: checked } = await w.gateway.rest(200, 'POST', `${path}/check`, { token: w.admin.token });
    const { body: health } = await w.gateway.rest(200, 'GET', `${path}/health`, { token: w.admin.token });
    for (const shown of [checked, health].map((each) => JSON.stringify(each))) {
      t.true(shown.includes('code -32000'));
      for (const token of evil.tokens) t.false(shown.includes(token));
    }
  },
);

test.serial('a configured client uses its secret, which is never shown', async (t) => {
  const secret = 'the-secret-of-the-client-0123456789';
  const client = { client_id: 'gateway', client_secret: secret, redirect_uris: ['http://127.0.0.1:1/none'] };
  const w = await world(t, { registration: false, clients: [client] });
  t.regex(
    (await w.ann.browser.post(`/account/connections/${w.targetId}/connect`)).text,
    /is not known to the authorization server/,
  );
  const path = `/api/targets/${w.targetId}`;
  const { body: info } = await w.gateway.rest<{ redirect_uri: string }>(200, 'GET', `${path}/account-client`, {
    token: w.admin.token,
  });
  await w.gateway.rest(400, 'PUT', `${path}/account-client`, { token: w.admin.token, body: { client_secret: secret } });
  const own_accounts = { ...OWN, issuer: w.provider.issuer, client_id: 'gateway', scopes: ['tools'] };
  await w.gateway.rest(200, 'PUT', path, { token: w.admin.token, body: { own_accounts } });
  const { body } = await w.gateway.rest<object>(200, 'PUT', `${path}/account-client`, {
    token: w.admin.token,
    body: { client_secret: secret },
  });
  t.like(body, { client_id: 'gateway', has_secret: true });
  const { body: changes } = await w.gateway.rest(200, 'GET', '/api/changes', { token: w.admin.token });
  t.false(JSON.stringify([body, changes]).includes(secret));
  // The provider of the test takes the address that an administrator would register there.
  const known = await w.provider.provider.Client.find('gateway');
  (known as unknown as { redirectUris: string[] }).redirectUris = [info.redirect_uri];
  t.is((await connect(w, w.ann, 'annsaccount')).headers['location'], '/account/connections?connected=git');
  const mcp = `${w.gateway.url}/mcp/git`;
  t.is(textOf(await call(mcp, w.ann.api, (await open(mcp, w.ann.api)).session)), 'annsaccount');
});

test.serial('a target with own accounts takes no other credentials, and its client document shows nothing', async (t) => {
  const w = await world(t);
  const body = { type: 'bearer', value: 'shared' };
  await w.gateway.rest(400, 'PUT', `/api/targets/${w.targetId}/credentials/default`, { token: w.admin.token, body });
  const document = async (id: string) => (await browse(w.gateway).get(`/account/connections/${id}/client`)).body;
  const unknown = '00000000-0000-7000-8000-000000000000';
  const text = JSON.stringify(await document(w.targetId));
  t.is(text.replaceAll(w.targetId, unknown), JSON.stringify(await document(unknown)));
  t.like(JSON.parse(text), {
    token_endpoint_auth_method: 'none',
    client_id: `${w.gateway.url}/account/connections/${w.targetId}/client`,
  });
});

eachServer(
  test.serial,
  'two users over two replicas with expiring tokens: each call has the own account, each refresh token is used once',
  async (t, db) => {
    t.timeout(600_000);
    const w = await world(t, { accessTokenTtl: 3, databaseUrl: db.url });
    const other = await startGateway(t, db.url, { PUBLIC_URL: w.gateway.url });
    await connect(w, w.ann, 'annsaccount');
    await connect(w, w.ben, 'bensaccount');
    const until = Date.now() + 8_000;
    let calls = 0;
    const caller = async (url: string, who: User, account: string): Promise<void> => {
      const { session } = await open(`${url}/mcp/git`, who.api);
      while (Date.now() < until || calls < CALLS) {
        t.is(textOf(await call(`${url}/mcp/git`, who.api, session)), account);
        calls++;
      }
    };
    await Promise.all(
      [w.gateway.url, other.url].flatMap((url) => [caller(url, w.ann, 'annsaccount'), caller(url, w.ben, 'bensaccount')]),
    );
    t.true(calls >= 40, `${calls} calls`);
    t.true(w.provider.refreshed.size >= 4, `${w.provider.refreshed.size} renewals`);
    t.deepEqual(new Set(w.provider.refreshed.values()), new Set([1]));

    // Disconnected at one replica, and over at the other with the answer (law 4).
    const sessions = await Promise.all([w.gateway, other].map(({ url }) => open(`${url}/mcp/git`, w.ann.api)));
    for (let round = 0; round < 5; round++) {
      const at = round % 2 === 0 ? w.gateway : other;
      const { body } = await at.rest<{ id: string }[]>(200, 'GET', '/api/connections', { token: w.ann.api });
      await at.rest(204, 'DELETE', `/api/connections/${body[0]?.id}`, { token: w.ann.api });
      const answers = await Promise.all(
        [w.gateway, other].map(({ url }, n) => call(`${url}/mcp/git`, w.ann.api, sessions[n]?.session ?? null)),
      );
      t.deepEqual(
        answers.map((answer) => answer?.error?.code),
        [-32603, -32603],
      );
      await connect(w, w.ann, 'annsaccount');
    }
  },
);

browserTest('a person connects an account in a browser, and disconnects it', async (t, openProfile) => {
  const w = await world(t);
  const context = await openProfile();
  await context.addCookies([
    { name: COOKIE, value: w.ann.browser.cookie() ?? '', url: w.gateway.url.replace('http:', 'https:') },
    { name: 'who', value: 'annsaccount', url: w.provider.issuer },
  ]);
  const page = await context.newPage();
  page.on('console', (message) => message.type() === 'error' && t.fail(message.text()));
  await page.goto(`${w.gateway.url}/account`);
  await page.getByRole('link', { name: 'Your accounts at targets' }).click();
  await page.getByRole('button', { name: 'Connect at git' }).click();
  await page.getByRole('link', { name: /^Go to / }).click();
  await page.getByText('Your account at git is connected').waitFor();
  const mcp = `${w.gateway.url}/mcp/git`;
  const { session } = await open(mcp, w.ann.api);
  t.is(textOf(await call(mcp, w.ann.api, session)), 'annsaccount');
  await page.getByRole('button', { name: 'Disconnect' }).click();
  await page.getByText('The account is disconnected').waitFor();
  t.is((await call(mcp, w.ann.api, session))?.error?.code, -32603);
});
