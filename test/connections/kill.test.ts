/** A replica is killed while it renews an account. The lock that it held must run out first, so this takes longer than other tests. */
import test from 'ava';
import { eachServer } from '../support/databases/each-engine.ts';
import { startGateway } from '../support/gateway.ts';
import { runGateway } from '../support/process.ts';
import { call, connect, open, textOf, world } from './world.ts';

const isLong = process.env['PORTCULLIS_TEST_ACCOUNT_CALLS'] !== undefined;

for (const consumed of [false, true]) {
  const title = consumed
    ? 'a replica killed between the renewal and the storing: the user is told to connect again'
    : 'a replica killed before the provider has read the refresh token: another replica renews';
  if (!isLong) {
    test.skip(`${title} [npm run test:long]`, () => undefined);
    continue;
  }
  eachServer(test.serial, title, async (t, db) => {
    t.timeout(180_000);
    const w = await world(t, { accessTokenTtl: 2, databaseUrl: db.url });
    const killed = await runGateway(t, {
      DATABASE_URL: db.url,
      MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
      PUBLIC_URL: w.gateway.url,
    });
    await connect(w, w.ann, 'annsaccount');
    const mcp = (url: string) => `${url}/mcp/git`;
    const other = await startGateway(t, db.url, { PUBLIC_URL: w.gateway.url });
    const again = (await open(mcp(other.url), w.ann.api)).session;
    const { session } = await open(mcp(killed.url), w.ann.api);
    t.is(textOf(await call(mcp(killed.url), w.ann.api, session)), 'annsaccount');
    await new Promise((resolve) => setTimeout(resolve, 2_000));
    let reached = (): void => undefined;
    const reaches = new Promise<void>((resolve) => (reached = resolve));
    w.provider.intercept = async (req, res) => {
      if (req.url !== '/token') return false;
      w.provider.intercept = null;
      if (!consumed) {
        reached();
        return true;
      }
      // The answer is made, and the refresh token is used, but nothing of it leaves.
      res.end = ((..._rest: unknown[]) => {
        reached();
        return res;
      }) as typeof res.end;
      return false;
    };
    void call(mcp(killed.url), w.ann.api, session).catch(() => undefined);
    await reaches;
    killed.child.kill('SIGKILL');
    await killed.ended;
    const until = Date.now() + 60_000;
    let answer = await call(mcp(other.url), w.ann.api, again);
    while (/cannot be asked now/.test(answer?.error?.message ?? '') && Date.now() < until) {
      answer = await call(mcp(other.url), w.ann.api, again);
    }
    if (!consumed) {
      t.is(textOf(answer), 'annsaccount');
      return;
    }
    t.regex(answer?.error?.message ?? '', /no longer accepts the account/);
    const { body } = await w.gateway.rest<{ problem: string }[]>(200, 'GET', '/api/connections', { token: w.ann.api });
    t.is(body[0]?.problem, 'interrupted');
    await connect(w, w.ann, 'annsaccount');
    t.is(textOf(await call(mcp(other.url), w.ann.api, again)), 'annsaccount');
  });
}
