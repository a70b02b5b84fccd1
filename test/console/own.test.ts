/** Pages about what belongs to the signed-in user. */
import test from 'ava';
import { modernClient } from '../support/mcp.ts';
import { HOSTILE, scene } from './scene.ts';

interface Denial {
  readonly id: string;
  readonly target_name: string;
  readonly resource_name: string | null;
}

test.serial('users make a token with limits, see it once, and revoke it after a page that says what is lost', async (t) => {
  const { gateway, admin, user, browser } = await scene(t);
  const page = await browser(user);
  const make = { do: 'make', name: HOSTILE, days: '30', endpoints: 'everything' };
  for (const [wrong, field] of [
    [{ name: '' }, 'f-name'],
    [{ endpoints: 'secret' }, 'f-endpoints'],
    [{ days: '31' }, 'f-days'],
    [{ owner: 'team', endpoints: '' }, ''],
    // A right that the user does not have.
    [{ 'right-read': 'yes' }, ''],
  ] as const) {
    const refused = await page.post('/console/tokens', { ...make, ...wrong });
    t.is(refused.status, 400, JSON.stringify(wrong));
    t.notRegex(refused.text, /<img|<script>/);
    if (field !== '') t.true(refused.text.includes(`href="#${field}"`), field);
  }
  const made = await page.post('/console/tokens', make);
  t.is(made.status, 201);
  t.notRegex(made.text, /<img|<script>/);
  const token = /<code class="secret">([^<]*)</.exec(made.text)?.[1] ?? '';
  const rights = (await gateway.rest<{ endpoints: string[] }>(200, 'GET', '/api/auth/rights', { token })).body;
  t.deepEqual(rights.endpoints, ['everything']);
  const { body: tokens } = await gateway.rest<{ id: string; name: string; expires_at: string | null }[]>(
    200,
    'GET',
    '/api/auth/tokens',
    { token: user.token },
  );
  const own = tokens.find(({ name }) => name === HOSTILE);
  t.truthy(own?.expires_at);
  const list = await page.get('/console/tokens');
  t.false(list.text.includes(token));
  t.notRegex(list.text, /<img|<script>/);

  // Nobody revokes the token of somebody else here.
  const others = await browser(admin);
  t.is((await others.post('/console/tokens', { do: 'revoke', id: own?.id ?? '', sure: 'yes' })).status, 400);
  t.is(
    (await page.post('/console/tokens', { do: 'revoke', id: own?.id ?? '', sure: 'yes' }, { origin: 'http://evil.example' }))
      .status,
    403,
  );
  t.regex((await page.post('/console/tokens', { do: 'revoke', id: own?.id ?? '' })).text, /It cannot be brought back/);
  await gateway.rest(200, 'GET', '/api/auth/me', { token });
  t.is(
    (await page.post('/console/tokens', { do: 'revoke', id: own?.id ?? '', sure: 'yes' })).headers.location,
    '/console/tokens?done=revoked',
  );
  await gateway.rest(401, 'GET', '/api/auth/me', { token });
});

test.serial('users see what was denied to them, nothing of others, and not whether a target exists', async (t) => {
  const { gateway, admin, user, token, browser } = await scene(t);
  const { body: secret } = await gateway.rest<{ id: string }>(201, 'POST', '/api/targets', {
    token: admin.token,
    body: { name: 'secret', transport: 'streamable-http', url: 'http://127.0.0.1:9/mcp' },
  });
  const body = { name: 'x', target_id: secret.id, resource_type: 'all', effect: 'deny', priority: 3_000 };
  await gateway.rest(201, 'POST', '/api/policies', {
    token: admin.token,
    body: { ...body, subjects: [{ subject_type: 'everyone' }] },
  });
  for (const name of ['secret', 'nowhere']) await t.throwsAsync(modernClient(t, `${gateway.url}/mcp/${name}`, token));
  const denials = async (who: string) => (await gateway.rest<Denial[]>(200, 'GET', '/api/logs/denials', { token: who })).body;
  const own = await denials(user.token);
  t.true(own.some(({ resource_name }) => resource_name === 'get-env'));
  const rows = (name: string) =>
    own.filter(({ target_name }) => target_name === name).map((row) => ({ ...row, id: '', created_at: '', target_name: '' }));
  t.true(rows('secret').length > 0);
  t.deepEqual(rows('secret'), rows('nowhere'));
  t.deepEqual(await denials(admin.token), []);
  await gateway.rest(400, 'GET', '/api/logs/denials?user_id=x', { token: user.token });
  const page = (await (await browser(user)).get('/console/denied')).text;
  t.regex(page, /get-env/);
  t.notRegex(page, /<img|<script>|No environment/);
  t.regex((await (await browser(admin)).get('/console/denied')).text, /Nothing was denied to you/);
});
