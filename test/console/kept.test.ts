/** A form that is sent after the session has ended, and users whom forms name by their e-mail. */
import test from 'ava';
import type { PolicyJson } from '../../src/policies/schema.ts';
import { browserTest } from '../support/chromium.ts';
import { HOSTILE, scene } from './scene.ts';
import { start } from './start.ts';

const POLICY = {
  ...{ description: '', effect: 'allow', target_id: '', resource_type: 'tool', resource_pattern: '^x$', priority: '7' },
  ...{ subjects: 'everyone', enabled: 'yes', do: 'save' },
};

test.serial('after the end of a session, a page keeps the form that was sent, and no secret', async (t) => {
  const w = await scene(t);
  const console_ = await w.browser(w.admin);
  await w.gateway.rest(204, 'DELETE', '/api/auth/browser-sessions', { token: w.admin.token });
  const kept = await console_.post('/console/policies/new', { name: HOSTILE, ...POLICY });
  t.is(kept.status, 403);
  t.notRegex(kept.text, /<img|<script>/);
  t.regex(kept.text, /Your session has ended.*name="name" value="&#60;img.*name="priority" value="7"/s);
  t.true(kept.text.includes('action="/console/policies/new"'));
  for (const secret of ['password', 'value']) {
    const left = await console_.post('/console/users/new', { email: 'a@example.com', [secret]: 'a long secret' });
    t.is(left.status, 303, secret);
    t.notRegex(left.text, /a long secret/);
  }
  // A page of a different origin cannot make the gateway show its form.
  const foreign = await console_.post('/console/policies/new', { ...POLICY, name: 'x' }, { origin: 'http://evil.example' });
  t.is(foreign.status, 403);
  t.notRegex(foreign.text, /name="priority"/);
});

browserTest('a policy that was written before the session ended is saved after the next sign-in', async (t, open) => {
  const w = await scene(t);
  const context = await open();
  const page = await start(t, context, w.gateway.url, w.admin);
  await page.goto(`${w.gateway.url}/console/policies/new`);
  await page.getByLabel('Name', { exact: true }).fill('Written for an hour');
  await page.getByLabel('Applies to').fill('user: USER@example.com');
  await w.gateway.rest(204, 'DELETE', '/api/auth/browser-sessions', { token: w.admin.token });
  await page.getByRole('button', { name: 'Save', exact: true }).click();
  await page.getByText('Your session has ended.').waitFor();
  const [again] = await Promise.all([context.waitForEvent('page'), page.getByRole('link', { name: '1. Sign in again' }).click()]);
  await again.getByLabel('E-mail').fill(w.admin.email);
  await again.getByLabel('Password').fill(w.admin.password);
  await again.getByRole('button', { name: 'Sign in' }).click();
  await again.getByText('You are signed in again').waitFor();
  await page.getByRole('button', { name: '2. Go on' }).click();
  await page.waitForURL(/done=made$/);
  const { body } = await w.gateway.rest<PolicyJson[]>(200, 'GET', '/api/policies', { token: w.admin.token });
  const made = body.find(({ name }) => name === 'Written for an hour');
  t.is(made?.subjects[0]?.subject_value, w.user.id, 'the policy names the user by the id');
});

test.serial('pages take and show users by their e-mail', async (t) => {
  const w = await scene(t);
  const console_ = await w.browser(w.admin);
  const right = { do: 'give', right: 'read', subject_type: 'user' };
  const wrong = await console_.post('/console/rights', { ...right, subject_value: 'nobody@example.com' });
  t.is(wrong.status, 400);
  t.regex(wrong.text, /is no e-mail or id of a user/);
  t.is((await console_.post('/console/rights', { ...right, subject_value: 'User@Example.com' })).status, 303);
  t.regex((await console_.get('/console/rights')).text, new RegExp(`href="/console/users/${w.user.id}">user@example\\.com<`));
  const log = await console_.get('/console/log?user=User%40example.com');
  t.regex(log.text, /get-env/);
  t.regex(log.text, /value="User@example\.com"/);
  t.regex((await console_.get('/console/log?user=nobody%40example.com')).text, /No user has the e-mail/);
  const byId = await console_.get(`/console/log?user_id=${w.user.id}`);
  t.regex(byId.text, new RegExp(`name="user" value="${w.user.id}"`));
  const credential = { do: 'set', subject_type: 'user', type: 'bearer', value: 'not shown' };
  const at = `/console/targets/${w.target.id}/credentials`;
  t.is((await console_.post(at, { ...credential, subject_value: 'nobody@example.com' })).status, 400);
  t.is((await console_.post(at, { ...credential, subject_value: 'user@example.com' })).headers.location, `${at}?done=set`);
  const page = await console_.get(`${at}?done=set`);
  t.regex(page.text, /The credential is set.*user user@example\.com/s);
  const drop = { do: 'delete', subject_type: 'user', subject_value: w.user.id, key: 'authorization' };
  t.regex((await console_.post(at, drop)).text, /no longer sends it/);
  t.regex((await console_.get(at)).text, /user user@example\.com/, 'the page before it deletes nothing');
  t.is((await console_.post(at, { ...drop, sure: 'yes' })).headers.location, `${at}?done=deleted`);
});
