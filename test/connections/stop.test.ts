/** The end of a gateway while requests to authorization servers are under way. */
import test from 'ava';
import { deferred } from '../../src/base/promises.ts';
import { createSqlite } from '../support/databases/sqlite.ts';
import { startGateway } from '../support/gateway.ts';
import { call, connect, open, textOf, world } from './world.ts';

test('an authorization server that does not answer a revocation does not keep the gateway from ending', async (t) => {
  const { url: databaseUrl, drop } = await createSqlite();
  const w = await world(t, { databaseUrl });
  t.teardown(drop);
  await connect(w, w.ann, 'annsaccount');
  const reached = deferred();
  w.provider.intercept = (req) => {
    if (req.url !== '/token/revocation') return false;
    reached.resolve();
    return true;
  };
  const { body } = await w.gateway.rest<{ id: string }[]>(200, 'GET', '/api/connections', { token: w.ann.api });
  await w.gateway.rest(204, 'DELETE', `/api/connections/${body[0]?.id}`, { token: w.ann.api });
  await reached.promise;
  await t.notThrowsAsync(w.gateway.gateway.close());
});

test('a gateway that ends stores the tokens of a renewal that is under way', async (t) => {
  const { url: databaseUrl, drop } = await createSqlite();
  const w = await world(t, { databaseUrl, accessTokenTtl: 2 });
  t.teardown(drop);
  await connect(w, w.ann, 'annsaccount');
  const reached = deferred();
  const released = deferred();
  w.provider.intercept = async (req) => {
    if (req.url !== '/token') return false;
    reached.resolve();
    await released.promise;
    return false;
  };
  const mcp = `${w.gateway.url}/mcp/git`;
  const { session } = await open(mcp, w.ann.api);
  // The token is valid for two seconds, whole ones at the provider. The first call afterwards renews it, and breaks off when the gateway closes its connection.
  const calls = (async () => {
    for (;;) await call(mcp, w.ann.api, session);
  })();
  await reached.promise;
  const closing = w.gateway.gateway.close();
  await t.throwsAsync(calls);
  w.provider.accessTokenTtl = 3600;
  released.resolve();
  await closing;
  w.provider.intercept = null;
  const { port } = new URL(w.gateway.url);
  const next = await startGateway(t, databaseUrl, { PORT: port });
  const again = (await open(`${next.url}/mcp/git`, w.ann.api)).session;
  t.is(textOf(await call(`${next.url}/mcp/git`, w.ann.api, again)), 'annsaccount');
});
