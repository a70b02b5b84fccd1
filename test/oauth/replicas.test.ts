/** Two replicas that take turns, on a real server. */
import test from 'ava';
import { eachServer } from '../support/databases/each-engine.ts';
import { rest, startGateway } from '../support/gateway.ts';
import { world } from '../support/world.ts';
import { begin, codeOf, form, initialize, openTab, redeem, refresh, register } from './support.ts';

eachServer(
  test.serial,
  'each step of a sign-in may reach a different replica, and codes and tokens are used once',
  async (t, { url: database }) => {
    const w = await world(t, database);
    await w.allow({ name: 'all' });
    const { url } = w.gateway;
    // Behind a load balancer, both have the address that people use.
    const other = await startGateway(t, database, { PUBLIC_URL: url });
    const ports = [url, other.url].map((base) => Number(new URL(base).port));
    let turn = 0;
    const tab = openTab(url, () => ports[turn++ % 2] ?? 0);

    const { body: client } = await register(other.url);
    const flow = begin(url, client.client_id);
    await tab.signIn(w.user);
    const code = codeOf(await tab.answer(await tab.follow(flow.authorizeUrl)));
    t.true(turn >= 5);

    const redeemed = await Promise.all([url, other.url, url, other.url].map((base) => redeem(base, flow, code)));
    t.true(redeemed.filter(({ status }) => status === 200).length <= 1);
    for (const { body } of redeemed) {
      if (body.access_token === undefined) continue;
      for (const base of [url, other.url]) t.is((await initialize(`${base}/mcp/everything`, body.access_token)).status, 401);
    }
    t.deepEqual((await rest<unknown[]>(url, 'GET', '/api/auth/grants', { token: w.user.token })).body, []);

    const again = begin(url, client.client_id);
    const page = await tab.follow(again.authorizeUrl);
    const answered = await tab.post(page.url, { user: w.user.id, answer: 'allow' });
    const back = await Promise.all([1, 2, 3, 4].map(() => tab.get(answered.to ?? '')));
    const codes = back.flatMap(({ to }) => (to === null ? [] : [new URL(to).searchParams.get('code') ?? '']));
    t.is(codes.length, 1, 'one answer gives one code');
    const { body: tokens } = await redeem(other.url, again, codes[0] ?? '');
    for (const base of [url, other.url]) t.is((await initialize(`${base}/mcp/everything`, tokens.access_token)).status, 200);

    const refreshed = await Promise.all(
      [url, other.url].map((base) => refresh(base, client.client_id, tokens.refresh_token ?? '')),
    );
    t.deepEqual(
      refreshed.map(({ status }) => status),
      [200, 200],
    );
    const [one, two] = refreshed.map(({ body }) => body);
    t.is((await initialize(`${other.url}/mcp/everything`, one?.access_token ?? '')).status, 200);
    const next = await refresh(other.url, client.client_id, one?.refresh_token ?? '');
    t.is(next.status, 200);
    t.is((await refresh(url, client.client_id, next.body.refresh_token ?? '')).status, 200);

    const { body: grants } = await rest<{ id: string }[]>(url, 'GET', '/api/auth/grants', { token: w.user.token });
    t.is(grants.length, 1);
    t.is((await rest(other.url, 'DELETE', `/api/auth/grants/${grants[0]?.id}`, { token: w.user.token })).status, 204);
    for (const base of [url, other.url]) {
      for (const token of [tokens, one, two]) {
        t.is((await initialize(`${base}/mcp/everything`, token?.access_token ?? '')).status, 401);
      }
    }

    const { body: device } = await form(other.url, '/oauth/device_authorization', { client_id: 'portcullis-cli' });
    t.is(device['verification_uri'], `${url}/oauth/device`, 'every replica names the address that people use');
  },
);
