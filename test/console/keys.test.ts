/** The keys that sign tokens. */
import test from 'ava';
import { browse, signIn } from '../browser/browser.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { apiToken, person, startGateway } from '../support/gateway.ts';

interface Key {
  readonly kid: string;
  readonly retired_at: string | null;
  readonly api_tokens: number;
}

eachEngine(
  test.serial,
  'an administrator sees what each key signed, and makes a new one after seeing what ends',
  async (t, { url }) => {
    const gateway = await startGateway(t, url);
    const admin = await person(gateway, 'admin@example.com');
    const user = await person(gateway, 'user@example.com');
    const { token } = admin;
    const first = await apiToken(gateway, user);
    await gateway.rest(201, 'POST', '/api/auth/tokens', {
      ...{ token: user.token, body: { name: 'short', expires_at: new Date(Date.now() + 3_600_000).toISOString() } },
    });
    const { body: tokens } = await gateway.rest<{ id: string; name: string }[]>(200, 'GET', '/api/auth/tokens', {
      token: user.token,
    });
    const revoked = tokens.find(({ name }) => name === 'short')?.id;
    const keys = async (): Promise<Key[]> => (await gateway.rest<Key[]>(200, 'GET', '/api/keys', { token })).body;
    const [own, ...none] = await keys();
    t.deepEqual([own?.retired_at, own?.api_tokens, none], [null, 2, []]);
    await gateway.rest(204, 'DELETE', `/api/auth/tokens/${revoked}`, { token: user.token });
    t.is((await keys())[0]?.api_tokens, 1);
    await gateway.rest(403, 'GET', '/api/keys', { token: user.token });

    const console_ = browse(gateway);
    await signIn(console_, admin);
    t.regex((await console_.get('/console/keys')).text, new RegExp(`${own?.kid}.*signs`, 's'));
    const asked = await console_.post('/console/keys', { do: 'rotate' });
    t.regex(asked.text, /Make a new signing key\?.*end within 12 hours/s);
    t.is((await keys()).length, 1, 'the page before it changes nothing');
    const foreign = await console_.post('/console/keys', { do: 'rotate', sure: 'yes' }, { origin: 'https://evil.example' });
    t.is(foreign.status, 403);
    t.is((await console_.post('/console/keys', { do: 'explode' })).status, 400);
    t.is((await console_.post('/console/keys', { do: 'rotate', sure: 'yes' })).headers.location, '/console/keys?done=rotated');
    const [next, old] = await keys();
    t.deepEqual([next?.retired_at, next?.api_tokens, old?.kid, old?.api_tokens], [null, 0, own?.kid, 1]);
    t.not(old?.retired_at, null);
    t.is((await console_.get('/console/keys')).status, 200, 'the browser stays signed in');
    await gateway.rest(200, 'GET', '/api/auth/me', { token: first.token });
    const plain = browse(gateway);
    await signIn(plain, user);
    t.is((await plain.get('/console/keys')).status, 403);
    t.is((await plain.post('/console/keys', { do: 'rotate', sure: 'yes' })).status, 403);
  },
);
