/** A whole sign-in, step by step, on each kind of database. */
import test from 'ava';
import { eachEngine } from '../support/databases/each-engine.ts';
import { world } from '../support/world.ts';
import { connected, initialize, payloadOf, refresh } from './support.ts';

eachEngine(
  test.serial,
  'a client that knows only the address signs its user in, calls, and refreshes',
  async (t, { url: database }) => {
    const { gateway, user, allow, mcp } = await world(t, database);
    await allow({ name: 'all' });
    const refused = await initialize(mcp, null);
    t.is(refused.status, 401);
    t.is(
      refused.headers.get('www-authenticate'),
      `Bearer resource_metadata="${gateway.url}/.well-known/oauth-protected-resource/mcp/everything", scope="mcp"`,
    );
    const { clientId, tokens } = await connected(gateway, user);
    t.like(tokens, { token_type: 'Bearer', expires_in: 900, scope: 'mcp' });
    t.like(payloadOf(tokens.access_token), {
      iss: gateway.url,
      aud: `${gateway.url}/mcp/everything`,
      sub: user.id,
      client_id: clientId,
      scope: 'mcp',
    });
    const opened = await initialize(mcp, tokens.access_token);
    t.is(opened.status, 200);
    t.truthy((opened.body as { result?: object }).result);

    const { status, body: next } = await refresh(gateway.url, clientId, tokens.refresh_token ?? '');
    t.is(status, 200);
    t.not(next.refresh_token, tokens.refresh_token);
    t.is((await initialize(mcp, next.access_token)).status, 200);
  },
);
