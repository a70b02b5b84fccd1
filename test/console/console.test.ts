/** The pages of the console, over HTTP. */
import test from 'ava';
import { OPERATIONS } from '../../src/rest/contract.ts';
import type { Browser } from '../browser/browser.ts';
import { eachEngine } from '../support/databases/each-engine.ts';
import { person } from '../support/gateway.ts';
import { HOSTILE, scene } from './scene.ts';

/** The text of a page as a person reads it. */
const textOf = (page: string): string =>
  page
    .replaceAll(/<[^>]*>/g, ' ')
    .replaceAll(/&#(\d+);/g, (_, code) => String.fromCodePoint(Number(code)))
    .replaceAll(/\s+/g, ' ');

async function open(browser: Browser, path: string, status = 200): Promise<string> {
  const page = await browser.get(path);
  if (page.status !== status) throw new Error(`${path}: ${page.status} ${textOf(page.text)}`);
  return page.text;
}

eachEngine(test.serial, 'the pages show policies, decisions, targets, users, changes and replicas', async (t, at) => {
  const { gateway, admin, user, target, browser } = await scene(t, at.url);
  const { token } = admin;
  const console_ = await browser(admin);
  t.is((await console_.get('/console')).headers.location, '/console/overview');

  const list = await open(console_, '/console/policies');
  const { body: ordered } = await gateway.rest<{ position: number; policy: { id: string; name: string } }[]>(
    200,
    'GET',
    '/api/policies/order',
    { token },
  );
  t.deepEqual(
    ordered.map(({ position, policy }) => `${position} ${policy.name}`.slice(0, 12)),
    ['1 No environ', '2 Old', ...ordered.slice(2).map(({ position, policy }) => `${position} ${policy.name}`.slice(0, 12))],
  );
  const shown = [...list.matchAll(/href="\/console\/policies\/([0-9a-f-]{36})"/g)].map(([, id]) => id);
  t.deepEqual(
    shown,
    ordered.map(({ policy }) => policy.id),
  );
  t.regex(textOf(list), /Default deny After number \d+: what no policy allows is denied/);
  t.regex(textOf(await open(console_, '/console/policies?effect=deny')), /No environment(?!.*Everyone may echo)/);
  t.regex(textOf(await open(console_, '/console/policies?enabled=false&text=OLD')), /Old disabled(?!.*Everyone may echo)/);
  t.regex(textOf(await open(console_, '/console/policies?text=no+such')), /No policy matches the filter/);
  await open(console_, '/console/policies?done=constructor');
  t.regex(textOf(await open(console_, '/console/policies?effect=maybe', 400)), /This does not work.*effect/);
  t.regex(textOf(await open(console_, '/console/policies/0190163d-8694-739b-aea5-966c26f8ad90', 404)), /Not found/);

  t.regex(textOf(await open(console_, '/console/history')), /Revision 1 .* admin@example.com 4 created/);
  const revision = textOf(await open(console_, '/console/history/1'));
  t.regex(revision, /Looser: .*Everyone may echo created .*For example .* Default deny before, Allow after/);
  await open(console_, '/console/history/99', 404);
  // The paths of other operations are no ids.
  for (const path of ['policies/order', 'policies/export', 'policies/lint', 'policies/access', 'log/checkpoint'])
    t.regex(textOf(await open(console_, `/console/${path}`, 404)), /Not found/, path);
  for (const id of ['0', '-1', '01', '1e3', 'x']) await open(console_, `/console/history/${id}`, 404);

  const log = await open(console_, '/console/log');
  t.regex(textOf(log), /Default deny .* Deny .* Allow /);
  const { body: entries } = await gateway.rest<{ id: string; resource_name: string; reason: string }[]>(200, 'GET', '/api/logs', {
    token,
  });
  const denied = entries.find(({ resource_name }) => resource_name === HOSTILE);
  const why = textOf(await open(console_, `/console/log/${denied?.id}`));
  t.regex(why, /Why was this denied\? Default deny no policy matched/);
  t.regex(why, /decide it as they did then.*1 policy that is disabled.*does not match the name.*No policy matches/);
  t.regex(
    textOf(await open(console_, `/console/log?effect=deny&resource_name=get-env`)),
    /No environment Draft .* not forwarded/,
  );
  t.regex(textOf(await open(console_, '/console/log?target_name=nowhere')), /No decision was found/);

  t.regex(textOf(await open(console_, '/console/targets')), /\/mcp\/everything/);
  t.regex(textOf(await open(console_, `/console/targets/${target.id}`)), /Health.*Its decisions/);
  t.regex(textOf(await open(console_, '/console/users')), new RegExp(`${user.email}.*enabled`));
  t.regex(textOf(await open(console_, `/console/users/${user.id}`)), /What the user may use now.*echo.*Everyone may echo/);
  t.regex(textOf(await open(console_, '/console/changes')), /policies\.apply|policy\.create/);
  t.regex(textOf(await open(console_, '/console/replicas')), /this one.*has the newest state/);

  // A change outside of a file.
  const old = ordered.find(({ policy }) => policy.name === 'Old')?.policy.id;
  await gateway.rest(200, 'PUT', `/api/policies/${old}?override=true`, { token, body: { description: 'x' } });
  for (const path of ['', `/${old}`])
    t.regex(
      textOf(await open(console_, `/console/policies${path}`)),
      /default\/old(\.yaml)? changed outside of its file since revision \d/,
    );
  t.regex(textOf(await open(console_, '/console/changes')), /Old policy\.update outside of its file/);

  // A change without content, and one of something without a name.
  await gateway.rest(200, 'POST', `/api/targets/${target.id}/check`, { token });
  const right = { right: 'read', subject_type: 'group', subject_value: 'auditors' };
  await gateway.rest(201, 'POST', '/api/rights', { token, body: right });
  const changes = textOf(await open(console_, '/console/changes'));
  t.regex(changes, /read for group auditors right\.give .* What was made/);
  t.regex(changes, new RegExp(`${target.id} target\\.check (?:(?!What).)* Old policy\\.update`));
});

test.serial('texts of strangers do not become markup', async (t) => {
  const { admin, gateway, browser, target, user } = await scene(t);
  await gateway.rest(200, 'PUT', `/api/targets/${target.id}`, { token: admin.token, body: { description: HOSTILE } });
  await gateway.rest(200, 'PUT', `/api/users/${user.id}`, { token: admin.token, body: { groups: [HOSTILE], role: HOSTILE } });
  const console_ = await browser(admin);
  const { body: policies } = await gateway.rest<{ id: string; name: string }[]>(200, 'GET', '/api/policies', {
    token: admin.token,
  });
  const hostile = policies.find(({ name }) => name.includes('<img'));
  const { body: entries } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/logs', { token: admin.token });
  const paths = [
    ...['policies', `policies/${hostile?.id}`, 'log', ...entries.map(({ id }) => `log/${id}`), 'targets'],
    ...[
      `targets/${target.id}`,
      'users',
      `users/${user.id}`,
      'changes',
      'history/1',
      `log?resource_name=${encodeURIComponent(HOSTILE)}`,
    ],
  ];
  let seen = 0;
  for (const path of paths) {
    const page = await open(console_, `/console/${path}`);
    t.notRegex(page, /<img|<script>|onerror="/);
    if (textOf(page).includes('<script>alert(2)</script>')) seen++;
  }
  t.true(seen >= 8, `${seen} pages show it`);
});

test.serial('a page shows nothing that its operation forbids', async (t) => {
  const { gateway, admin, target, user, browser } = await scene(t);
  const plain = await person(gateway, 'plain@example.com');
  const console_ = await browser(plain);
  t.is((await console_.get('/console')).headers.location, '/console/mine');
  const { body: entries } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/logs', { token: admin.token });
  const { body: policies } = await gateway.rest<{ id: string }[]>(200, 'GET', '/api/policies', { token: admin.token });
  const pages = [
    'policies',
    `policies/${policies[0]?.id}`,
    'log',
    `log/${entries[0]?.id}`,
    'users',
    `users/${user.id}`,
    'changes',
    'history',
    'history/1',
    'replicas',
    'findings',
    'access?target=everything',
    'access?who=everyone',
  ];
  // The overview has nothing of what the user may not see.
  const overview = textOf(await open(console_, '/console/overview'));
  t.notRegex(overview, /echo|everything|Decisions|What to do next|policies? takes|example\.com(?<!plain@example\.com)/);
  for (const path of [...pages, 'targets', `targets/${target.id}`]) {
    const page = textOf(await open(console_, `/console/${path}`, 403));
    t.regex(page, /You may not see this/);
    t.notRegex(page, /echo|example\.com(?<!plain@example\.com)/);
  }

  // A team plans its own policies, and sees no other.
  await gateway.rest(201, 'PUT', '/api/owners/team', { token: admin.token, body: { limits: {} } });
  const right = { subject_type: 'user', subject_value: plain.id, right: 'policies:plan', owner: 'team' };
  await gateway.rest(201, 'POST', '/api/rights', { token: admin.token, body: right });
  t.is((await console_.get('/console')).headers.location, '/console/policies');
  t.regex(textOf(await open(console_, '/console/policies')), /There is no policy/);
  await open(console_, `/console/policies/${policies[0]?.id}`, 403);

  // A session that has ended, and a user who is disabled, see nothing at once.
  await gateway.rest(200, 'PUT', `/api/users/${plain.id}`, { token: admin.token, body: { enabled: false } });
  t.regex((await console_.get('/console/policies')).headers.location ?? '', /^\/signin\?return=%2Fconsole%2Fpolicies/);
});

test.serial('a cookie gives the REST API nothing, and the console takes no token', async (t) => {
  const { admin, gateway, browser } = await scene(t);
  const console_ = await browser(admin);
  t.is((await console_.get('/api/policies/order')).status, 401);
  const answer = await fetch(`${gateway.url}/console/policies`, {
    redirect: 'manual',
    headers: { authorization: `Bearer ${admin.token}` },
  });
  t.is(answer.status, 303);
});

test('the menu names operations of the contract', async (t) => {
  const { readFileSync } = await import('node:fs');
  const source = readFileSync(new URL('../../src/console/routes.ts', import.meta.url), 'utf8');
  const ids = new Set(Object.values(OPERATIONS).map(({ id }) => id));
  const named = [...source.matchAll(/operation: '(\w+)'/g)].map(([, id]) => id ?? '');
  t.true(named.length >= 6);
  for (const id of named) t.true(ids.has(id), id);
});
