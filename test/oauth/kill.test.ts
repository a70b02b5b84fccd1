/** A replica is killed while it gives out tokens: what it has answered holds at the other one. */
import test from 'ava';
import { eachServer } from '../support/databases/each-engine.ts';
import { runGateway } from '../support/process.ts';
import { world } from '../support/world.ts';
import { begin, codeOf, initialize, openTab, redeem, refresh, register, type Tokens } from './support.ts';

const CLIENTS = 12;
/** The kill comes after so many answers, while the others are under way. */
const ANSWERS = 4;

eachServer(
  test.serial,
  'a killed replica loses no grant and no refresh token that it has answered',
  async (t, { url: database }) => {
    const limits = { CLIENT_REGISTRATION_RATE_LIMIT: '1000', OAUTH_RATE_LIMIT: '10000' };
    const w = await world(t, database, null, { ...limits, MASTER_KEY: Buffer.alloc(32, 7).toString('base64') });
    await w.allow({ name: 'all' });
    const { url } = w.gateway;
    const killed = await runGateway(t, {
      ...limits,
      DATABASE_URL: database,
      MASTER_KEY: Buffer.alloc(32, 7).toString('base64'),
      PUBLIC_URL: url,
    });
    const port = Number(new URL(killed.url).port);
    const tab = openTab(url, () => port);
    await tab.signIn(w.user);
    const flows: { flow: ReturnType<typeof begin>; code: string }[] = [];
    for (let at = 0; at < CLIENTS; at++) {
      const { body: client } = await register(killed.url);
      const flow = begin(url, client.client_id);
      flows.push({ flow, code: codeOf(await tab.answer(await tab.follow(flow.authorizeUrl))) });
    }

    const answered: { clientId: string; tokens: Tokens }[] = [];
    await Promise.all(
      flows.map(async ({ flow, code }) => {
        try {
          let { status, body } = await redeem(killed.url, flow, code);
          // Tokens are rotated until the replica is gone.
          while (status === 200) {
            answered.push({ clientId: flow.clientId, tokens: body });
            if (answered.length === ANSWERS) killed.child.kill('SIGKILL');
            ({ status, body } = await refresh(killed.url, flow.clientId, body.refresh_token ?? ''));
          }
          t.fail(`answered with ${status}: ${JSON.stringify(body)}`);
        } catch {
          // The connection was lost.
        }
      }),
    );
    await killed.ended;
    t.true(answered.length >= ANSWERS);

    const { body: grants } = await w.gateway.rest<{ client: { client_id: string } }[]>(200, 'GET', '/api/auth/grants', {
      token: w.user.token,
    });
    const granted = new Set(grants.map(({ client }) => client.client_id));
    const latest = new Map(answered.map(({ clientId, tokens }) => [clientId, tokens]));
    for (const [clientId, tokens] of latest) {
      t.true(granted.has(clientId));
      t.is((await initialize(w.mcp, tokens.access_token)).status, 200);
      const next = await refresh(url, clientId, tokens.refresh_token ?? '');
      t.is(next.status, 200, JSON.stringify(next.body));
      t.is((await initialize(w.mcp, next.body.access_token)).status, 200);
    }
  },
);
