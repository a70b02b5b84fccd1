import test from 'ava';
import { COOKIE } from '../../src/browser/sessions.ts';
import { person, startGateway } from '../support/gateway.ts';
import { browse, FORM, signIn } from './browser.ts';

test.serial('a user signs in with a form, sees the account page, and signs out', async (t) => {
  const gateway = await startGateway(t);
  const ann = await person(gateway, 'ann@example.com');
  const browser = browse(gateway);

  const first = await browser.get('/account');
  t.deepEqual([first.status, first.headers.location], [303, '/signin?return=%2Faccount']);
  const form = await browser.get(first.headers.location ?? '');
  t.is(form.status, 200);
  t.regex(form.text, /<form [^>]*method="post" action="\/signin">/);
  t.is(form.headers['set-cookie'], undefined);

  const signedIn = await browser.post('/signin', { email: ' ANN@example.com ', password: ann.password, return: '/account' });
  t.deepEqual([signedIn.status, signedIn.headers.location], [303, '/account']);
  t.deepEqual(signedIn.headers['set-cookie'], [`${COOKIE}=${browser.cookie()}; Path=/; Secure; HttpOnly; SameSite=Lax`]);
  t.regex(browser.cookie() ?? '', /^[A-Za-z0-9_-]{43}$/);
  const account = await browser.get('/account');
  t.is(account.status, 200);
  t.true(account.text.includes('ann@example.com') && account.text.includes('this browser'));
  // Who is signed in needs no form, except to sign in again.
  t.is((await browser.get('/signin?return=/account')).headers.location, '/account');
  t.regex((await browser.get('/signin?return=/account&again=yes')).text, /Sign in again as ann@example\.com/);

  const old = browser.cookie();
  const left = await browser.post('/account/sign-out');
  t.deepEqual([left.status, left.headers.location], [303, '/signin?left=yes']);
  t.is(left.headers['clear-site-data'], '"cache", "storage"');
  t.is(browser.cookie(), null);
  t.regex((await browser.get('/signin?left=yes')).text, /You are signed out/);
  browser.setCookie(old);
  t.is((await browser.get('/account')).status, 303);
  t.is((await browser.post('/account/sign-out')).status, 303);
});

test.serial('the cookie counts for pages alone: /api and /mcp do not read it', async (t) => {
  const gateway = await startGateway(t);
  const ann = await person(gateway, 'ann@example.com');
  const browser = browse(gateway);
  await signIn(browser, ann);
  for (const path of ['/api/auth/me', '/api/users', '/api/auth/browser-sessions', '/metrics/', '/mcp', '/mcp/x']) {
    const { status } = await browser.get(path);
    t.true([401, 404].includes(status), `${path}: ${status}`);
  }
  for (const path of ['/api/auth/tokens', '/api/auth/logout', '/mcp']) {
    t.is((await browser.post(path, {}, { 'content-type': 'application/json' })).status, 401, path);
  }
});

test.serial('a form of a different page, or without the word of the browser, changes nothing', async (t) => {
  const gateway = await startGateway(t, null, { ALLOWED_ORIGINS: 'https://app.example' });
  const ann = await person(gateway, 'ann@example.com');
  const browser = browse(gateway);
  await signIn(browser, ann);
  const attacks: readonly Record<string, string | string[]>[] = [
    { origin: [] },
    { origin: 'null' },
    { origin: 'https://evil.example' },
    // REST allows this origin, but a page there must not sign anybody in or out.
    { origin: 'https://app.example' },
    { origin: gateway.url.replace('127.0.0.1', 'localhost') },
    { origin: gateway.url.replace(/\d+$/, '9791') },
    { origin: gateway.url.replace('http:', 'https:') },
    { origin: [gateway.url, gateway.url] },
    { 'sec-fetch-site': [] },
    { 'sec-fetch-site': 'same-site' },
    { 'sec-fetch-site': 'cross-site' },
    { 'sec-fetch-site': 'none' },
    { 'sec-fetch-site': ['same-origin', 'cross-site'] },
    { origin: 'null', 'sec-fetch-site': 'cross-site' },
  ];
  const before = browser.cookie();
  for (const headers of attacks) {
    const name = JSON.stringify(headers);
    // Login CSRF would sign the victim in as the attacker.
    const paths = ['/signin', '/account/sign-out', '/account/sessions/end-others', '/console/tokens'];
    for (const path of paths) {
      const page = await browser.post(path, { email: ann.email, password: ann.password, name: 'stolen' }, headers);
      t.is(page.status, 403, `${name} ${path}`);
      t.is(page.headers['set-cookie'], undefined, name);
      t.is(page.headers['access-control-allow-origin'], undefined, name);
    }
  }
  t.is(browser.cookie(), before);
  const account = await browser.get('/account');
  t.is(account.status, 200);
  t.false(account.text.includes('stolen'));
  t.is((await browser.ask('OPTIONS', '/signin', { origin: gateway.url, 'access-control-request-method': 'POST' })).status, 405);
  for (const method of ['PUT', 'DELETE', 'PATCH'])
    t.is((await browser.ask(method, '/signin', { origin: gateway.url })).status, 405);
  t.is((await browser.get('/account/sign-out')).status, 405);
});

test.serial('only forms are read, each field once, and small ones', async (t) => {
  const gateway = await startGateway(t);
  const ann = await person(gateway, 'ann@example.com');
  const browser = browse(gateway);
  const headers = { origin: gateway.url, 'sec-fetch-site': 'same-origin', 'content-type': FORM };
  const raw = (body: string, more: Record<string, string> = {}) => browser.ask('POST', '/signin', { ...headers, ...more }, body);
  for (const type of ['application/json', 'text/plain', 'multipart/form-data; boundary=x', `${FORM}; charset=latin1`]) {
    t.is((await raw('email=a', { 'content-type': type })).status, 415, type);
  }
  const account = new URLSearchParams({ email: ann.email, password: ann.password }).toString();
  t.is((await raw(`${account}&email=b`)).status, 400);
  t.is((await raw(`${account}&%65mail=b`)).status, 400);
  t.is((await raw(`${account}&x=%ff`)).status, 400);
  t.is((await raw(`${account}&__proto__=x&constructor=y`)).status, 400);
  t.is((await raw(`return=${'a'.repeat(20_000)}`)).status, 413);
  t.is((await browser.ask('GET', '/signin', {}, 'x=1')).status, 400);
  t.is(browser.cookie(), null);
  t.is((await raw(account)).status, 303);
});

test.serial('an unknown e-mail, a wrong password and a disabled user get the same page', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const ann = await person(gateway, 'ann@example.com');
  const off = await person(gateway, 'off@example.com');
  await gateway.rest(200, 'PUT', `/api/users/${off.id}`, { token: admin.token, body: { enabled: false } });
  const shown = async (email: string, password: string) => {
    const page = await browse(gateway).post('/signin', { email, password });
    t.is(page.status, 403);
    t.is(page.headers['www-authenticate'], undefined);
    t.is(page.headers['set-cookie'], undefined);
    t.regex(page.text, /The e-mail or the password is wrong\./);
    t.false(page.text.includes(password));
    return page.text.replaceAll(email, '');
  };
  const [unknown, wrong, disabled] = [
    await shown('nobody@example.com', ann.password),
    await shown(ann.email, 'not the password'),
    await shown(off.email, off.password),
  ];
  t.is(unknown, wrong);
  t.is(disabled, wrong);
  const empty = await browse(gateway).post('/signin', { email: '', password: '' });
  t.is(empty.status, 400);
  t.regex(empty.text, /The e-mail is missing\.[\s\S]*The password is missing\./);
});

test.serial('a sign-in page and POST /api/auth/login share the limit on tries', async (t) => {
  const gateway = await startGateway(t, null, { LOGIN_RATE_LIMIT: '18' });
  const ann = await person(gateway, 'ann@example.com');
  const browser = browse(gateway);
  const statuses: number[] = [];
  for (let tried = 0; tried < 4; tried++)
    statuses.push((await browser.post('/signin', { email: ann.email, password: 'wrong' })).status);
  // A sixth of the limit is for one e-mail. The registration and the login of Ann have used two.
  t.deepEqual(statuses, [403, 429, 429, 429]);
  const limited = await browser.post('/signin', { email: ann.email, password: ann.password });
  t.is(limited.status, 429);
  t.regex(String(limited.headers['retry-after']), /^\d+$/);
  t.regex(limited.text, /try again in \d+ s/);
  await gateway.rest(429, 'POST', '/api/auth/login', { body: { email: ann.email, password: ann.password } });
});

test.serial('after the sign-in, the gateway redirects the browser only to its own paths', async (t) => {
  const gateway = await startGateway(t);
  const ann = await person(gateway, 'ann@example.com');
  const goesTo = async (returnTo: string) => {
    const page = await signIn(browse(gateway), ann, returnTo);
    return page.status === 200 ? /content="0;url=([^"]*)"/.exec(page.text)?.[1] : page.headers.location;
  };
  for (const path of ['/account', '/account?done=x', '/console/policies?page=2&q=%3Ca%3E']) t.is(await goesTo(path), path);
  const authorization = '/oauth/authorize?redirect_uri=https%3A%2F%2Fclient.example%2Fcb&state=a';
  t.is(await goesTo(authorization), authorization.replaceAll('&', '&#38;'));
  const attacks = [
    ...[
      '//evil.example',
      '/\\evil.example',
      '\\\\evil.example',
      'https://evil.example',
      'https:evil.example',
      'javascript:alert(1)',
      '',
    ],
    ...[
      '/%2f%2fevil.example',
      '/account/..//evil.example',
      '/account//evil.example',
      '/account/../api/users',
      '/account/./x',
      '/account/%2e%2e/x',
    ],
    ...[
      '/account\r\nSet-Cookie: a=b',
      '/account%0d%0aSet-Cookie: a=b',
      '/account\t',
      ' /account',
      '/account#@evil.example',
      '/accountant',
    ],
    ...[
      '/api/users',
      '/mcp',
      '/signin?return=/account',
      '/',
      '/account\\evil',
      '/account?x="><script>',
      '/oauth/%5cevil.example',
    ],
    ...[
      '/ACCOUNT',
      '/account@evil.example',
      '/account:80@evil.example',
      `/account?${'a'.repeat(9_000)}`,
      '/account\u0000',
      '/account?\u2028',
    ],
  ];
  for (const returnTo of attacks) {
    t.is(await goesTo(returnTo), '/account', returnTo);
    const form = await browse(gateway).get(`/signin?return=${encodeURIComponent(returnTo)}`);
    t.regex(form.text, /name="return" value="\/account"/, returnTo);
  }
  t.regex((await browse(gateway).get('/signin?return=/oauth/a&return=//evil')).text, /name="return" value="\/account"/);
});

test.serial('a session that an attacker has planted is not the one that a sign-in makes', async (t) => {
  const gateway = await startGateway(t);
  const ann = await person(gateway, 'ann@example.com');
  const mallory = await person(gateway, 'mallory@example.com');
  // The attacker knows a value that was never given out, and one that is the attacker's own session.
  const planted = 'A'.repeat(43);
  const own = browse(gateway);
  await signIn(own, mallory);
  for (const value of [planted, own.cookie() ?? '']) {
    const victim = browse(gateway);
    victim.setCookie(value);
    await signIn(victim, ann);
    t.not(victim.cookie(), value);
    const attacker = browse(gateway);
    attacker.setCookie(value);
    t.is((await attacker.get('/account')).status, 303);
  }
  // Signing in again gives a new value, and the old one ends.
  const victim = browse(gateway);
  await signIn(victim, ann);
  const old = victim.cookie();
  await signIn(victim, ann);
  t.not(victim.cookie(), old);
  victim.setCookie(old);
  t.is((await victim.get('/account')).status, 303);
});

test.serial('several cookies of the name, or a value of a different form, count as none', async (t) => {
  const gateway = await startGateway(t);
  const ann = await person(gateway, 'ann@example.com');
  const browser = browse(gateway);
  await signIn(browser, ann);
  const good = `${COOKIE}=${browser.cookie()}`;
  const planted = `${COOKIE}=${'A'.repeat(43)}`;
  const status = async (cookie: string) => (await browser.get('/account', { cookie })).status;
  t.is(await status(good), 200);
  t.is(await status(`theme=dark; ${good}; other=1`), 200);
  for (const cookie of [
    ...[
      `${good}; ${planted}`,
      `${planted}; ${good}`,
      `${good}; ${good}`,
      `${good}x`,
      `"${good}"`,
      `${COOKIE}="${browser.cookie()}"`,
      `${COOKIE}=`,
    ],
    ...[
      good.replace('__Host-', '__host-'),
      good.replace('__Host-', '__Secure-'),
      good.replace('__Host-', ''),
      `x${good}`,
      `${COOKIE} x=1`,
    ],
    ...[`${COOKIE}=' or 1=1 --`, `${COOKIE}=%`],
  ]) {
    t.is(await status(cookie), 303, cookie);
  }
});

test.serial('every page has the headers that protect it, and its style sheet may be kept for good', async (t) => {
  const gateway = await startGateway(t);
  const ann = await person(gateway, 'ann@example.com');
  const browser = browse(gateway);
  const anonymous = [
    await browser.get('/signin'),
    await browser.get('/account/nothing'),
    await browser.post('/signin', {}),
    await browser.get('/console/nothing'),
  ];
  await signIn(browser, ann);
  const [, style = ''] = /<link rel="stylesheet" href="([^"]+)"/.exec(anonymous[0]?.text ?? '') ?? [];
  for (const { status, headers, text } of [
    ...anonymous,
    await browser.get('/account'),
    await browser.get('/console/policies'),
    await browser.get('/', { accept: 'text/html' }),
  ]) {
    const policy = String(headers['content-security-policy']);
    for (const directive of [
      "default-src 'none'",
      "script-src 'self'",
      "style-src 'self'",
      "frame-ancestors 'none'",
      "form-action 'self'",
      "base-uri 'none'",
    ])
      t.true(policy.split('; ').includes(directive), `${status} ${directive}`);
    t.is(headers['cross-origin-opener-policy'], 'same-origin');
    t.is(headers['x-frame-options'], 'DENY');
    t.is(headers['referrer-policy'], 'same-origin');
    t.is(headers['cache-control'], 'no-store');
    t.is(headers['content-type'], 'text/html; charset=utf-8');
    // The console's own script is a file.
    t.notRegex(text, /<script(?! type="module" src="\/console\/assets\/)|style=|javascript:/i);
  }
  t.deepEqual(
    anonymous.map(({ status }) => status),
    [200, 404, 400, 404],
  );
  const sheet = await browser.get(style);
  t.is(sheet.headers['content-type'], 'text/css; charset=utf-8');
  t.is(sheet.headers['cache-control'], 'public, max-age=31536000, immutable');
  t.is((await browser.get(style.replace(/[0-9a-f]{16}/, '0123456789abcdef'))).status, 404);
});

test.serial('localhost leads to the address of PUBLIC_URL, and pages do not work at a different one', async (t) => {
  const gateway = await startGateway(t);
  const { port } = new URL(gateway.url);
  const browser = browse(gateway);
  const local = await browser.get('/signin?return=/account', { host: `localhost:${port}` });
  t.deepEqual([local.status, local.headers.location], [303, `${gateway.url}/signin?return=/account`]);
  const double = await browser.get('//evil.example/account', { host: `localhost:${port}` });
  t.is(double.status, 404);
  for (const host of ['127.0.0.1', '127.0.0.1:1', 'localhost:1', 'localhost']) {
    const page = await browser.get('/signin', { host });
    t.is(page.status, 421, host);
    t.true(page.text.includes(`<a href="${gateway.url}/account">`), host);
  }
  t.is((await browser.post('/signin', {}, { host: `localhost:${port}` })).status, 421);
  t.is((await browser.get('/signin', { host: 'evil.example' })).status, 403);

  const behindProxy = await startGateway(t, null, { PUBLIC_URL: 'https://gateway.example.com' });
  t.is((await browse(behindProxy, 'https://gateway.example.com').get('/signin/register')).status, 200);
  t.is((await browse(behindProxy).get('/signin')).status, 421);

  const plain = await startGateway(t, null, { PUBLIC_URL: 'http://gateway.example.com:8080' });
  const refused = await browse(plain, 'http://gateway.example.com:8080').get('/signin');
  t.is(refused.status, 403);
  t.regex(refused.text, /HTTPS is required/);
});

test.serial('a name that is a program is shown as text', async (t) => {
  const gateway = await startGateway(t);
  const admin = await person(gateway, 'admin@example.com');
  const email = '"><script>alert(1)</script>@example.com'.replaceAll(/\s/g, '');
  const ann = { email, password: 'a long passphrase' };
  const { body } = await gateway.rest<{ id: string }>(201, 'POST', '/api/users', {
    token: admin.token,
    body: { ...ann, role: '<img src=x onerror=alert(1)>', groups: ['<b>', "'onmouseover='x"] },
  });
  t.truthy(body.id);
  const browser = browse(gateway);
  const failed = await browser.post('/signin', { email, password: 'wrong' });
  await browser.ask(
    'POST',
    '/signin',
    { 'content-type': FORM, origin: gateway.url, 'sec-fetch-site': 'same-origin', 'user-agent': '<script>alert(2)</script>' },
    new URLSearchParams(ann).toString(),
  );
  for (const { text } of [failed, await browser.get('/account'), await browser.get('/account?done=<script>')]) {
    t.notRegex(text, /<script|<img|<b>|'onmouseover/i);
  }
});
