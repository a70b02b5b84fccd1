/** The pages of MCP sessions, and what they do to a client. */
import test from 'ava';
import { browse, signIn } from '../browser/browser.ts';
import { browserTest } from '../support/chromium.ts';
import { apiToken, person } from '../support/gateway.ts';
import { sessionClient } from '../support/mcp.ts';
import { world } from '../support/world.ts';
import { HOSTILE } from './scene.ts';

const ECHO = { name: 'echo', arguments: { message: 'x' } };

async function withSessions(t: Parameters<typeof world>[0]) {
  const w = await world(t);
  await w.allow({ name: 'All', resource_type: 'all' });
  const other = await person(w.gateway, 'other@example.com');
  const [mine, theirs, everywhere] = [
    await sessionClient(t, w.mcp, w.token),
    await sessionClient(t, w.mcp, (await apiToken(w.gateway, other)).token),
    await sessionClient(t, `${w.gateway.url}/mcp`, w.token),
  ];
  for (const client of [mine, theirs]) await client.callTool(ECHO);
  const sessions = async (query = '') =>
    (await w.gateway.rest<{ id: string; user_id: string }[]>(200, 'GET', `/api/sessions${query}`, { token: w.admin.token })).body;
  const console_ = browse(w.gateway);
  await signIn(console_, w.admin);
  return { ...w, other, mine, theirs, everywhere, sessions, console_ };
}

test.serial('an administrator lists, reconnects and ends the sessions of a user and of a target', async (t) => {
  const { gateway, user, other, target, mine, theirs, sessions, console_ } = await withSessions(t);
  const ids = (page: string) => [...page.matchAll(/<span class="sub"><code>([0-9a-f-]{36})<\/code>/g)].map(([, id]) => id).sort();
  for (const query of ['', `?user_id=${user.id}`, `?user_id=${other.id}`, `?target_id=${target.id}`]) {
    const page = await console_.get(`/console/sessions${query}`);
    t.is(page.status, 200);
    t.deepEqual(ids(page.text), (await sessions(query)).map(({ id }) => id).sort(), query);
  }
  t.is((await sessions()).length, 3);
  t.is((await console_.get('/console/sessions?user_id=x')).status, 400);
  t.regex((await console_.get(`/console/users/${user.id}`)).text, /\/console\/sessions\?user_id=/);
  t.regex((await console_.get(`/console/targets/${target.id}`)).text, /\/console\/sessions\?target_id=/);

  const recycled = await console_.post('/console/sessions', { do: 'recycle', user_id: user.id });
  t.is(recycled.headers.location, `/console/sessions?user_id=${user.id}&done=recycled`);
  await t.notThrowsAsync(mine.callTool(ECHO));
  const all = await console_.post('/console/sessions', { do: 'recycle' });
  t.is(all.status, 400, 'without a filter, nobody is disturbed');

  const [own] = await sessions(`?user_id=${other.id}`);
  const end = { do: 'end', id: own?.id ?? '', user_id: other.id };
  const sure = await console_.post('/console/sessions', end);
  t.regex(sure.text, /End the session\?/);
  t.is((await sessions()).length, 3);
  const ended = await console_.post('/console/sessions', { ...end, sure: 'yes', reason: 'too long' });
  t.is(ended.headers.location, `/console/sessions?user_id=${other.id}&done=ended`, ended.text);
  t.deepEqual(await sessions(`?user_id=${other.id}`), []);
  await t.throwsAsync(theirs.callTool(ECHO));
  t.is((await console_.post('/console/sessions', { ...end, sure: 'yes' })).status, 404);
  for (const id of ['', '../x', HOSTILE])
    t.is((await console_.post('/console/sessions', { do: 'end', id, sure: 'yes' })).status, 400);

  const plain = browse(gateway);
  await signIn(plain, user);
  t.is((await plain.get('/console/sessions')).status, 403);
  t.is((await plain.post('/console/sessions', { do: 'recycle', user_id: other.id })).status, 403);
  t.is(
    (await console_.post('/console/sessions', { do: 'recycle', user_id: user.id }, { origin: 'https://evil.example' })).status,
    403,
  );
});

browserTest('a session is ended by keyboard alone and without JavaScript', async (t, open) => {
  const { gateway, admin, other, sessions } = await withSessions(t);
  const page = await (await open({ javaScriptEnabled: false })).newPage();
  await page.goto(`${gateway.url}/console/sessions?user_id=${other.id}`);
  await page.getByLabel('E-mail').fill(admin.email);
  await page.getByLabel('Password').fill(admin.password);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.waitForURL(/\/console\/sessions/);
  for (const name of [/^End session/, /^End session/]) {
    await page.getByRole('button', { name }).focus();
    await page.keyboard.press('Enter');
    await page.waitForLoadState();
  }
  await page.waitForURL(/done=ended$/);
  t.true(await page.getByText('The session is ended.').isVisible());
  t.deepEqual(await sessions(`?user_id=${other.id}`), []);
});
